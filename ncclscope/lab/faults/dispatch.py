"""Fault: the expert dispatch takes another path on one rank."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from ncclscope.lab.faults.base import Fault, describe, fault_rows, hidden_reduction

if TYPE_CHECKING:
    import torch

    from ncclscope.lab.engine import Engine
    from ncclscope.lab.sizes import Sizes

__all__ = ["DivergentDispatch"]


class DivergentDispatch(Fault):
    """The dispatch gathers only routing metadata, on the wrong communicator.

    This is the hang reported for vLLM's allgather_reducescatter backend. In up to 17 layers of one
    step the rank assumes that its experts have no tokens. It skips the all_gatherv of tokens among
    the replicas, and posts an all_gatherv of metadata among its tensor-parallel peers, which are in
    the next all_reduce. It still posts the combine, so that the counts of the two communicators
    differ by the same number.
    """

    name: ClassVar[str] = "divergent_dispatch"
    kind: ClassVar[str | None] = "comm_swap"
    least_tp: ClassVar[int] = 2
    least_dp: ClassVar[int] = 2

    longest: ClassVar[int] = 17

    def layers(self, program: Sizes) -> range:
        """Return the layers in which the rank takes the other path."""
        extent = min(self.longest, program.layers)
        first = program.fault_layer % (program.layers - extent + 1)
        return range(first, first + extent)

    def planted(self, program: Sizes) -> dict[str, Any]:
        extent = len(self.layers(program))
        return describe(
            self,
            program,
            "tp",
            f"posts {extent} all_gatherv of metadata on tp:0 instead of the dispatch on dp:0",
            odd={
                "op": "all_gatherv",
                "shape": [fault_rows(program), program.experts],
                "dtype": "int32",
            },
            peers=hidden_reduction(program),
            other_comm=program.communicator("dp", program.fault_rank),
            extent=extent,
        )

    def dispatch(self, engine: Engine, hidden: torch.Tensor, layer: int) -> torch.Tensor:
        if layer not in self.layers(engine.program):
            return engine.dispatch(hidden)
        metadata = engine.tensor((engine.rows, engine.program.experts))
        engine.tp.all_gatherv(metadata, [engine.rows] * engine.tp.size)
        return engine.tensor((sum(engine.sizes), engine.program.hidden), hidden.dtype)
