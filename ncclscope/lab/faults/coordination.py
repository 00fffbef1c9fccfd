"""Fault in the exchange of batch sizes between replicas."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from ncclscope.lab.faults.base import Fault, describe

if TYPE_CHECKING:
    from ncclscope.lab.engine import Engine
    from ncclscope.lab.sizes import Sizes

__all__ = ["ZeroTokenSkip"]


class ZeroTokenSkip(Fault):
    """A rank without tokens skips the exchange of batch sizes with the other replicas.

    It still runs its dummy batch, with the sizes that the exchange would have returned, so that
    only this one call is missing.
    """

    name: ClassVar[str] = "zero_token_skip"
    kind: ClassVar[str | None] = "missing_call"
    idle: ClassVar[bool] = True
    least_dp: ClassVar[int] = 2

    def planted(self, program: Sizes) -> dict[str, Any]:
        return describe(
            self,
            program,
            "dp",
            "has no tokens and skips the all_reduce on dp:0 that the other replicas wait in",
            odd=None,
            peers={"op": "all_reduce", "shape": [program.dp], "dtype": "int32", "redop": "sum"},
            extent=1,
        )

    def coordinate(self, engine: Engine) -> list[int]:
        program = engine.program
        return [program.rows(program.fault_step, replica) for replica in range(program.dp)]
