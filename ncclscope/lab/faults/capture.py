"""A call is captured into a CUDA graph where the peers carry it out."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from ncclscope.lab.faults.base import Fault, describe, require_ranks

if TYPE_CHECKING:
    from ncclscope.lab.engine import Engine
    from ncclscope.lab.sizes import Sizes

__all__ = ["CapturedCall"]


class CapturedCall(Fault):
    """The rank captures one call, as for a CUDA graph; its peers carry it out and wait.

    Real are the processes, the record, and what a capture does to the peers: the rank posts
    the call and goes on, it is not carried out, and they wait for it. Stood in for is CUDA:
    there is no graph, and the laboratory itself marks the call and leaves it undone.
    """

    name: ClassVar[str] = "captured_call"
    kind: ClassVar[str | None] = "capture_mismatch"

    def check(self, program: Sizes) -> None:
        super().check(program)
        require_ranks(self, program, 3)

    def planted(self, program: Sizes) -> dict[str, Any]:
        call = {
            "op": "all_reduce",
            "shape": [program.experts],
            "dtype": "int32",
            "redop": "sum",
        }
        return describe(
            self,
            program,
            "world",
            "captures the all_reduce on world at its end, which its peers carry out",
            odd={**call, "state": "scheduled"},
            peers=call,
        )

    def finish(self, engine: Engine) -> None:
        engine.gather_logits()
        with engine.world.capture():
            engine.count_load()
