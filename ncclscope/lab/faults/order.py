"""Fault: two communicators are entered in the opposite order."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from ncclscope.lab.faults.base import Fault, describe

if TYPE_CHECKING:
    from ncclscope.lab.engine import Engine
    from ncclscope.lab.sizes import Sizes

__all__ = ["OrderSwap"]


class OrderSwap(Fault):
    """The rank enters the world before its replica; its peers do the opposite.

    Each communicator has the same sequence on all ranks. The rank waits for its peers in one, and
    they wait for it in the other.
    """

    name: ClassVar[str] = "order_swap"
    kind: ClassVar[str | None] = "order_cycle"
    least_tp: ClassVar[int] = 2

    def planted(self, program: Sizes) -> dict[str, Any]:
        return describe(
            self,
            program,
            "tp",
            "posts the all_reduce on world before the all_gather on tp:0, its peers after it",
            odd={"op": "all_reduce", "shape": [program.experts], "dtype": "int32"},
            peers={"op": "all_gather", "dtype": "float32"},
            other_comm=program.communicator("world", program.fault_rank),
        )

    def finish(self, engine: Engine) -> None:
        engine.count_load()
        engine.gather_logits()
