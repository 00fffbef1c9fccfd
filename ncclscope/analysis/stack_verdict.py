"""What the stacks of all ranks suggest, where nothing was recorded.

A stack says where a rank is, not how it came there, so nothing here is ever certain.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from ncclscope.analysis.stack_classes import StackClass, classify, common_depth, order_of
from ncclscope.analysis.stack_wording import place_text, seen, waiting_text
from ncclscope.analysis.stances import Stance
from ncclscope.analysis.wording import ranks_text, sentence

__all__ = ["LONG_GAP", "Judgement", "judge_stacks"]

LONG_GAP = 30.0
"""Seconds between samples from which ranks that have not moved are late no more, but stuck."""
_P2P = ("send", "recv")
_SHARED = 2


@dataclass(frozen=True)
class Judgement:
    """What one witness says.

    Attributes:
        kind: One of the kinds of the contract.
        summary: One or two sentences.
        diverging: Ranks it singles out.
        candidates: When it singles out none: those among which it lies.
        confidence: ``likely`` or ``ambiguous``.
        role: ``cause``, or ``latent`` where it may be nothing.
        odd: What a diverging rank was doing.
        peers: What the others were doing.
        evidence: What was seen.
        inferred: What follows from it.
    """

    kind: str
    summary: str
    diverging: tuple[int, ...] = ()
    candidates: tuple[int, ...] = ()
    confidence: str = "likely"
    role: str = "cause"
    odd: Stance | None = None
    peers: Stance | None = None
    evidence: tuple[str, ...] = ()
    inferred: tuple[str, ...] = field(default=())


def judge_stacks(
    stances: Sequence[Stance], gap: float, missing: Sequence[int] = ()
) -> Judgement | None:
    """Returns what stands apart; None where nothing does.

    Args:
        stances: What each rank was doing.
        gap: Seconds between the samples.
        missing: Ranks that should run on this host and have no process.
    """
    by: dict[str, list[Stance]] = {}
    for stance in stances:
        by.setdefault(stance.condition, []).append(stance)
    still, moving = by.get("still", []), by.get("moving", [])
    gone = [*missing, *(stance.rank for stance in by.get("ended", []))]
    waiting = [stance for stance in still if stance.is_waiting]
    elsewhere = [stance for stance in still if not stance.is_waiting]
    if len(stances) + len(missing) < 2:
        return None
    if gone:
        return _gone(gone, waiting, moving, gap)
    if by.get("stopped"):
        return _stopped(by["stopped"], waiting, still, moving, gap)
    if moving:
        return _late(moving, still, waiting, gap)
    if by.get("unread"):
        return _unread(by["unread"], waiting, elsewhere, gap)
    if waiting and elsewhere:
        return _not_joined(waiting, elsewhere, gap)
    if waiting:
        return _apart(waiting, gap)
    return _asleep(elsewhere, gap)


def _gone(
    gone: Sequence[int], waiting: Sequence[Stance], moving: Sequence[Stance], gap: float
) -> Judgement | None:
    if not waiting:
        return None
    ranks = tuple(sorted(gone))
    classes = classify(waiting)
    return Judgement(
        kind="dead_rank",
        summary=(
            f"{sentence(ranks_text(ranks))} {'has' if len(ranks) == 1 else 'have'} no living "
            f"process; {waiting_text(classes)}."
        ),
        diverging=ranks,
        role="latent" if moving else "cause",
        peers=classes[0].stance,
        evidence=(*seen(classes, gap), f"proc: {ranks_text(ranks)}: the process has ended"),
    )


def _stopped(
    stopped: Sequence[Stance],
    waiting: Sequence[Stance],
    still: Sequence[Stance],
    moving: Sequence[Stance],
    gap: float,
) -> Judgement:
    ranks = tuple(sorted(stance.rank for stance in stopped))
    proc = f"proc: {ranks_text(ranks)}: state T, stopped by a signal or a debugger"
    where = classify(stopped)
    if not still and not moving:
        return Judgement(
            kind="stalled",
            summary="All ranks are stopped by a signal (state T): nothing can move.",
            candidates=ranks,
            evidence=(proc, *seen(where, gap)),
            inferred=("kill -CONT lets a stopped process go on",),
        )
    classes = classify(waiting)
    rest = waiting_text(classes) if waiting else "nobody is seen to wait for it yet"
    be = "is" if len(ranks) == 1 else "are"
    return Judgement(
        kind="not_joined",
        summary=(
            f"{sentence(ranks_text(ranks))} {be} stopped by a signal (state T) at "
            f"{where[0].stance.text}; {rest}."
        ),
        diverging=ranks,
        role="latent" if moving or not waiting else "cause",
        odd=stopped[0],
        peers=classes[0].stance if classes else None,
        evidence=(proc, *seen([*where, *classes], gap)),
        inferred=("kill -CONT lets a stopped process go on",),
    )


def _late(
    moving: Sequence[Stance], still: Sequence[Stance], waiting: Sequence[Stance], gap: float
) -> Judgement | None:
    """Some move, the others wait for them: late, or in a loop that does not end."""
    if not waiting or len(waiting) < len(still) or len(moving) * 2 > len(moving) + len(still):
        return None
    ranks = tuple(sorted(stance.rank for stance in moving))
    classes = classify(waiting)
    if len(classes) > 1 or len(ranks) * 2 == len(moving) + len(still) > 2:
        return None
    long = gap >= LONG_GAP
    one = moving[0]
    what = f"{sentence(ranks_text(ranks))} {'is' if len(ranks) == 1 else 'are'} at work"
    return Judgement(
        kind="not_joined",
        summary=(
            f"{what} at {one.text} ({one.why}), and {waiting_text(classes)}: "
            + (
                f"for {gap:g} s it has not arrived."
                if long
                else "it may be late, or in a loop that does not end."
            )
        ),
        diverging=ranks if long else (),
        candidates=() if long else ranks,
        confidence="likely" if long else "ambiguous",
        role="cause" if long else "latent",
        odd=one,
        peers=classes[0].stance,
        evidence=(
            *seen(classes, gap),
            *(f"proc: rank {stance.rank}: {stance.why}" for stance in moving),
        ),
        inferred=() if long else (f"--gap {LONG_GAP:g} tells late from stuck",),
    )


def _unread(
    unread: Sequence[Stance], waiting: Sequence[Stance], elsewhere: Sequence[Stance], gap: float
) -> Judgement | None:
    classes = classify(waiting)
    if len(classes) != 1 or elsewhere:
        return None
    ranks = tuple(sorted(stance.rank for stance in unread))
    return Judgement(
        kind="not_joined",
        summary=(
            f"{sentence(waiting_text(classes))}; the stack of {ranks_text(ranks)} could not be "
            f"read, so whether it joined is not known."
        ),
        candidates=ranks,
        confidence="ambiguous",
        role="latent",
        peers=classes[0].stance,
        evidence=seen(classes, gap),
    )


def _not_joined(
    waiting: Sequence[Stance], elsewhere: Sequence[Stance], gap: float
) -> Judgement | None:
    """Some wait for their peers, and others stand where they wait for nobody."""
    inside, outside = classify(waiting), classify(elsewhere)
    evidence = seen([*inside, *outside], gap)
    ranks = tuple(sorted(stance.rank for stance in elsewhere))
    if len(waiting) > len(elsewhere) or len(waiting) == len(elsewhere) == 1:
        return Judgement(
            kind="not_joined",
            summary=(
                f"{sentence('; '.join(place_text(group) for group in outside))}, "
                f"{_relation(outside, inside)} {waiting_text(inside)}."
            ),
            diverging=ranks,
            odd=outside[0].stance,
            peers=inside[0].stance,
            evidence=evidence,
            inferred=(*_order_text(outside, inside), _PATIENCE),
        )
    alone = inside[0]
    if len(inside) == len(outside) == 1 and alone.stance.op and len(elsewhere) > len(waiting):
        return Judgement(
            kind="extra_call",
            summary=(
                f"{sentence(place_text(alone))}, alone; {place_text(outside[0])} and wait for "
                f"nobody."
            ),
            diverging=alone.ranks,
            odd=alone.stance,
            peers=outside[0].stance,
            evidence=evidence,
            inferred=(*_order_text(inside, outside), _PATIENCE),
        )
    return _undecided([*inside, *outside], "not_joined", evidence)


def _relation(odd: Sequence[StackClass], peers: Sequence[StackClass]) -> str:
    """How the odd ranks stand to those that wait, as far as a loop's counter tells."""
    found = order_of(odd[0].stance, peers[0].stances) if len(odd) == len(peers) == 1 else None
    if found is None or not found.counted:
        return "and has not arrived where"
    return f"{found.relation} where"


