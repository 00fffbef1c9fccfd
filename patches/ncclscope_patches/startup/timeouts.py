"""Explain a collective's timeout in the job's own log, before the process ends because of it.

torch says which call timed out, and not which rank did not come. `ncclscope run` has said so long
before, so this serves jobs that record without it.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import sys
import threading
from typing import Any

from ncclscope import settings
from ncclscope.dump_files import dump_files, stamp
from ncclscope.explanation import explain, explain_to
from ncclscope.tracing.background import BackgroundThread
from ncclscope_patches.probes.probe import Note

_HOOK = 0x6E63636C
"""Number of our hook: each of a group has its own."""
_ABORT_SECONDS = 3.0
"""Seconds that an abort is delayed at most."""
_DUMP_INTERVAL = 0.5
"""Seconds between checks for a dump."""


def explain_timeout(error: BaseException) -> None:
    """Have the verdict printed if an exception is the timeout of a collective; never raise."""
    with contextlib.suppress(Exception):
        if _is_timeout(error):
            _explain()


class AbortHook(Note):
    """Prints the verdict before torch's NCCL watchdog aborts a process.

    The watchdog throws in a thread of C++, so that no exception reaches Python. torch 2.15 calls
    hooks before, on the backend ``nccl2`` only. All versions dump their Flight Recorder before, on
    every rank, so on the backend ``nccl`` a thread waits for the file of this rank.
    """

    name = "torch_abort_hook"
    target = "torch.distributed.distributed_c10d"

    def __init__(self) -> None:
        super().__init__()
        self._watching = 0
        """Process whose dump a thread waits for: a forked child has no such thread."""

    def install(self, module: Any) -> None:
        def created(_arguments: Any, result: Any) -> None:
            group = result[0] if isinstance(result, tuple) else result
            if getattr(group, "supports_abort_hooks", False):
                group.register_abort_hook(_HOOK, self._aborting)
            elif self._watching != os.getpid() and _is_nccl(module, group):
                self._watching = os.getpid()
                # The first group that a process makes is that of all ranks.
                rank = module.get_rank() if module.is_initialized() else group.rank()
                BackgroundThread("ncclscope-dump", self._wait_for_dump, rank).start()

        # The probe of torch.distributed may have replaced it, too: both are called.
        helper = module._new_process_group_helper
        self.put(module, "_new_process_group_helper", self.guard(helper, after=created))

    def _aborting(self) -> None:
        # torch calls this from C++, which may have nobody to catch an exception.
        with contextlib.suppress(Exception):
            where = settings.directory()
            if self.active and where and not _is_watched(where):
                # Waits, as the process would otherwise be gone before its stack has been read.
                text = explain(where, seconds=_ABORT_SECONDS).text
                os.write(_stderr(), text.encode("utf-8", "replace"))

    def _wait_for_dump(self, stop: threading.Event, rank: int) -> None:
        # After a dump the watchdog gives other ranks up to 60 s for theirs.
        before = {file: stamp(file) for file in dump_files(os.environ, rank)}
        while self.active and not stop.wait(_DUMP_INTERVAL):
            for file, old in before.items():
                new = stamp(file)
                if new and new != old:
                    before[file] = new
                    with contextlib.suppress(OSError):  # the directory may be gone
                        _explain()


def _explain() -> None:
    where = settings.directory()
    if where and not _is_watched(where):
        explain_to(_stderr(), where)


def _is_nccl(module: Any, group: Any) -> bool:
    return module.is_nccl_available() and "nccl" in module._world.pg_backend_config.get(group, "")


def _is_timeout(error: BaseException) -> bool:
    text = str(error).lower()
    return isinstance(error, RuntimeError) and ("timed out" in text or "timeout" in text)


def _is_watched(directory: str) -> bool:
    """Return whether `ncclscope run` explains this job: it holds a lock on the directory."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    finally:
        os.close(descriptor)
    return False


def _stderr() -> int:
    return sys.__stderr__.fileno() if sys.__stderr__ else 2
