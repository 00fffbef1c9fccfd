"""A rank that differs from the others in what was seen of living processes."""

from __future__ import annotations

from collections.abc import Iterable

from ncclscope.analysis.case import Case
from ncclscope.analysis.processes.evidence import judge_snapshot
from ncclscope.analysis.processes.motion import Motion
from ncclscope.model import Call, Finding, State, sites
from ncclscope.model.snapshot import Frame

__all__ = ["StackClasses"]


class StackClasses:
    """Ranks are at different places and do not move, as stacks, GPUs and counts show."""

    name = "stack_classes"

    def analyze(self, case: Case) -> Iterable[Finding]:
        """Yields at most one finding, from stacks, GPUs and NCCL's RAS together."""
        snapshot = case.run.snapshot
        if snapshot is None:
            return
        found = judge_snapshot(snapshot)
        if found is None:
            return
        yield Finding(
            kind=found.kind,
            summary=found.summary,
            diverging_ranks=found.diverging,
            candidate_ranks=found.candidates,
            odd=_call(found.odd),
            peers=_call(found.peers),
            confidence=found.confidence,
            role=found.role,
            analyzer=self.name,
            evidence=found.evidence,
            inferred=found.inferred,
        )


def _call(motion: Motion | None) -> Call | None:
    """The collective that a stack shows. A stack holds neither its number nor its tensor."""
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


def _spelled(frame: Frame | None) -> str | None:
    if frame is None:
        return None
    return sites.spell(frame.path or frame.file, frame.line, frame.name)