def _apart(waiting: Sequence[Stance], gap: float) -> Judgement | None:
    """All wait; are they in the same place?"""
    classes = classify(waiting)
    evidence = seen(classes, gap)
    first = classes[0]
    if len(classes) == 1:
        return _same_place(first, gap, evidence)
    ops = {group.stance.op for group in classes}
    kind = "op_mismatch" if len(ops) > 1 and None not in ops else "not_joined"
    if len(first.ranks) * 2 <= len(waiting) or ops & set(_P2P):
        return _undecided(classes, kind, evidence)
    rest = classes[1:]
    if len(rest) > 1:
        ranks = sorted(rank for group in rest for rank in group.ranks)
        return _undecided(classes, kind, evidence, tuple(ranks))
    odd = rest[0]
    return Judgement(
        kind=kind,
        summary=f"{sentence(place_text(odd))}, while {place_text(first)}.",
        diverging=odd.ranks,
        odd=odd.stance,
        peers=first.stance,
        evidence=evidence,
        inferred=_order_text(rest, [first]),
    )


def _same_place(group: StackClass, gap: float, evidence: tuple[str, ...]) -> Judgement | None:
    if group.stance.op is None:
        return None
    long = gap >= LONG_GAP
    return Judgement(
        kind="stalled",
        summary=(
            f"All ranks stand in {group.stance.text}, and nothing moved for {gap:g} s"
            + ("." if long else ": a stall if it lasts.")
        ),
        candidates=() if long else group.ranks,
        confidence="likely" if long else "ambiguous",
        role="cause" if long else "latent",
        odd=group.stance,
        peers=group.stance,
        evidence=evidence,
        inferred=(
            *_rounds(group),
            *(() if long else (f"--gap {LONG_GAP:g} tells slow from stuck",)),
        ),
    )


