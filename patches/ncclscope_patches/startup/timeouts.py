"""Explain a collective's timeout in the job's own log, before the process ends because of it.

torch says which call timed out, and not which rank did not come. `ncclscope run` has said so long
before, so this serves jobs that record without it.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import sys
from typing import Any

from ncclscope import settings
from ncclscope.explanation import explain, explain_to
from ncclscope_patches.probes.probe import Patch

__all__ = ["AbortHook", "explain_timeout"]

_HOOK = 0x6E63636C
"""Number of our hook: each of a group has its own."""
_ABORT_SECONDS = 3.0
"""Seconds that an abort is delayed at most."""


def explain_timeout(error: BaseException) -> None:
    """Have the verdict printed if an exception is the timeout of a collective; never raise."""
    try:
        where = settings.directory()
        if where and _is_timeout(error) and not _is_watched(where):
            explain_to(_stderr(), where)
    except Exception:
        return


class AbortHook(Patch):
    """Prints the verdict before torch's watchdog aborts a process, where torch offers a hook.

    torch 2.15 calls such hooks on the backend ``nccl2``; others have none.
    """

    name = "torch_abort_hook"
    target = "torch.distributed.distributed_c10d"
    supports = "torch 2.15"
    records = False

    def install(self, module: Any) -> None:
        self.replace(module, "_new_process_group_helper", after=self._created)

    def _created(self, _arguments: Any, result: Any) -> None:
        group = result[0] if isinstance(result, tuple) else result
        if getattr(group, "supports_abort_hooks", False):
            group.register_abort_hook(_HOOK, self._aborting)

    def _aborting(self) -> None:
        # torch calls this from C++, which may have nobody to catch an exception.
        with contextlib.suppress(Exception):
            where = settings.directory()
            if self.active and where and not _is_watched(where):
                # Waits, as the process would otherwise be gone before its stack has been read.
                text = explain(where, seconds=_ABORT_SECONDS).text
                os.write(_stderr(), text.encode("utf-8", "replace"))


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
