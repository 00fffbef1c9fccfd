"""Fault in the sizes of a v-collective."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from ncclscope.lab.faults.base import Fault, describe, fault_rows

if TYPE_CHECKING:
    from ncclscope.lab.engine import Engine
    from ncclscope.lab.sizes import Sizes

__all__ = ["StaleSizes"]


class StaleSizes(Fault):
    """The rank believes that another replica has one row fewer, and gathers accordingly.

    It posts every all_gatherv and reduce_scatterv of the step with other sizes than its peers. gloo
    ends this rank in the first of them, since it receives more data than fits its tensor; NCCL
    waits for ever.
    """

    name: ClassVar[str] = "stale_sizes"
    kind: ClassVar[str | None] = "split_mismatch"
    least_dp: ClassVar[int] = 2

    def planted(self, program: Sizes) -> dict[str, Any]:
        call = {
            "op": "all_gatherv",
            "shape": [fault_rows(program), program.hidden],
            "dtype": "bfloat16",
        }
        sizes = [program.rows(program.fault_step, replica) for replica in range(program.dp)]
        own = self.believed(sizes, program.place(program.fault_rank)[0])
        return describe(
            self,
            program,
            "dp",
            f"posts all_gatherv on dp:0 with the sizes {_text(own)}, its peers with {_text(sizes)}",
            odd={**call, "sizes": own},
            peers={"op": "all_gatherv", "dtype": "bfloat16", "sizes": sizes},
        )

    def believed(self, sizes: list[int], replica: int) -> list[int]:
        """Return the wrong sizes: one row fewer for the replica after the rank's own."""
        other = (replica + 1) % len(sizes)
        return [rows - (index == other) for index, rows in enumerate(sizes)]

    def coordinate(self, engine: Engine) -> list[int]:
        return self.believed(engine.coordinate(), engine.dp_rank)


def _text(sizes: list[int]) -> str:
    return "[" + ",".join(map(str, sizes)) + "]"
