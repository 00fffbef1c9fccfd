"""A rank that takes its time."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, ClassVar

from ncclscope.lab.faults.base import Fault, describe, hidden_reduction

if TYPE_CHECKING:
    import torch

    from ncclscope.lab.engine import Engine
    from ncclscope.lab.plan import Program

__all__ = ["SlowRank"]

PAUSE_SECONDS = 0.06


class SlowRank(Fault):
    """The rank pauses before the attention of every layer; nothing hangs."""

    name: ClassVar[str] = "slow_rank"
    kind: ClassVar[str | None] = "straggler"
    least_tp: ClassVar[int] = 2

    def planted(self, program: Program) -> dict[str, Any]:
        """Return the fault in the terms of a verdict."""
        summary = f"pauses {PAUSE_SECONDS:g} s before each layer"
        planted = describe(self, program, "tp", summary, odd=None, peers=hidden_reduction(program))
        return {**planted, "comm": None}  # it is late on each of its communicators

    def reduce_attention(self, engine: Engine, hidden: torch.Tensor, layer: int) -> None:
        """Reduce after attention, as the peers do, but later."""
        time.sleep(PAUSE_SECONDS)
        engine.reduce_attention(hidden)
