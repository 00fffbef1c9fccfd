"""Faults in the number of calls: one fewer, one more."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from ncclscope.lab.faults.base import Fault, describe, hidden_reduction

if TYPE_CHECKING:
    import torch

    from ncclscope.lab.engine import Engine
    from ncclscope.lab.sizes import Sizes

__all__ = ["AddedCall", "SkippedCall"]


class SkippedCall(Fault):
    """The rank skips one all_reduce of its replica and goes on.

    The calls that follow look the same and complete with the wrong partner; only the last ones of
    the step have none.
    """

    name: ClassVar[str] = "skipped_call"
    kind: ClassVar[str | None] = "missing_call"
    least_tp: ClassVar[int] = 2

    def planted(self, program: Sizes) -> dict[str, Any]:
        return describe(
            self,
            program,
            "tp",
            f"skips the all_reduce on tp:0 after the experts of layer {program.fault_layer}",
            odd=None,
            peers=hidden_reduction(program),
            extent=1,
        )

    def reduce_experts(self, engine: Engine, hidden: torch.Tensor, layer: int) -> None:
        if layer != engine.program.fault_layer:
            engine.reduce_experts(hidden)


class AddedCall(Fault):
    """The rank posts one all_reduce that its peers do not post."""

    name: ClassVar[str] = "extra_call"
    kind: ClassVar[str | None] = "extra_call"
    least_tp: ClassVar[int] = 2

    def planted(self, program: Sizes) -> dict[str, Any]:
        return describe(
            self,
            program,
            "tp",
            f"posts an additional all_reduce on tp:0 in layer {program.fault_layer}",
            odd=hidden_reduction(program),
            peers=None,
            extent=1,
        )

    def reduce_experts(self, engine: Engine, hidden: torch.Tensor, layer: int) -> None:
        engine.reduce_experts(hidden)
        if layer == engine.program.fault_layer:
            engine.tp.all_reduce(hidden)
