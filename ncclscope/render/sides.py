"""Whose the two sequences are that stand beside each other."""

from __future__ import annotations

from ncclscope.analysis.verdict import Neighbourhood
from ncclscope.model import Call, Finding

__all__ = ["aligned_sides"]


def aligned_sides(
    near: Neighbourhood, cause: Finding
) -> tuple[tuple[int, ...], tuple[int, ...]] | None:
    """Returns the ranks of the left and of the right column of ``cause.aligned``.

    Where the verdict names nobody, the ranks of either side are those that posted what it did,
    by their records.

    Returns:
        The peers and those that differ; None where there are no such columns, or where they
        would be taken for those of ranks that posted something else.
    """
    if not cause.aligned or cause.comm is None:
        return None
    if cause.diverging_ranks:
        odd = cause.diverging_ranks
        return tuple(rank for rank in cause.comm.ranks if rank not in odd), odd
    if cause.odd is None or cause.peers is None or cause.odd.signature == cause.peers.signature:
        return None
    theirs, own = _posted(near, cause.peers), _posted(near, cause.odd)
    return (theirs, own) if {*theirs, *own} == set(near.calls) else None


def _posted(near: Neighbourhood, call: Call) -> tuple[int, ...]:
    """The ranks that posted this at the first difference."""
    found = {rank: calls.get(near.seq) for rank, calls in near.calls.items()}
    return tuple(
        rank
        for rank, posted in sorted(found.items())
        if posted is not None and posted.signature == call.signature
    )
