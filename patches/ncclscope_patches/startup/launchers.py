"""Note which ranks ended by themselves, in the process of torchrun that started them."""

from __future__ import annotations

import weakref
from typing import Any

from ncclscope import settings
from ncclscope.tracing.launchers import record_ends
from ncclscope_patches.probes.probe import Patch

__all__ = ["TorchrunNote"]


class TorchrunNote(Patch):
    """Notes ranks that have failed when torchrun begins to end the others."""

    name = "torchrun"
    target = "torch.distributed.elastic.multiprocessing.api"
    supports = "torch 2.6 to 2.15"
    records = False

    def __init__(self) -> None:
        super().__init__()
        self._closed: weakref.WeakSet[Any] = weakref.WeakSet()

    def install(self, module: Any) -> None:
        self.replace(module.SubprocessContext, "_close", self._closing)

    def _closing(self, args: tuple[Any, ...], _kwargs: Any) -> None:
        context = args[0]
        if context in self._closed:
            return  # failures are added for those that were ended since
        self._closed.add(context)
        where = settings.directory()
        ends = {failure.pid: failure.exitcode for failure in context._failures.values()}
        if where and ends:
            record_ends(where, "torchrun", ends)
