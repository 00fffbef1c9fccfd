"""What one data source concludes about a job, and what a short look does to that."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from ncclscope.analysis.processes.motion import Motion

__all__ = ["HANG_SECONDS", "LONG_GAP", "Judgement", "unless_late"]

HANG_SECONDS = 10.0
"""Ranks of living processes that have not moved for so long hang; before, they may be late."""
LONG_GAP = 30.0
"""Seconds after which a rank that works while all others wait for it is called stuck, too."""


@dataclass(frozen=True)
class Judgement:
    """What one data source concludes.

    Attributes:
        kind: One of the kinds of the contract.
        summary: One or two sentences.
        diverging: Ranks it singles out.
        candidates: When it singles out none: those among which it lies.
        confidence: ``likely`` or ``ambiguous``.
        role: ``cause``, or ``latent`` where what was seen may be mere lateness.
        odd: What a diverging rank was doing.
        peers: What the others were doing.
        evidence: What was seen.
        inferred: What follows from it.
        seen_seconds: For how long it was seen; 0 where no time is involved.
        is_open: Whether a longer look would decide.
    """

    kind: str
    summary: str
    diverging: tuple[int, ...] = ()
    candidates: tuple[int, ...] = ()
    confidence: str = "likely"
    role: str = "cause"
    odd: Motion | None = None
    peers: Motion | None = None
    evidence: tuple[str, ...] = ()
    inferred: tuple[str, ...] = field(default=())
    seen_seconds: float = 0.0
    is_open: bool = False


def unless_late(found: Judgement, gap: float, limit: float = HANG_SECONDS) -> Judgement:
    """Makes a conclusion latent that lateness explains as well, if it was not seen for long.

    Args:
        found: The conclusion, as it is from the limit on.
        gap: For how many seconds it was seen.
        limit: From how many seconds on nobody is called late.
    """
    if gap >= limit:
        return replace(found, seen_seconds=gap)
    return replace(
        found,
        summary=f"{found.summary} Seen for {gap:g} s: a rank that is merely late looks the same.",
        diverging=(),
        candidates=found.diverging or found.candidates,
        confidence="ambiguous",
        role="latent",
        inferred=(*found.inferred, f"--gap {limit:g} tells late from stuck"),
        seen_seconds=gap,
        is_open=True,
    )
