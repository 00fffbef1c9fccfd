"""Whose the two sequences are that stand beside each other."""

from __future__ import annotations

from ncclscope.analysis.verdict import Neighbourhood
from ncclscope.model import Call, Finding

__all__ = ["aligned_sides"]


def aligned_sides(
    near: Neighbourhood, cause: Finding
) -> tuple[tuple[int, ...], tuple[int, ...]] | None:
    """Returns the ranks of the left and of the right column of ``cause.aligned``.

    They are the ranks whose records hold the calls of a column, at the first difference: a rank
    that has not come so far, or posted something else again, stands in neither.

    Returns:
        The peers and those that differ; None where there are no such columns, or where they
        would be taken for those of ranks that posted something else.
    """
    if not cause.aligned or cause.comm is None:
        return None
    if cause.diverging_ranks:
        odd = cause.diverging_ranks
        if cause.peers is None:
            return None
        peers = tuple(rank for rank in _posted(near, cause.peers) if rank not in odd)
        return (peers, odd) if peers else None
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
