"""Find the ranks of which each alone may be what keeps all others waiting in their calls.

All ranks of a program make the same calls in one order, except for the one that diverged. If one
rank is left aside, the calls in which the others wait must have an order: who has not come to a
call is in an earlier one. Where they have none, that rank is not alone to blame.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ncclscope.engine.processes.frames import COLLECTIVES, INIT_OPS, TRANSFERS, is_library
from ncclscope.engine.processes.motion import Motion
from ncclscope.engine.processes.stack_classes import StackClass, classify, common_depth, order_of

Group = frozenset[int]
"""Global ranks of the members."""

SENDING = frozenset({"broadcast", "scatter"})
"""Calls of which the receivers go on, whereas the root waits for each that has not come."""
MOST_RANKS = 64
"""Ranks up to which orders are sought: all others are weighed against each of them."""
COLLECTING = frozenset({"gather", "reduce"})
"""Calls of which the senders may go on, whereas the root waits for each that has not come."""


def lone_faults(motions: Mapping[int, Motion], waits: Mapping[int, Sequence[Group]]) -> set[int]:
    """Return the ranks of which each alone may have diverged; none where that cannot be concluded.

    Args:
        motions: The motion of each rank; all have to wait in collectives.
        waits: The groups in whose calls each rank may wait.
    """
    ops = {motion.op if motion.is_waiting else None for motion in motions.values()}
    if not ops <= COLLECTIVES - INIT_OPS - TRANSFERS or not all(waits[rank] for rank in motions):
        return set()
    places = classify(motions.values())
    if any(order_of(one, [place.motion]) for place in places for one in place.motions):
        return set()  # calls of one line, in several iterations
    found = {rank for rank in motions if _has_order(places, rank, waits)}
    apart = {rank for place in places for rank in place.ranks if len(place.ranks) == 1}
    return found if found <= apart else set()  # of two faults, each may explain the other's calls


def _has_order(
    places: Sequence[StackClass], fault: int, waits: Mapping[int, Sequence[Group]]
) -> bool:
    """Return whether the calls in which all ranks but one wait may be in one order."""
    at = {rank: place for place in places for rank in place.ranks if rank != fault}
    left = [place for place in places if {*place.ranks} != {fault}]
    while left:
        nexts = [
            place
            for place in left
            if not any(_is_later(place, other) for other in left)
            and all(
                any(_waits_for(one, group, at, left) for group in waits[one.rank])
                for one in place.motions
                if one.rank != fault
            )
        ]
        if not nexts:
            return False
        left = [place for place in left if place not in nexts]
    return True


def _waits_for(
    motion: Motion, group: Group, at: Mapping[int, StackClass], left: Sequence[StackClass]
) -> bool:
    """Return whether a rank may wait in a group while its members are in calls that come later.

    Args:
        motion: The motion of the rank.
        group: The group.
        at: Where each rank is, but for the one that diverged.
        left: The calls that are not earlier.
    """
    own = at[motion.rank]
    others = [at.get(rank) for rank in group - {motion.rank}]
    if all(place is own for place in others):
        return False  # they have met
    return not any(
        place in left and place is not own and not may_pass(motion, rank)
        for rank in group - {motion.rank}
        if (place := at.get(rank)) is not None
    )


def may_pass(motion: Motion, rank: int) -> bool:
    """Return whether a rank may have come past the call of a group in which another one waits.

    Args:
        motion: The one that waits.
        rank: The other rank.
    """
    roots = motion.frames[-1].peers
    if motion.op in SENDING:
        return not roots or motion.rank in roots
    return motion.op in COLLECTING and rank not in roots


def _is_later(place: StackClass, other: StackClass) -> bool:
    """Return whether loop counters, or lines of one iteration, show that a call is later."""
    if place is other:
        return False
    order = order_of(place.motion, other.motions)
    if order is not None:
        return order.ahead
    ours, theirs = place.motion.frames, other.motion.frames
    depth = common_depth(ours, theirs)
    shared = [*zip(ours[:depth], theirs[:depth], strict=True)]
    if not shared or not shared[-1][0].loop or shared[-1][0].loop != shared[-1][1].loop:
        return False
    alike = all(
        not is_library(one) and one.counters == each.counters and (one.counters or not one.loop)
        for one, each in shared
    )
    return alike and shared[-1][0].line > shared[-1][1].line
