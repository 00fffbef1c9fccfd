"""Judge a job by the stacks of all ranks, where no calls were recorded.

A stack shows where a rank is, not how it got there, so no conclusion is certain. A minority that
waits in a call has diverged; where the majority waits, the minority elsewhere is missing; in a
tie, no rank is named.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from ncclscope.engine.processes.ended import judge_gone, judge_stopped, judge_unread, may_wait_for
from ncclscope.engine.processes.frames import COLLECTIVES, INIT_OPS, POSTED_BY_CPP
from ncclscope.engine.processes.groups import (
    group_named_by,
    groups_of,
    parts_of,
    within_groups,
)
from ncclscope.engine.processes.judgement import (
    HANG_SECONDS,
    LONG_GAP,
    Judgement,
    unless_idle,
    unless_late,
)
from ncclscope.engine.processes.lone import COLLECTING, SENDING, Group, may_pass
from ncclscope.engine.processes.motion import IDLE, Motion
from ncclscope.engine.processes.stack_classes import (
    LineOrder,
    StackClass,
    classify,
    common_depth,
    divergence_of,
    order_of,
    seen,
    waiting_text,
)
from ncclscope.model import Blame
from ncclscope.wording.names import be, ranks_text, sentence
from ncclscope.wording.stacks import Seen

__all__ = ["HANG_SECONDS", "LONG_GAP", "Judgement", "judge_stacks"]

_MESSAGES = frozenset({"send", "recv", "p2p"})
_KNOWN = frozenset(COLLECTIVES) | POSTED_BY_CPP
"""Operations that are one call, wherever ranks are in it: not all waits for works are."""
_FROM_ANY = frozenset({"wait", "store"})
"""Waits that one peer ends, which need not be in the same call."""
_RENDEZVOUS = "init_process_group"
"""The operation that all ranks come through before any other."""
_STUCK = frozenset({"lock", "file", "socket", "data", "child"})
"""Waits that do not occur in an idle job."""
_OUTSIDE = _STUCK | {"poll", "sleep"}
"""Waits for something outside of the job."""
_SHARED = 2
_MAIN = "MainThread"


def judge_stacks(
    motions: Sequence[Motion], gap: float, missing: Sequence[int] = ()
) -> list[Judgement]:
    """Return which ranks diverged or are missing; nothing where all agree.

    Args:
        motions: The motion of each rank.
        gap: Seconds between the first and the last sample.
        missing: Ranks that should run on this host and have no process.

    Returns:
        A judgement for each part of the job that waits by itself; one for those together in which
        no rank is named.
    """
    groups = groups_of([motion.worker for motion in motions])
    world = max((motion.worker.world_size for motion in motions), default=0)
    unseen = max(0, world - len(motions))
    parts = [frozenset(one.rank for one in motions)] if missing else parts_of(motions, groups)

    def judged(part: Group) -> Judgement | None:
        within = None if groups is None else frozenset(one for one in groups if one <= part)
        own = [motion for motion in motions if motion.rank in part]
        return _judge(own, gap, missing, unseen, within)

    found = [(part, one) for part in parts if (one := judged(part)) is not None]
    undecided = [part for part, one in found if not one.diverging_ranks]
    if len(undecided) > 1:
        found = [(part, one) for part, one in found if one.diverging_ranks]
        whole = frozenset().union(*undecided)
        found += [(whole, one) for one in [judged(whole)] if one is not None]
    return [one for _, one in sorted(found, key=lambda each: not each[1].diverging_ranks)]


def _judge(
    motions: Sequence[Motion],
    gap: float,
    missing: Sequence[int],
    unseen: int,
    groups: frozenset[Group] | None,
) -> Judgement | None:
    by: dict[str, list[Motion]] = {}
    for motion in motions:
        by.setdefault(motion.condition, []).append(motion)
    still, moving = by.get("still", []), by.get("moving", [])
    gone = [*missing, *(motion.rank for motion in by.get("ended", []))]
    waiting = [motion for motion in still if motion.is_waiting]
    elsewhere = [motion for motion in still if not motion.is_waiting]
    if len(motions) + len(missing) < 2:
        return None
    if gone and (not waiting or any(may_wait_for(one, gone) for one in waiting)):
        return judge_gone(gone, waiting, moving, elsewhere, gap)
    if by.get("stopped"):
        return judge_stopped(by["stopped"], waiting, still, moving, gap)
    if moving:
        return _late(moving, waiting, elsewhere, gap)
    if by.get("unread"):
        return judge_unread(by["unread"], waiting, elsewhere, gap)
    if not waiting:
        return _nobody_waits(elsewhere, gap)
    if elsewhere:
        late = unless_late(_not_joined(waiting, elsewhere, gap, unseen), gap)
        found: Judgement | None = unless_idle(late, waiting, elsewhere)
    else:
        found = _apart(waiting, gap, unseen)
    return None if found is None else within_groups(found, motions, groups)


def _late(
    moving: Sequence[Motion], waiting: Sequence[Motion], elsewhere: Sequence[Motion], gap: float
) -> Judgement | None:
    """Judge ranks that move while others wait for them: late, or in an endless loop."""
    others = [*moving, *elsewhere]
    if not waiting:
        return None
    classes = classify(waiting)
    evidence = (
        *seen([*classes, *classify(elsewhere)], gap),
        *(f"proc: rank {motion.rank}: {motion.why}" for motion in moving),
    )
    if len(waiting) < len(others):
        if gap < HANG_SECONDS or elsewhere:
            return None
        return Judgement(
            kind="extra_call",
            summary=Seen.STILL_JOIN.of(
                waiting_text(classes), gap, [motion.rank for motion in moving]
            ),
            blame=Blame.among(sorted(motion.rank for motion in waiting)),
            role="latent",
            odd=waiting[0],
            peers=moving[0],
            evidence=evidence,
            seen_seconds=gap,
        )
    if len(waiting) == len(others) > 1:
        return None
    ranks = tuple(sorted(motion.rank for motion in others))
    one = moving[0]
    return unless_late(
        Judgement(
            kind="late",
            summary=(Seen.LATE if one.work or one.wakes is not None else Seen.AT_WORK_LATE).of(
                [motion.rank for motion in moving], one.remarked(one.why), waiting_text(classes)
            ),
            blame=Blame.on(ranks),
            odd=one,
            peers=classes[0].motion,
            evidence=evidence,
        ),
        gap,
        LONG_GAP,
    )


def _not_joined(
    waiting: Sequence[Motion], elsewhere: Sequence[Motion], gap: float, unseen: int
) -> Judgement:
    """Judge ranks that wait for their peers, while others are elsewhere and wait for none."""
    inside, others = classify(waiting), classify(elsewhere)
    evidence = seen([*inside, *others], gap)
    few, many = len(waiting), len(elsewhere)
    alone = few == many == 1 and elsewhere[0].waits != "queue"
    if few > many or alone:
        places = "; ".join(Seen.PLACE.of(group) for group in others)
        summary = f"{sentence(places)}, {_relation(others, inside)} {waiting_text(inside)}."
        return _named(_missing_kind(waiting), summary, others, inside, evidence)
    ops = {motion.op for motion in waiting}
    # Those that wait outside of the job may keep the others waiting, whatever their number.
    outside = sum(motion.waits in _OUTSIDE for motion in elsewhere)
    is_posted = len(ops) == 1 and not ops & (_MESSAGES | {None})
    if few + unseen < many and 2 * outside <= many and is_posted:
        places = "; ".join(Seen.PLACE.of(group) for group in others[:3])
        summary = Seen.MOST_NOT.of(waiting_text(inside), places)
        return _named("extra_call", summary, inside, others, evidence)
    return _undecided([*inside, *others], "not_joined", evidence)


def _missing_kind(waiting: Sequence[Motion]) -> str:
    return "init_stalled" if all(s.op in INIT_OPS for s in waiting) else "not_joined"


def _relation(odd: Sequence[StackClass], peers: Sequence[StackClass]) -> str:
    """Return how the diverging ranks relate to the waiting ones, as far as counters show it."""
    found = order_of(odd[0].motion, peers[0].motions) if len(odd) == len(peers) == 1 else None
    return str(Seen.NOT_WHERE) if found is None else f"{found.relation} where"


def _apart(waiting: Sequence[Motion], gap: float, unseen: int) -> Judgement | None:
    """Judge ranks that all wait, in one place or in several."""
    classes = classify(waiting)
    if len(classes) == 1:
        return _same_place(classes[0], gap)
    found = _apart_places(waiting, classes, gap)
    ops = {motion.op for motion in waiting}
    # Ranks that all wait in different collectives wait for each other, and cannot be merely late.
    # A transfer takes CPU time; work in C++ or on a GPU is not visible.
    is_closed = (
        not unseen and len(ops) > 1 and all(s.op in COLLECTIVES and s.cpu < IDLE for s in waiting)
    )
    return unless_late(found, gap, 0.0 if is_closed else HANG_SECONDS)


def _apart_places(
    waiting: Sequence[Motion], classes: Sequence[StackClass], gap: float
) -> Judgement:
    evidence = seen(classes, gap)
    ops = Counter(motion.op for motion in waiting)
    common, count = ops.most_common(1)[0]
    majority, odd = [classes[0]], list(classes[1:])
    is_split = 2 * len(classes[0].ranks) <= len(waiting) < 2 * count
    if is_split and count < len(waiting) and common in _KNOWN:
        # Most are in one call, at several lines.
        majority = [group for group in classes if group.motion.op == common]
        odd = [group for group in classes if group.motion.op != common]
        if any(_is_of_another_iteration(one, majority[0]) for one in majority[1:]):
            return _undecided(classes, "not_joined", evidence)
    kind = _difference_kind(majority[0].motion, odd[0].motion)
    if majority[0].motion.op == _RENDEZVOUS and not {one.motion.op for one in odd} & INIT_OPS:
        # Whoever has come through it is not what keeps the others in it.
        inside = sorted(rank for group in majority for rank in group.ranks)
        return _undecided(classes, kind, evidence, tuple(inside))
    count = sum(len(group.ranks) for group in majority)
    is_half = 2 * count == len(waiting) and all(len(one.ranks) < count for one in odd)
    # A rank that waits for a message or a key waits for a peer that its stack does not name.
    sides = (majority[0], *odd)
    by_message = ops.keys() & _MESSAGES or any(one.motion.op in _FROM_ANY for one in sides)
    if by_message or (2 * count <= len(waiting) and not is_half):
        return _undecided(classes, kind, evidence)
    if _may_have_passed(majority, odd):
        return _undecided(classes, kind, evidence)
    ranks = sorted(rank for group in odd for rank in group.ranks)
    if len(odd) > 1:
        return _undecided(classes, kind, evidence, () if is_half else tuple(ranks))
    rounds = {rank: found for group in majority for rank, found in _rounds(group).items()}
    if rounds and 2 * len(rounds) < count:  # the majority is no single call
        return replace(
            _undecided(classes, "not_joined", evidence, tuple(sorted({*ranks, *rounds}))),
            inferred=tuple(_round_text(rank, one) for rank, one in rounds.items()),
        )
    places = "; ".join(Seen.PLACE.of(group) for group in majority[:3])
    summary = f"{sentence(Seen.PLACE.of(odd[0]))}, while {places}."
    return _named(kind, summary, odd, majority, evidence)


def _may_have_passed(majority: Sequence[StackClass], odd: Sequence[StackClass]) -> bool:
    """Return whether some ranks may be ahead of others, past a call with a root.

    Senders go on from a reduction while others wait in it, and receivers from a root that waits
    for one of them.
    """
    inside, apart = ([one for each in some for one in each.motions] for some in (majority, odd))
    sent = any(
        one.op in COLLECTING and may_pass(one, other.rank) for one in inside for other in apart
    )
    has_root = any(one.rank in one.frames[-1].peers for one in apart)
    return sent or (len(apart) > 1 and has_root and all(one.op in SENDING for one in apart))


def _is_of_another_iteration(one: StackClass, other: StackClass) -> bool:
    """Return whether ranks are in calls of two iterations, as far as these may be on one group."""
    names = [group_named_by(group.motion) for group in (one, other)]
    return names[0] == names[1] and order_of(one.motion, other.motions) is not None


def _difference_kind(peer: Motion, odd: Motion) -> str:
    """Return the kind of finding for a rank that waits elsewhere than the majority."""
    if peer.op == odd.op or {peer.op, odd.op} & (_MESSAGES | {None}) or odd.op in _FROM_ANY:
        return "not_joined"
    if (peer.thread == _MAIN) != (odd.thread == _MAIN):
        return "not_joined"  # another thread of the rank may be in the call, or is missing
    if peer.op in INIT_OPS:
        return "init_stalled"
    are_known = all(motion.op in _KNOWN - INIT_OPS for motion in (peer, odd))
    return "op_mismatch" if are_known else "extra_call"


def _same_place(group: StackClass, gap: float) -> Judgement | None:
    """Judge ranks that all wait in one place, perhaps in different iterations of a loop."""
    if group.motion.op is None:
        return None
    rounds = _rounds(group)
    # A transfer that is a step ahead has been completed by one peer, as in any pipeline.
    is_shared = group.motion.op not in _MESSAGES | _FROM_ANY
    odd = tuple(rounds) if is_shared and 2 * len(rounds) < len(group.ranks) else ()
    kind = "init_stalled" if group.motion.op in INIT_OPS else "stalled"
    if odd:
        ahead = all(found.ahead for found in rounds.values())
        kind = "extra_call" if ahead else "not_joined"
    lines = tuple(_round_text(rank, found) for rank, found in rounds.items())
    named = f" {sentence('; '.join(lines[:2]))}." if odd else ""
    return unless_late(
        Judgement(
            kind=kind,
            summary=Seen.ONE_PLACE.of(group.motion.text, gap, named),
            blame=Blame.on(odd) if odd else Blame.among(group.ranks),
            # One line may post on several groups, in which ranks wait for each other in a cycle.
            odd=next((s for s in group.motions if s.rank in odd), group.motion),
            peers=next((s for s in group.motions if s.rank not in odd), group.motion),
            evidence=seen([group], gap),
            inferred=lines,
        ),
        gap,
    )


def _round_text(rank: int, found: LineOrder) -> str:
    return Seen.OTHER_ROUND.of(rank, "ahead of" if found.ahead else "behind", found.reason)


def _rounds(group: StackClass) -> dict[int, LineOrder]:
    """Return ranks that wait in the same line as all others, but in another loop iteration."""
    found = {}
    for motion in group.motions:
        peers = [other for other in group.motions if other is not motion]
        order = order_of(motion, peers) if len(peers) > 1 else None
        if order is not None:
            found[motion.rank] = order
    return found


def _nobody_waits(elsewhere: Sequence[Motion], gap: float) -> Judgement | None:
    """Judge ranks that do not move although none is seen to wait for a peer.

    Ranks that wait for work in a queue are idle. Otherwise, a minority apart from a majority in
    the same code suggests kernels that wait on the GPU, invisible to Python.
    """
    classes = classify(elsewhere)
    if all(motion.waits == "queue" for motion in elsewhere):
        return None
    first, rest = classes[0], classes[1:]
    frames = first.motion.frames
    alike = all(common_depth(group.motion.frames, frames) >= _SHARED for group in rest)
    if rest and first.motion.waits is None and len(elsewhere) > 2 and alike:
        evidence = seen(classes, gap)
        if len(first.ranks) * 2 <= len(elsewhere) or len(rest) > 1:
            return unless_late(_undecided(classes, "not_joined", evidence), gap)
        summary = Seen.NONE_MOVES.of(Seen.PLACE.of(rest[0]), Seen.PLACE.of(first))
        return unless_late(_named("not_joined", summary, rest, [first], evidence), gap)
    stuck = all(motion.waits in _STUCK for motion in elsewhere)
    return Judgement(
        kind="stalled",
        summary=Seen.NO_WAIT.of(gap, "; ".join(Seen.PLACE.of(group) for group in classes[:4])),
        blame=Blame.among(sorted(motion.rank for motion in elsewhere)),
        role="cause" if stuck and gap >= HANG_SECONDS else "latent",
        odd=first.motion,
        peers=first.motion,
        evidence=seen(classes, gap),
        seen_seconds=gap,
        is_open=stuck and gap < HANG_SECONDS,
    )


def _named(
    kind: str,
    summary: str,
    odd: Sequence[StackClass],
    peers: Sequence[StackClass],
    evidence: tuple[str, ...],
) -> Judgement:
    return Judgement(
        kind=kind,
        summary=summary,
        blame=Blame.on(sorted(rank for group in odd for rank in group.ranks)),
        odd=odd[0].motion,
        peers=peers[0].motion,
        evidence=evidence,
        inferred=_order_text(odd, peers),
    )


def _undecided(
    classes: Sequence[StackClass],
    kind: str,
    evidence: tuple[str, ...],
    candidates: tuple[int, ...] = (),
) -> Judgement:
    everybody = tuple(sorted(rank for group in classes for rank in group.ranks))
    places = "; ".join(Seen.PLACE.of(group) for group in classes[:4])
    more = Seen.MORE_PLACES.of(len(classes) - 4) if len(classes) > 4 else ""
    counts = " against ".join(str(len(group.ranks)) for group in classes[:4])
    return Judgement(
        kind=kind,
        summary=Seen.UNDECIDED.of(f"{sentence(places)}{more}", counts),
        blame=Blame.among(candidates or everybody),
        odd=classes[-1].motion,
        peers=classes[0].motion,
        evidence=evidence,
    )


def _order_text(odd: Sequence[StackClass], peers: Sequence[StackClass]) -> tuple[str, ...]:
    """Return which ranks are ahead, where a loop counter shows it; else where stacks differ."""
    lines = []
    for group in odd:
        found = order_of(group.motion, peers[0].motions)
        if found is not None:
            lines.append(
                f"{ranks_text(group.ranks)} {be(group.ranks)} {found.relation} "
                f"{ranks_text(peers[0].ranks)}: {found.reason}"
            )
        elif (place := divergence_of(group.motion, peers[0].motion)) is not None:
            lines.append(Seen.DIFFER.of(place))
    return tuple(lines)
