"""Note which ranks ended by themselves, in the process of torchrun that started them."""

from __future__ import annotations

import time
import weakref
from typing import Any

from ncclscope import settings
from ncclscope.tracing.launchers import record_ends
from ncclscope_patches.probes.probe import Note

_AT_ONCE = 20.0
"""Seconds within which torchrun does not kill the ranks that it has asked to end."""


class TorchrunNote(Note):
    """Notes ranks that have failed when torchrun begins to end the others."""

    name = "torchrun"
    target = "torch.distributed.elastic.multiprocessing.api"

    def __init__(self) -> None:
        super().__init__()
        self._closed: weakref.WeakSet[Any] = weakref.WeakSet()

    def install(self, module: Any) -> None:
        self.replace(module.SubprocessContext, "_close", self._closing, self._close)

    def _closing(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Return the ranks that have failed so far, unless the ranks were ended before."""
        context = args[0]
        if context in self._closed:
            return None
        self._closed.add(context)
        signal = int(args[1] if len(args) > 1 else kwargs["death_sig"])
        ends = {failure.pid: failure.exitcode for failure in context._failures.values()}
        return context, ends, signal, time.monotonic()

    def _close(self, token: Any, _result: Any) -> None:
        """Record them, with those that the same signal has ended, which torchrun did not send."""
        context, ends, signal, since = token
        if time.monotonic() - since < _AT_ONCE:
            for handler in context.subprocess_handlers.values():
                status = handler.proc.returncode
                if status in ends.values() and status < 0:
                    ends.setdefault(handler.proc.pid, status)
        where = settings.directory()
        # The signal that torchrun sends may have been sent to all by somebody else.
        if where and ends and -signal not in ends.values():
            record_ends(where, "torchrun", ends)
