"""Base class of faults: the places at which a rank can diverge."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from ncclscope.errors import LaboratoryError

if TYPE_CHECKING:
    import torch

    from ncclscope.lab.engine import Engine
    from ncclscope.lab.sizes import Sizes


class Fault:
    """Nothing goes wrong.

    Derived classes override the methods in which they deviate. The engine calls those of the fault
    on one rank in one step, and the healthy ones of this class everywhere else.

    Attributes:
        name: Name on the command line.
        kind: Kind of the verdict; None if there is no finding.
        idle: Whether the replica of the diverging rank has no tokens in that step.
        least_tp: Least number of ranks per replica.
        least_dp: Least number of replicas.
        least_ranks: Least number of ranks.
    """

    name: ClassVar[str] = "none"
    kind: ClassVar[str | None] = None
    idle: ClassVar[bool] = False
    least_tp: ClassVar[int] = 1
    least_dp: ClassVar[int] = 1
    least_ranks: ClassVar[int] = 1

    def usual(self) -> Fault:
        """Return the behaviour of all ranks where this fault does not happen.

        A fault in a call that the engine does not post adds the call here, for every rank and
        every step.
        """
        return Fault()

    @property
    def help(self) -> str:
        """First line of the docstring, for a list of choices."""
        return (type(self).__doc__ or "").strip().partition("\n")[0].rstrip(".")

    def check(self, program: Sizes) -> None:
        """Check that the fault can happen in a program.

        Raises:
            LaboratoryError: The program is too small.
        """
        for size, least in (("tp", self.least_tp), ("dp", self.least_dp)):
            if getattr(program, size) < least:
                raise LaboratoryError(
                    f"{self.name} cannot happen with {size}={getattr(program, size)}",
                    f"give {size} of at least {least}",
                )
        if program.world_size < self.least_ranks:
            raise LaboratoryError(
                f"{self.name} cannot happen with {program.world_size} ranks",
                f"give tp and dp that make at least {self.least_ranks}",
            )

    def planted(self, program: Sizes) -> dict[str, Any]:
        """Return the fault in the terms of a verdict."""
        return {
            "fault": self.name,
            "kind": self.kind,
            "summary": "no rank diverges",
            "diverging_ranks": [],
            "comm": None,
            "odd": None,
            "peers": None,
        }

    # --- places where a rank can diverge -------------------------------------------------------

    def coordinate(self, engine: Engine) -> list[int]:
        """Exchange the number of rows of each replica."""
        return engine.coordinate()

    def share_schedule(self, engine: Engine) -> None:
        """Broadcast the schedule within the replica."""
        engine.share_schedule()

    def reduce_attention(self, engine: Engine, hidden: torch.Tensor, layer: int) -> None:
        """Reduce after attention.

        Args:
            engine: Engine of the rank.
            hidden: Hidden states ``[rows, hidden]``, reduced in place.
            layer: Number of the layer, from 0.
        """
        engine.reduce_attention(hidden)

    def dispatch(self, engine: Engine, hidden: torch.Tensor, layer: int) -> torch.Tensor:
        """Send tokens to the experts; return those of all replicas.

        Args:
            engine: Engine of the rank.
            hidden: Hidden states ``[rows, hidden]``.
            layer: Number of the layer, from 0.
        """
        return engine.dispatch(hidden)

    def combine(self, engine: Engine, gathered: torch.Tensor, layer: int) -> torch.Tensor:
        """Return the replica's tokens ``[rows, hidden]`` from the experts.

        Args:
            engine: Engine of the rank.
            gathered: Expert outputs ``[sum(sizes), hidden]`` of all replicas.
            layer: Number of the layer, from 0.
        """
        return engine.combine(gathered)

    def reduce_experts(self, engine: Engine, hidden: torch.Tensor, layer: int) -> None:
        """Reduce after the experts.

        Args:
            engine: Engine of the rank.
            hidden: Hidden states ``[rows, hidden]``, reduced in place.
            layer: Number of the layer, from 0.
        """
        engine.reduce_experts(hidden)

    def finish(self, engine: Engine) -> None:
        """Sample, and counts the experts' load."""
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
    """Return the description of a fault on one communicator, in the terms of a verdict.

    Args:
        fault: The fault.
        program: Program with the fault.
        comm: Kind of the communicator: ``tp``, ``dp`` or ``world``.
        summary: Behaviour of the rank, after "rank 3 in step 5 ".
        odd: Parameters of the call of the diverging rank; None for no call.
        peers: Parameters of the call of the others; None for no call.
        diverging: Whether the rank diverges.
        more: Further keys of this fault.
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


def hidden_reduction(program: Sizes) -> dict[str, Any]:
    """Return the parameters of the all_reduce that most faults change."""
    return {
        "op": "all_reduce",
        "shape": [fault_rows(program), program.hidden],
        "dtype": "bfloat16",
        "redop": "sum",
    }


def fault_rows(program: Sizes) -> int:
    """Return the number of rows in the diverging rank's batch."""
    return program.rows(program.fault_step, program.place(program.fault_rank)[0])
