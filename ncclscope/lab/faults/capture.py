"""Fault: a call is captured into a CUDA graph, and the peers run it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from ncclscope.lab.faults.base import Fault, describe

if TYPE_CHECKING:
    from ncclscope.lab.engine import Engine
    from ncclscope.lab.sizes import Sizes

__all__ = ["CapturedCall"]


class CapturedCall(Fault):
    """The rank captures one call, as for a CUDA graph; its peers run it and wait.

    The processes, the record and the effect on the peers are real: the rank records the call and
    goes on, the call does not run, and they wait for it. CUDA is simulated: there is no graph, and
    the laboratory itself marks the call as captured and does not run it.
    """

    name: ClassVar[str] = "captured_call"
    kind: ClassVar[str | None] = "capture_mismatch"
    least_ranks: ClassVar[int] = 3

    def planted(self, program: Sizes) -> dict[str, Any]:
        call = {"op": "all_reduce", "shape": [program.experts], "dtype": "int32", "redop": "sum"}
        return describe(
            self,
            program,
            "world",
            "captures the all_reduce on world at its end, which its peers run",
            odd={**call, "state": "scheduled"},
            peers=call,
        )

    def finish(self, engine: Engine) -> None:
        engine.gather_logits()
        with engine.world.capture():
            engine.count_load()
