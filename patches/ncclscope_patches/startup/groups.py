"""Note that a rank waits in ``init_process_group``, before it has a group or a call."""

from __future__ import annotations

import inspect
import os
import sys
from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import Any

from ncclscope.model.activities import COMM_INIT, INIT
from ncclscope.tracing import callsite, session
from ncclscope.tracing.notes import Notes, Phase, leave
from ncclscope_patches.probes.noting import put_noting
from ncclscope_patches.probes.probe import Note

_NAME = "init_process_group"


class InitNote(Note):
    """Notes when ``init_process_group`` begins and ends, with rank, world size and timeout.

    The ring exists from the beginning on, so that a rank that gets no further has one.
    """

    name = "init_process_group"
    target = "torch.distributed.distributed_c10d"

    def __init__(self) -> None:
        super().__init__()
        self._notes = Notes(INIT)

    def install(self, module: Any) -> None:
        function = getattr(module, _NAME)
        noted = self.guard_scope(function, self._entering(module, function), leave)
        self.put(module, _NAME, noted)
        above = sys.modules.get("torch.distributed")  # where torch was imported before
        if getattr(above, _NAME, None) is function:
            self.put(above, _NAME, noted)

    def _entering(
        self, module: Any, function: Callable[..., Any]
    ) -> Callable[[tuple[Any, ...], dict[str, Any]], Phase | None]:
        signature = inspect.signature(function)

        def enter(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Phase | None:
            given = signature.bind_partial(*args, **kwargs).arguments
            rank, size = _number(given, "rank", "RANK"), _number(given, "world_size", "WORLD_SIZE")
            if size is None or size < 2:
                return None
            tracer = session.current()
            if tracer is None:
                return None
            if tracer.rank < 0 and rank is not None:
                tracer.describe(rank=rank, world_size=size)
            elif tracer.rank == rank and tracer.world_size != size:
                tracer.describe(world_size=size)  # not that of its environment
            backend = given.get("backend")
            limit = given.get("timeout") or module._get_default_timeout(backend)
            seconds = int(limit.total_seconds()) if isinstance(limit, timedelta) else 0
            line = callsite.user_line(sys._getframe(1))
            text = f"{backend or 'default'} at {line}" if line else str(backend or "default")
            slot = self._notes.slot()
            return None if slot is None else (slot, slot.begin(text, seconds))

        return enter


class CommInitNote(Note):
    """Notes when vLLM's ``ncclCommInitRank`` begins and ends."""

    name = "nccl_comm_init"
    target = "vllm.distributed.device_communicators.pynccl_wrapper"

    def install(self, module: Any) -> None:
        put_noting(self, module.NCCLLibrary, "ncclCommInitRank", COMM_INIT, comm_size)


def comm_size(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[str | None, int]:
    """Return no detail and the number of ranks that a binding of ``ncclCommInitRank`` gets."""
    size = args[1] if len(args) > 1 else kwargs.get("world_size", 0)
    return None, int(size)


def _number(given: Mapping[str, Any], name: str, variable: str) -> int | None:
    found = given.get(name, -1)
    if isinstance(found, int) and found >= 0:
        return found
    text = os.environ.get(variable, "")
    return int(text) if text.isdecimal() else None