def _rounds(group: StackClass) -> tuple[str, ...]:
    """Ranks that stand in the same line, but in another round of a loop than most."""
    lines = []
    for stance in group.stances:
        peers = [other for other in group.stances if other is not stance]
        found = order_of(stance, peers) if len(peers) > 1 else None
        if found is not None:
            word = "ahead of" if found.ahead else "behind"
            lines.append(f"rank {stance.rank} is {word} its peers: {found.reason}")
    return tuple(lines)


def _asleep(elsewhere: Sequence[Stance], gap: float) -> Judgement | None:
    """Nobody is seen to wait for a peer, and yet nobody moves.

    Waiting for work in a queue is rest. Elsewhere, a rank apart from a majority that stands
    in the same code is the sign of kernels that wait behind the back of Python.
    """
    classes = classify(elsewhere)
    if len(classes) < 2 or any(stance.waits for stance in elsewhere):
        return None
    first, rest = classes[0], classes[1:]
    frames = first.stance.frames
    alike = all(common_depth(group.stance.frames, frames) >= _SHARED for group in rest)
    if len(elsewhere) < 3 or not alike:
        return None
    evidence = seen(classes, gap)
    if len(first.ranks) * 2 <= len(elsewhere) or len(rest) > 1:
        return _undecided(classes, "not_joined", evidence)
    odd = rest[0]
    return Judgement(
        kind="not_joined",
        summary=f"{sentence(place_text(odd))}, while {place_text(first)}; none of them moves.",
        diverging=odd.ranks,
        odd=odd.stance,
        peers=first.stance,
        evidence=evidence,
        inferred=(*_order_text(rest, [first]), _PATIENCE),
    )


_PATIENCE = f"a rank that is merely late looks the same for a while; --gap {LONG_GAP:g} tells"


def _undecided(
    classes: Sequence[StackClass],
    kind: str,
    evidence: tuple[str, ...],
    candidates: tuple[int, ...] = (),
) -> Judgement:
    everybody = tuple(sorted(rank for group in classes for rank in group.ranks))
    said = "; ".join(place_text(group) for group in classes[:4])
    more = f"; and {len(classes) - 4} more places" if len(classes) > 4 else ""
    counts = " against ".join(str(len(group.ranks)) for group in classes[:4])
    return Judgement(
        kind=kind,
        summary=f"{sentence(said)}{more}: {counts}, and stacks alone do not say who left.",
        candidates=candidates or everybody,
        confidence="ambiguous",
        odd=classes[-1].stance,
        peers=classes[0].stance,
        evidence=evidence,
    )


def _order_text(odd: Sequence[StackClass], peers: Sequence[StackClass]) -> tuple[str, ...]:
    """Who is ahead, where that can be told."""
    lines = []
    for group in odd:
        found = order_of(group.stance, peers[0].stances)
        ops = {group.stance.op, peers[0].stance.op}
        if found is None:
            continue
        if not found.counted and len(ops - {None}) > 1:
            # Two calls may be the branches of one decision, of which neither comes first.
            lines.append(f"the stacks part {found.place}")
        else:
            be = "is" if len(group.ranks) == 1 else "are"
            lines.append(
                f"{ranks_text(group.ranks)} {be} {found.relation} "
                f"{ranks_text(peers[0].ranks)}: {found.reason}"
            )
    return tuple(lines)
