"""Ranks of the two columns of an alignment."""

from __future__ import annotations

from collections.abc import Iterable

from ncclscope.engine.verdict import Neighbourhood
from ncclscope.model import Call, Finding


def aligned_sides(
    near: Neighbourhood, cause: Finding
) -> tuple[tuple[int, ...], tuple[int, ...]] | None:
    """Return the ranks of the left and of the right column of ``cause.aligned``.

    A column holds the ranks that posted its call at the first difference, and no other call than
    its calls after that. A rank that has not come so far, or posted a third call, is in neither.

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
        theirs, own = (_agree(near, column) for column in zip(*cause.aligned, strict=True))
        posted = _posted(near, cause.peers)
        peers = tuple(rank for rank in posted if rank in theirs and rank not in diverging)
        shown = tuple(rank for rank in diverging if rank in own or rank not in near.calls)
        return (peers, shown or diverging) if peers else None
    if cause.odd is None or cause.peers is None or cause.odd.signature == cause.peers.signature:
        return None
    columns = zip(zip(*cause.aligned, strict=True), (cause.peers, cause.odd), strict=True)
    sides = [
        tuple(rank for rank in _posted(near, call) if rank in _agree(near, column))
        for column, call in columns
    ]
    return (sides[0], sides[1]) if {*sides[0], *sides[1]} == set(near.calls) else None


def shown_groups(
    near: Neighbourhood, cause: Finding, most: int
) -> tuple[list[list[int]], list[int]]:
    """Return the ranks that posted the same calls, a list for each group, and hidden ranks.

    Diverging ranks and candidates are last, and are shown first of all.

    Args:
        near: Calls around the first difference.
        cause: Cause of the verdict.
        most: Most groups to show.
    """
    by_shape = differ_by_shape(cause)
    groups: dict[tuple[object, ...], list[int]] = {}
    for rank, calls in sorted(near.calls.items()):
        posted = ((seq, one.signature, by_shape and one.shape) for seq, one in calls.items())
        groups.setdefault(tuple(posted), []).append(rank)
    concerned = {*cause.diverging_ranks, *cause.candidate_ranks}
    odd = () if cause.odd is None else _posted(near, cause.odd)
    found = sorted(
        groups.values(),
        key=lambda ranks: (not concerned.isdisjoint(ranks), ranks[0] in odd, ranks),
    )
    last = sum(not concerned.isdisjoint(ranks) for ranks in found)
    last = min(last, most) if last < len(found) else 1
    shown = found if len(found) <= most else [*found[: most - last], *found[-last:]]
    return shown, [rank for ranks in found if ranks not in shown for rank in ranks]


def differ_by_shape(cause: Finding) -> bool:
    """Return whether a cause is about shapes, which a signature of an all_to_all leaves out."""
    return cause.kind in ("split_mismatch", "size_mismatch")


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


def _agree(near: Neighbourhood, column: Iterable[Call | None]) -> frozenset[int]:
    """Return the ranks that posted no other calls than those of a column, as far as they are."""
    shown = {call.seq: call.signature for call in column if call is not None}
    return frozenset(
        rank
        for rank, calls in near.calls.items()
        if all(shown.get(seq, call.signature) == call.signature for seq, call in calls.items())
    )
