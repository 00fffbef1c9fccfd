"""Which rank has which expert, and which rows of a batch."""

from __future__ import annotations

from dataclasses import dataclass

from ncclscope.errors import UsageError

__all__ = ["ExpertPlacement", "sequence_chunk"]


@dataclass(frozen=True)
class ExpertPlacement:
    """Experts in blocks, in the order of the ranks; the first ranks have the odd ones.

    Attributes:
        experts: How many there are.
        ranks: How many ranks share them.

    Raises:
        UsageError: There is not one expert for each rank.
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
        share, odd = divmod(self.experts, self.ranks)
        first = rank * share + min(rank, odd)
        return range(first, first + share + (rank < odd))

    def owner(self, expert: int) -> int:
        """Return the rank that has an expert."""
        share, odd = divmod(self.experts, self.ranks)
        if expert < odd * (share + 1):
            return expert // (share + 1)
        return odd + (expert - odd * (share + 1)) // share


def sequence_chunk(rows: int, tp: int, tp_rank: int) -> slice:
    """Return the rows that a tensor-parallel rank has of its replica's sequence.

    All chunks are equal but the last ones, which may be shorter, or empty.

    Args:
        rows: Rows of the replica.
        tp: Ranks of the replica.
        tp_rank: Which of them.
    """
    chunk = -(-rows // tp)
    return slice(min(tp_rank * chunk, rows), min((tp_rank + 1) * chunk, rows))
