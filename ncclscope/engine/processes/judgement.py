"""The judgement of one data source about a job, and reasons to weaken it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from ncclscope.engine.processes.motion import Motion
from ncclscope.model import Call, Claim, Finding, State
from ncclscope.wording.stacks import Seen

HANG_SECONDS = 10.0
"""Seconds after which live ranks that have not moved hang; before, they may be late."""
LONG_GAP = 30.0
"""Seconds after which a rank that works while all others wait for it is reported as stuck."""
SENDERS = frozenset({"broadcast", "scatter", "scatterv"})
"""Operations in which all ranks wait for what the root sends."""


@dataclass(frozen=True)
class Judgement(Claim):
    """The judgement of one data source.

    Attributes:
        role: ``cause``, or ``latent`` where a rank may merely be late.
        odd: The motion of a diverging rank.
        peers: The motion of the others.
        evidence: Observed facts.
        inferred: Conclusions from them.
        seen_seconds: Seconds of observation; 0 where no time is involved.
        is_open: Whether a longer observation would decide.
        is_by_devices: Whether GPUs or NCCL's counts made it, and stacks did not.
    """

    role: str = "cause"
    odd: Motion | None = None
    peers: Motion | None = None
    evidence: tuple[str, ...] = ()
    inferred: tuple[str, ...] = field(default=())
    seen_seconds: float = 0.0
    is_open: bool = False
    is_by_devices: bool = False


def unless_late(found: Judgement, gap: float, limit: float = HANG_SECONDS) -> Judgement:
    """Return a judgement as latent, if it was observed so briefly that ranks may be late.

    Args:
        found: The judgement that holds from the limit on.
        gap: Seconds of observation.
        limit: Seconds from which on lateness is ruled out.
    """
    if gap >= limit:
        return replace(found, seen_seconds=gap)
    return replace(
        found.with_note(Seen.BRIEFLY.of(gap)).undecided(
            found.diverging_ranks or found.candidate_ranks
        ),
        role="latent",
        inferred=(*found.inferred, Seen.LONGER.of(limit)),
        seen_seconds=gap,
        is_open=True,
    )


def unless_idle(
    found: Judgement, waiting: Sequence[Motion], elsewhere: Sequence[Motion]
) -> Judgement:
    """Return a judgement as latent, if one rank may wait for a request that it has to send on.

    Args:
        found: The judgement that holds otherwise.
        waiting: Ranks that wait for their peers.
        elsewhere: Ranks that wait for none.
    """
    if {motion.op for motion in waiting} - {*SENDERS, "recv"} or len(elsewhere) != 1:
        return found
    if not elsewhere[0].may_be_idle:
        return found
    return replace(
        found.with_note(str(Seen.SERVER)).undecided(found.diverging_ranks or found.candidate_ranks),
        role="latent",
    )


def finding_of(found: Judgement) -> Finding:
    """Return a judgement as a finding."""
    return Finding(
        kind=found.kind,
        summary=found.summary,
        notes=found.notes,
        blame=found.blame,
        odd=_call(found.odd),
        peers=_call(found.peers),
        role=found.role,
        evidence=found.evidence,
        inferred=found.inferred,
    )


def _call(motion: Motion | None) -> Call | None:
    """Return the collective that a stack shows, without its number and tensor."""
    if motion is None or motion.op is None:
        return None
    place, user = motion.place, motion.user_place
    return Call(
        op=motion.op,
        comm="",
        seq=0,
        position=0,
        site=place.site if place else None,
        full_site=place.full_site if place else None,
        user_site=user.full_site if user is not None and user != place else None,
        state=State.STARTED,
    )
