"""Ranks whose process has ended, is stopped, or could not be read, and those that wait for them."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace

from ncclscope.engine.processes.frames import TRANSFERS
from ncclscope.engine.processes.judgement import Judgement, unless_late
from ncclscope.engine.processes.motion import Motion
from ncclscope.engine.processes.stack_classes import classify, seen, waiting_text
from ncclscope.model import Blame
from ncclscope.wording.stacks import Seen


def may_wait_for(motion: Motion, ranks: Collection[int]) -> bool:
    """Return whether a rank that waits may do so for some others: not in a transfer with a peer."""
    peers = motion.frames[-1].peers if motion.op in TRANSFERS else ()
    return not peers or not {*ranks}.isdisjoint(peers)


def judge_gone(
    gone: Sequence[int],
    waiting: Sequence[Motion],
    moving: Sequence[Motion],
    elsewhere: Sequence[Motion],
    gap: float,
) -> Judgement | None:
    """Judge ranks without a process.

    Args:
        gone: The ranks without a process.
        waiting: Ranks that wait for peers.
        moving: Ranks that move; the waiting ranks may also wait for them.
        elsewhere: Ranks that neither move nor wait for peers; likewise.
        gap: Seconds between the first and the last sample.
    """
    if not waiting:
        return None
    ranks = tuple(sorted(gone))
    classes = classify(waiting)
    found = Judgement(
        kind="dead_rank",
        summary=Seen.NO_PROCESS.of(ranks, waiting_text(classes)),
        blame=Blame.on(ranks),
        role="latent" if moving else "cause",
        peers=classes[0].motion,
        evidence=(*seen(classes, gap), Seen.ENDED.of(ranks)),
        seen_seconds=gap,
    )
    if elsewhere and not moving:
        classes = classify(elsewhere)
        others = "; ".join(Seen.PLACE.of(group) for group in classes[:3])
        candidates = [*ranks, *(motion.rank for motion in elsewhere)]
        if len(candidates) > len(waiting):  # or most are right not to be in this call
            candidates += [motion.rank for motion in waiting]
        return unless_late(
            replace(
                found.with_note(Seen.MAY_WAIT.of(others)).undecided(sorted(candidates)),
                evidence=(*found.evidence, *seen(classes, gap)),
            ),
            gap,
        )
    if len(ranks) <= len(waiting):
        return found
    return unless_late(  # most have ended: they died, or the others posted an extra call
        replace(
            found.with_note(str(Seen.TOO_EARLY)).undecided(
                (*ranks, *sorted(motion.rank for motion in waiting))
            ),
            role="cause",
        ),
        gap,
    )


def judge_stopped(
    stopped: Sequence[Motion],
    waiting: Sequence[Motion],
    still: Sequence[Motion],
    moving: Sequence[Motion],
    gap: float,
) -> Judgement:
    """Judge ranks that are stopped by a signal.

    Args:
        stopped: The stopped ranks.
        waiting: Ranks that wait for peers.
        still: The waiting ranks, and others that do not move.
        moving: Ranks that move.
        gap: Seconds between the first and the last sample.
    """
    ranks = tuple(sorted(motion.rank for motion in stopped))
    proc = Seen.STOPPED.of(ranks)
    where = classify(stopped)
    if not still and not moving:
        return Judgement(
            kind="stalled",
            summary=str(Seen.ALL_STOPPED),
            blame=Blame.among(ranks, "likely"),
            evidence=(proc, *seen(where, gap)),
            inferred=(str(Seen.CONTINUE),),
            seen_seconds=gap,
        )
    classes = classify(waiting)
    return Judgement(
        kind="not_joined",
        summary=Seen.STOPPED_AT.of(
            ranks, where[0].motion.text, waiting_text(classes) if waiting else Seen.NOBODY_WAITS
        ),
        blame=Blame.on(ranks),
        role="latent" if moving or not waiting else "cause",
        odd=stopped[0],
        peers=classes[0].motion if classes else None,
        evidence=(proc, *seen([*where, *classes], gap)),
        inferred=(str(Seen.CONTINUE),),
        seen_seconds=gap,
    )


def judge_unread(
    unread: Sequence[Motion], waiting: Sequence[Motion], elsewhere: Sequence[Motion], gap: float
) -> Judgement | None:
    """Judge a job in which some stacks could not be read, and all other ranks wait together.

    Args:
        unread: The ranks whose stacks could not be read.
        waiting: Ranks that wait for peers.
        elsewhere: Ranks that neither move nor wait for peers.
        gap: Seconds between the first and the last sample.
    """
    classes = classify(waiting)
    if len(classes) != 1 or elsewhere:
        return None
    ranks = tuple(sorted(motion.rank for motion in unread))
    return Judgement(
        kind="not_joined",
        summary=Seen.NOT_READ.of(waiting_text(classes), ranks),
        blame=Blame.among(ranks),
        role="latent",
        peers=classes[0].motion,
        evidence=seen(classes, gap),
        seen_seconds=gap,
    )
