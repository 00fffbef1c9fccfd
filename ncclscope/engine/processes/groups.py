"""Weigh a verdict from stacks by the process groups in which the ranks may wait.

A rank that waits in a call of a smaller group waits for the members of that group, wherever all
other ranks are. Stacks show whether a call names a group, or a peer, and connections show which
groups exist.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from ncclscope.engine.processes.frames import INIT_OPS, TRANSFERS
from ncclscope.engine.processes.judgement import Judgement
from ncclscope.engine.processes.lone import MOST_RANKS, SENDING, Group, lone_faults
from ncclscope.engine.processes.motion import Motion
from ncclscope.engine.processes.stack_classes import (
    classify,
    has_left_loop,
    is_first_in_loop,
    order_of,
)
from ncclscope.model import Blame
from ncclscope.model.snapshot import Worker
from ncclscope.wording.names import sentence
from ncclscope.wording.stacks import Seen

_C10D = re.compile(r"(?:^|/)torch/distributed/")
_USES_GPU = re.compile(r"cuda|nccl", re.IGNORECASE)
_DEFAULT, _GIVEN = "default", "given"
_OF_NO_GROUP = frozenset({"wait", "store", "p2p"})
"""Waits whose group the stack does not show."""
_MOST_RANKS = 256


def groups_of(workers: Sequence[Worker]) -> frozenset[Group] | None:
    """Return the process groups of a job, as the connections of gloo show them.

    In each group a rank listens on a port of its own, and is connected to all members. Of two, the
    one with the lower port accepts. So the ranks accept from all, from all but one, and so on: a
    group of ranks 0 1 2 is seen as ``{0 1 2}`` at one of them and as the rest at the next.

    Args:
        workers: The processes of the job.

    Returns:
        None where the connections do not show all groups: those of other hosts, of ranks without
        a process, and of NCCL are not seen.
    """
    everyone = frozenset(worker.rank for worker in workers)
    threads = {name for one in workers for sample in one.samples for name in sample.threads}
    is_whole = all(one.world_size == len(everyone) and not one.host for one in workers)
    if not is_whole or any(map(_USES_GPU.search, threads)):
        return None
    seen: Counter[Group] = Counter()
    for worker in workers:
        for peers in worker.accepted:
            members = frozenset({worker.rank, *peers})
            if len(members) <= len(peers) or -1 in members:
                continue  # another server: a rank is connected twice, with itself, or is no rank
            seen[members] += 1
            seen[members - {worker.rank}] -= 1
    found = {members: count for members, count in seen.items() if len(members) > 1 and count}
    if everyone not in found or min(found.values()) < 0:
        return None
    return frozenset(found)


def parts_of(motions: Sequence[Motion], groups: frozenset[Group] | None) -> list[Group]:
    """Return the ranks that no wait joins to the others, part by part: each has its own cause.

    Ranks that all wait in smaller groups, and there for each other alone, are a part. One that may
    wait for all ranks joins the others. If none of these is elsewhere, they wait for such parts.

    Args:
        motions: The motion of each rank of the job.
        groups: The process groups; None where they are not known.
    """
    by_rank = {motion.rank: motion for motion in motions}
    if any(motion.condition != "still" for motion in motions):
        return [frozenset(by_rank)]  # what moves may come to any of them
    own = _smaller_groups(by_rank, groups)
    parts: list[Group] = []
    for some in own.values():
        ranks = frozenset().union(*some)
        near = [one for one in parts if not one.isdisjoint(ranks)]
        parts = [one for one in parts if one.isdisjoint(ranks)]
        parts.append(ranks.union(*near))
    waiting = frozenset(rank for rank, motion in by_rank.items() if motion.is_waiting)
    if not waiting <= own.keys():
        parts = [one for one in parts if one <= own.keys()]
        rest = frozenset(by_rank).difference(*parts)
        parts += [] if parts and rest <= waiting else [rest]
    return sorted(parts, key=min) or [frozenset(by_rank)]


def _smaller_groups(
    motions: Mapping[int, Motion], groups: frozenset[Group] | None
) -> dict[int, Sequence[Group]]:
    """Return the groups in whose calls ranks may wait, for those that do not wait for all ranks.

    Members that are all in one call of a group have met in it, and wait in another one.
    """
    everyone = frozenset(motions)
    own = {
        rank: [group for group in _groups_of_call(rank, motions, groups) if group < everyone]
        for rank in motions
    }
    while met := [
        (rank, group)
        for rank, some in own.items()
        for group in some
        if motions[rank].op not in TRANSFERS
        and all(own[one] == [group] and _is_with(motions[one], motions[rank]) for one in group)
    ]:
        for rank, group in met:
            own[rank].remove(group)
    return {rank: some for rank, some in own.items() if some}


def _smaller(groups: Collection[Group] | None, motions: Mapping[int, Motion]) -> list[Group]:
    """Return the groups without some rank of the job, of which the motions may be a part."""
    world = max(motion.worker.world_size for motion in motions.values())
    return [group for group in groups or () if len(group) < max(world, len(motions))]


def _is_with(one: Motion, other: Motion) -> bool:
    """Return whether two ranks are at one place, in the same iterations of its loops."""
    return one.key == other.key and order_of(one, [other]) is None


def within_groups(
    found: Judgement, motions: Sequence[Motion], groups: frozenset[Group] | None
) -> Judgement:
    """Return a judgement by a majority of all ranks, unless smaller groups decide otherwise.

    Where they do not decide, the order of the calls may: see :mod:`.lone`.

    Args:
        found: The judgement.
        motions: The motion of each rank.
        groups: The process groups; None where they are not known.
    """
    weighed = _weighed(found, motions, groups)
    if weighed.diverging_ranks or weighed.role != "cause" or len(motions) > MOST_RANKS:
        return weighed
    by_rank = {motion.rank: motion for motion in motions}
    waits = {rank: _groups_of_call(rank, by_rank, groups) for rank in by_rank}
    lone = lone_faults(by_rank, waits)
    if len(lone) != 1 or not lone <= {*weighed.candidate_ranks}:
        return weighed
    return _named_alone(weighed, min(lone), by_rank)


def _named_alone(found: Judgement, rank: int, motions: Mapping[int, Motion]) -> Judgement:
    places = classify(motions.values())
    own = next(one for one in places if rank in one.ranks)
    others = [one for one in places if one is not own]
    rest = "; ".join(map(Seen.PLACE.of, others))
    named = replace(
        found,
        summary=f"{sentence(Seen.PLACE.of(own))}, while {rest}.",
        notes=(),
        blame=Blame.on((rank,)),
        odd=motions[rank],
        peers=others[0].motion,
    )
    return named.with_note(str(Seen.NO_ORDER))


def _weighed(
    found: Judgement, motions: Sequence[Motion], groups: frozenset[Group] | None
) -> Judgement:
    """Return a judgement by a majority of all ranks, unless smaller groups decide otherwise.

    A rank is named only where it is in a minority of each group in which it may wait; otherwise the
    other members of the group are candidates, too. Where nobody is named, only those are candidates
    in whom all chains of waiting end.

    Args:
        found: The judgement.
        motions: The motion of each rank.
        groups: The process groups; None where they are not known.
    """
    by_rank = {motion.rank: motion for motion in motions}
    apart = frozenset(found.diverging_ranks or found.candidate_ranks)
    if not apart or not apart <= by_rank.keys():
        return found
    members = _members_alone(found, by_rank, groups)
    if members is not found:
        return members
    waits = {rank: _groups_of_call(rank, by_rank, groups) for rank in by_rank}
    if apart == by_rank.keys():
        return _narrowed(found, by_rank, waits)
    if not found.candidate_ranks and _are_of_several_groups(by_rank, apart, groups):
        return found.with_note(Seen.SEVERAL_GROUPS.of({*by_rank} - apart)).undecided(by_rank)
    if beside := _stuck_beside(by_rank, apart, groups):
        return found.with_note(Seen.BESIDE_GROUPS.of(beside, apart)).undecided(
            sorted(apart | beside)
        )
    may_send = _may_send(by_rank[min(apart)], apart) and _may_have_passed(by_rank, apart)
    added: set[int] = set()
    for rank in apart:
        for group in waits[rank] or _any_pair(rank, by_rank, apart):
            if may_send or 2 * len(group & apart) >= len(group):
                added |= group - apart
    if not added and _have_met(by_rank, apart, waits):
        note = Seen.HAVE_MET.of(apart)
        return found.with_note(note).undecided(sorted(apart))
    if not added or _have_gone_another_way(by_rank, apart):
        return found
    said = Seen.MAY_SEND if may_send else Seen.SMALLER_GROUP
    note = said.of(apart, added)
    if not may_send and _is_majority_of_one_group(by_rank, apart, waits):
        odd, peers = by_rank[min(added)], by_rank[min(apart)]
        return replace(
            found.with_note(note),
            kind="not_joined",
            blame=Blame.on(sorted(added)),
            odd=odd,
            peers=peers,
        )
    return replace(
        found.with_note(note).undecided(sorted(apart | added)),
        kind="not_joined",
    )


def _members_alone(
    found: Judgement, motions: Mapping[int, Motion], groups: frozenset[Group] | None
) -> Judgement:
    """Return a judgement on ranks elsewhere, without those of no group in which the others wait.

    Where the members of that group are not known, each of several ranks is a candidate.
    """
    apart = frozenset(found.diverging_ranks)
    others = frozenset(motions) - apart
    if len(apart) < 2 or any(motions[rank].is_waiting for rank in apart):
        return found
    if {group_named_by(motions[rank]) for rank in others} != {_GIVEN}:
        return found
    smaller = [one for one in _smaller(groups, motions) if others < one]
    if len(smaller) != 1:
        return found.undecided(sorted(apart))
    (group,) = smaller
    members = group & apart
    odd = min(members)
    note = Seen.OF_GROUP.of(group, members)
    return replace(found.with_note(note), blame=Blame.on(sorted(members)), odd=motions[odd])


def _is_majority_of_one_group(
    motions: Mapping[int, Motion], apart: Collection[int], waits: Mapping[int, Sequence[Group]]
) -> bool:
    """Return whether ranks in one call are most of the only smaller group in which they may wait.

    The rest of that group has gone on to a call of all ranks, which such a group has come past.
    """
    first, *others = (_smaller(waits[rank], motions) for rank in apart)
    if len(first) != 1 or any(one != first for one in others):
        return False
    (group,) = first
    absent = [motions[rank] for rank in group.difference(apart)]
    alike = len({motions[rank].key for rank in apart}) == 1
    return (
        alike
        and 2 * len(absent) < len(group)
        and all(one.is_waiting and group_named_by(one) == _DEFAULT for one in absent)
    )


def _may_send(motion: Motion, apart: Collection[int]) -> bool:
    """Return whether a rank alone may wait for a receiver, of which others have gone on.

    Where its call names another rank as the source, it waits for that one.
    """
    if len(apart) != 1 or motion.op not in SENDING or group_named_by(motion) != _DEFAULT:
        return False
    source = motion.frames[-1].peers
    return not source or motion.rank in source


def _are_of_several_groups(
    motions: Mapping[int, Motion], apart: Collection[int], groups: frozenset[Group] | None
) -> bool:
    """Return whether the ranks of a majority name a group, and some may wait for each other alone.

    They are in groups without a rank apart, and in calls of several of them at that line.
    """
    others = frozenset(motions).difference(apart)
    named = {group_named_by(motions[rank]) for rank in others}
    if named != {_GIVEN} or {group_named_by(motions[rank]) for rank in apart} != {_DEFAULT}:
        return False
    smaller = [one for one in _smaller(groups, motions) if one.isdisjoint(apart)]
    own = {rank: [group for group in smaller if rank in group] for rank in others}
    left: Group = frozenset()
    while left != (left := frozenset(rank for rank in own if own[rank])):
        for rank in left:
            # A peer that may be in the call of another group keeps it waiting.
            own[rank] = [
                group
                for group in own[rank]
                if any(one != group for peer in group & left for one in own[peer])
            ]
    return bool(left)


def _stuck_beside(
    motions: Mapping[int, Motion], apart: Collection[int], groups: frozenset[Group] | None
) -> Group:
    """Return ranks that no group joins to those apart, and that are in different calls.

    What keeps them is among themselves, unless it is one that waits in a call of no known group.
    """
    smaller = _smaller(groups, motions)
    found: Group = frozenset()
    for start in smaller:
        joined, whole = frozenset[int](), start
        while joined != whole:
            joined = whole
            whole = joined.union(*(group for group in smaller if group & joined))
        named = {group_named_by(motions[rank]) for rank in whole}
        waits = all(motions[rank].is_waiting for rank in whole)
        if (
            waits
            and _GIVEN in named
            and _DEFAULT not in named
            and whole.isdisjoint(apart)
            and len({motions[rank].key for rank in whole}) > 1
        ):
            found |= whole
    return found


def _may_have_passed(motions: Mapping[int, Motion], apart: Collection[int]) -> bool:
    """Return whether others may have passed the call of a rank.

    Not if they are all in a loop that it has left for good.
    """
    return not all(
        has_left_loop(motions[rank], one) and not any(frame.loop for frame in motions[rank].frames)
        for rank in apart
        for number, one in motions.items()
        if number not in apart
    )


def _have_met(
    motions: Mapping[int, Motion], apart: Collection[int], waits: Mapping[int, Sequence[Group]]
) -> bool:
    """Return whether ranks in one call are behind all others, and are all of a group.

    All others have passed that call, in which they met in groups of their own. Such a group would
    have met as well, so that one of its members is wrong, and the rest waits for it.
    """
    behind = all(
        (order := order_of(motions[rank], [one])) is not None and not order.ahead
        for rank in apart
        for number, one in motions.items()
        if number not in apart
    )
    alike = len({motions[rank].key for rank in apart}) == 1
    return behind and alike and any(group <= {*apart} for rank in apart for group in waits[rank])


def _narrowed(
    found: Judgement, motions: Mapping[int, Motion], waits: Mapping[int, Sequence[Group]]
) -> Judgement:
    """Return a judgement that names nobody, with the ranks in whom all chains of waiting end.

    Args:
        found: The judgement.
        motions: The motion of each rank.
        waits: The groups in whose calls each rank may wait.
    """
    if len(motions) > _MOST_RANKS or not all(one.is_waiting for one in motions.values()):
        return found
    awaited = {rank: _awaited(rank, motions, waits) for rank in motions}
    reached = {rank: _reached(rank, awaited) for rank in motions}
    ends = {rank for rank, others in reached.items() if all(rank in reached[one] for one in others)}
    # In which cycle a rank is that may wait in several groups is not known.
    unknown = {rank for rank, groups in waits.items() if len(groups) != 1}
    ends |= {rank for one in unknown for rank in reached[one] if one in reached[rank]} | unknown
    if len(ends) == len(motions):
        return found
    return found.with_note(Seen.CHAINS_END.of(ends)).undecided(sorted(ends))


def _reached(start: int, awaited: Mapping[int, Group]) -> set[int]:
    found: set[int] = set()
    left = [start]
    while left:
        new = awaited[left.pop()] - found
        found |= new
        left += new
    return found


def _awaited(
    rank: int, motions: Mapping[int, Motion], waits: Mapping[int, Sequence[Group]]
) -> Group:
    """Return the ranks for which a rank may wait: all others, where nothing is known."""
    own = motions[rank]
    is_transfer = own.op in TRANSFERS
    found: Group = frozenset()
    for group in waits[rank]:
        found |= {
            other
            for other in group - {rank}
            if is_transfer or motions[other].key != own.key or group not in waits[other]
        }
    return found or frozenset(motions) - {rank}


def _groups_of_call(
    rank: int, motions: Mapping[int, Motion], groups: frozenset[Group] | None
) -> Sequence[Group]:
    """Return the groups in whose calls a rank may wait; none where that is not known."""
    motion, everyone = motions[rank], frozenset(motions)
    if not motion.is_waiting or motion.op is None or motion.op in _OF_NO_GROUP:
        return ()
    if motion.op in TRANSFERS:
        pair = frozenset({rank, *motion.frames[-1].peers})
        return [pair] if len(pair) > 1 and pair <= everyone else ()
    if motion.op in INIT_OPS or group_named_by(motion) == _DEFAULT:
        return [everyone]
    return [group for group in groups or () if rank in group]


def _any_pair(rank: int, motions: Mapping[int, Motion], apart: Collection[int]) -> Sequence[Group]:
    """Return all pairs with a rank, if it alone of all ranks names a group that is not known.

    Where no call is one of the default group, a framework may pass that group by name.
    """
    motion = motions[rank]
    others = {group_named_by(one) for number, one in motions.items() if number not in apart}
    if not motion.is_waiting or group_named_by(motion) != _GIVEN or _DEFAULT not in others:
        return ()
    return [frozenset({rank, number}) for number in motions if number != rank]


def group_named_by(motion: Motion) -> str:
    """Return whether the call in which a rank waits names a group; empty where not known."""
    named = ""
    for frame in reversed(motion.frames):
        if not _C10D.search(frame.file):
            break
        named = frame.group or named  # the outermost function has the arguments as passed
    return named


def _have_gone_another_way(motions: Mapping[int, Motion], apart: Collection[int]) -> bool:
    """Return whether loops show that each of these ranks made a call too many or too few.

    It is in a later iteration than all others, or in the first call of a loop that all others have
    left: before a later call it has met them once more.
    """
    return all(
        one.is_waiting
        and (
            (has_left_loop(one, motions[rank]) and is_first_in_loop(motions[rank], one))
            or _is_ahead(motions[rank], one)
        )
        for rank in apart
        for number, one in motions.items()
        if number not in apart
    )


def _is_ahead(one: Motion, other: Motion) -> bool:
    order = order_of(one, [other])
    return order is not None and order.ahead
