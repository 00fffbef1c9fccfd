"""Fault: the calls of one NCCL group are posted in another order."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from ncclscope.lab.faults.base import Fault, describe

if TYPE_CHECKING:
    from ncclscope.lab.engine import Engine
    from ncclscope.lab.sizes import Sizes

__all__ = ["ReorderedGroup"]


class _GroupedLoad(Fault):
    """All ranks sum load, rows and layers in one group, at the end of each step."""

    def finish(self, engine: Engine) -> None:
        engine.gather_logits()
        with engine.world.group():
            for size in self.sizes(engine.program):
                engine.world.all_reduce(engine.tensor((size,)))

    def sizes(self, program: Sizes) -> list[int]:
        """Return the elements of each all_reduce of the group, in order of posting."""
        return [program.experts, program.world_size, 1]


class ReorderedGroup(_GroupedLoad):
    """The rank reverses the calls inside one group: latent, the run ends in order.

    The laboratory simulates groups on every backend: it batches the calls inside a group and runs
    them at its end, sorted by size, as NCCL does. The records are those of a real NCCL group.
    """

    name: ClassVar[str] = "reordered_group"
    kind: ClassVar[str | None] = "group_order"
    least_ranks: ClassVar[int] = 3

    def usual(self) -> Fault:
        return _GroupedLoad()

    def planted(self, program: Sizes) -> dict[str, Any]:
        call = {"op": "all_reduce", "dtype": "int32", "redop": "sum"}
        peers = super().sizes(program)
        return describe(
            self,
            program,
            "world",
            f"posts the {len(peers)} all_reduce of a group on world in the opposite order",
            odd={**call, "shape": [self.sizes(program)[0]]},
            peers={**call, "shape": [peers[0]]},
            extent=len(peers),
        )

    def sizes(self, program: Sizes) -> list[int]:
        return super().sizes(program)[::-1]
