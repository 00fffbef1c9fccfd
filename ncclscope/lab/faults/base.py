"""The places at which a rank can leave the common sequence."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from ncclscope.errors import LaboratoryError

if TYPE_CHECKING:
    import torch

    from ncclscope.lab.engine import Engine
    from ncclscope.lab.sizes import Sizes

__all__ = ["Fault"]


class Fault:
    """Nothing goes wrong.

    Derived classes override the methods at which they deviate. The engine calls those of
    the planted fault on one rank in one step, and the healthy ones here everywhere else.

    Attributes:
        name: As it is given on the command line.
        kind: What a verdict calls it; None when there is nothing to call.
        idle: Whether the replica of the diverging rank has no tokens in that step.
        least_tp: Ranks of a replica that it takes.
        least_dp: Replicas that it takes.
    """

    name: ClassVar[str] = "none"
    kind: ClassVar[str | None] = None
    idle: ClassVar[bool] = False
    least_tp: ClassVar[int] = 1
    least_dp: ClassVar[int] = 1

    def usual(self) -> Fault:
        """Returns how all ranks behave where this fault does not happen.

        Faults of calls that the common sequence does not have add those here, for every rank
        and every step.
        """
        return Fault()

    @property
    def help(self) -> str:
        """One line for a list of choices."""
        return (type(self).__doc__ or "").strip().partition("\n")[0].rstrip(".")

    def check(self, program: Sizes) -> None:
        """Looks whether the fault can happen in a program.

        Raises:
            LaboratoryError: It cannot.
        """
        for size, least in (("tp", self.least_tp), ("dp", self.least_dp)):
            if getattr(program, size) < least:
                raise LaboratoryError(
                    f"{self.name} cannot happen with {size}={getattr(program, size)}",
                    f"give {size} of at least {least}",
                )

    def planted(self, program: Sizes) -> dict[str, Any]:
        """Returns what goes wrong in a program, in the terms of the verdict."""
        return {
            "fault": self.name,
            "kind": self.kind,
            "summary": "every rank keeps to the common sequence",
            "diverging_ranks": [],
            "comm": None,
            "odd": None,
            "peers": None,
        }

    # --- the places ----------------------------------------------------------------------------

    def coordinate(self, engine: Engine) -> list[int]:
        """Agrees on the rows of each replica."""
        return engine.coordinate()

    def share_schedule(self, engine: Engine) -> None:
        """Broadcasts the schedule within the replica."""
        engine.share_schedule()

    def reduce_attention(self, engine: Engine, hidden: torch.Tensor, layer: int) -> None:
        """Reduces after attention."""
        engine.reduce_attention(hidden)

    def dispatch(self, engine: Engine, hidden: torch.Tensor, layer: int) -> torch.Tensor:
        """Sends tokens to the experts."""
        return engine.dispatch(hidden)

    def combine(self, engine: Engine, gathered: torch.Tensor, layer: int) -> torch.Tensor:
        """Takes tokens back from the experts."""
        return engine.combine(gathered)

    def reduce_experts(self, engine: Engine, hidden: torch.Tensor, layer: int) -> None:
        """Reduces after the experts."""
        engine.reduce_experts(hidden)

    def finish(self, engine: Engine) -> None:
        """Samples, and counts the experts' load."""
        engine.gather_logits()
        engine.count_load()


def describe(
    fault: Fault,
    program: Sizes,
    comm: str,
    summary: str,
    *,
    odd: Mapping[str, Any] | None,
    peers: Mapping[str, Any] | None,
    diverging: bool = True,
    **more: Any,
) -> dict[str, Any]:
    """Returns the description of a fault that diverges on one communicator.

    Args:
        fault: The fault.
        program: Where it is planted.
        comm: Kind of the communicator: ``tp``, ``dp`` or ``world``.
        summary: What the rank does, after "rank 3 in step 5 ".
        odd: Parameters of what the diverging rank posts; None when it posts nothing.
        peers: Parameters of what the others post.
        diverging: Whether the rank leaves the common sequence.
        more: What only this fault has.
    """
    rank = program.fault_rank
    return {
        "fault": fault.name,
        "kind": fault.kind,
        "summary": f"rank {rank} in step {program.fault_step} {summary}",
        "diverging_ranks": [rank] if diverging else [],
        "comm": program.communicator(comm, rank),
        "odd": None if odd is None else dict(odd),
        "peers": None if peers is None else dict(peers),
        "step": program.fault_step,
        **more,
    }


def require_ranks(fault: Fault, program: Sizes, least: int) -> None:
    """Looks whether a program has so many ranks.

    Raises:
        LaboratoryError: It has fewer.
    """
    if program.world_size < least:
        raise LaboratoryError(
            f"{fault.name} cannot happen with {program.world_size} ranks",
            f"give tp and dp that make at least {least}",
        )


def hidden_reduction(program: Sizes) -> dict[str, Any]:
    """Returns the parameters of the all_reduce that most faults are about."""
    return {
        "op": "all_reduce",
        "shape": [fault_rows(program), program.hidden],
        "dtype": "bfloat16",
        "redop": "sum",
    }


def fault_rows(program: Sizes) -> int:
    """Returns the rows of the diverging rank's batch."""
    return program.rows(program.fault_step, program.place(program.fault_rank)[0])
