"""Ranks of the two columns of an alignment."""

from __future__ import annotations

from ncclscope.analysis.verdict import Neighbourhood
from ncclscope.model import Call, Finding

__all__ = ["aligned_sides", "differ_by_site", "shown_groups"]


def aligned_sides(
    near: Neighbourhood, cause: Finding
) -> tuple[tuple[int, ...], tuple[int, ...]] | None:
    """Return the ranks of the left and of the right column of ``cause.aligned``.

    A column holds the ranks that posted its call at the first difference. A rank that has not come
    so far, or posted a third call, is in neither.

    Returns:
        The peers and the diverging ranks; None if there is no alignment, or if a column would
        include ranks that posted another call.
    """
    if not cause.aligned or cause.comm is None:
        return None
    if cause.diverging_ranks:
        diverging = cause.diverging_ranks
        if cause.peers is None:
            return None
        peers = tuple(rank for rank in _posted(near, cause.peers) if rank not in diverging)
        return (peers, diverging) if peers else None
    if cause.odd is None or cause.peers is None or cause.odd.signature == cause.peers.signature:
        return None
    theirs, own = _posted(near, cause.peers), _posted(near, cause.odd)
    return (theirs, own) if {*theirs, *own} == set(near.calls) else None


def shown_groups(
    near: Neighbourhood, cause: Finding, most: int
) -> tuple[list[list[int]], list[int]]:
    """Return the ranks that posted the same calls, a list for each group, and hidden ranks.

    Diverging ranks are last, and are always shown.

    Args:
        near: Calls around the first difference.
        cause: Cause of the verdict.
        most: Most groups to show.
    """
    groups: dict[tuple[tuple[int, int], ...], list[int]] = {}
    for rank, calls in sorted(near.calls.items()):
        signatures = tuple((seq, call.signature) for seq, call in calls.items())
        groups.setdefault(signatures, []).append(rank)
    found = sorted(groups.values(), key=lambda ranks: (ranks[0] in cause.diverging_ranks, ranks))
    shown = found if len(found) <= most else [*found[: most - 1], found[-1]]
    return shown, [rank for ranks in found if ranks not in shown for rank in ranks]


def differ_by_site(cause: Finding) -> bool:
    """Return whether the two calls of a cause differ in their call sites alone."""
    if cause.odd is None or cause.peers is None:
        return False
    return cause.odd.signature == cause.peers.signature and cause.odd.site != cause.peers.site


def _posted(near: Neighbourhood, call: Call) -> tuple[int, ...]:
    """Return the ranks that posted ``call`` at the first difference."""
    found = {rank: calls.get(near.seq) for rank, calls in near.calls.items()}
    return tuple(
        rank
        for rank, posted in sorted(found.items())
        if posted is not None and posted.signature == call.signature
    )
