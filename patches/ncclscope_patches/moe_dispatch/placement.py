"""The assignment of experts, and of a batch's rows, to ranks."""

from __future__ import annotations

from dataclasses import dataclass

from ncclscope.errors import UsageError


@dataclass(frozen=True)
class ExpertPlacement:
    """Contiguous blocks of experts in rank order; the first ranks get one of the remainder each.

    Attributes:
        experts: Number of experts.
        ranks: Number of ranks that share them.

    Raises:
        UsageError: There are fewer experts than ranks.
    """

    experts: int
    ranks: int

    def __post_init__(self) -> None:
        if self.ranks < 1 or self.experts < self.ranks:
            raise UsageError(
                f"{self.experts} experts cannot be shared by {self.ranks} ranks",
                "give each rank at least one",
            )

    def owned(self, rank: int) -> range:
        """Return the experts of a rank of the expert-parallel group; never none."""
        share, remainder = divmod(self.experts, self.ranks)
        first = rank * share + min(rank, remainder)
        return range(first, first + share + (rank < remainder))

    def owner(self, expert: int) -> int:
        """Return the rank that has an expert."""
        share, remainder = divmod(self.experts, self.ranks)
        if expert < remainder * (share + 1):
            return expert // (share + 1)
        return remainder + (expert - remainder * (share + 1)) // share


def sequence_chunk(rows: int, tp: int, tp_rank: int) -> slice:
    """Return a tensor-parallel rank's slice of its replica's rows.

    All slices are equally long, except the last ones, which may be shorter or empty.

    Args:
        rows: Number of rows of the replica.
        tp: Number of ranks of the replica.
        tp_rank: The rank within the replica.
    """
    chunk = -(-rows // tp)
    return slice(min(tp_rank * chunk, rows), min((tp_rank + 1) * chunk, rows))
