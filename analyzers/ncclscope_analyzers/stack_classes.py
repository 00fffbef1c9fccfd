"""A rank that differs from the others in the process snapshot."""

from __future__ import annotations

from collections.abc import Iterable

from ncclscope.engine.case import Case
from ncclscope.engine.processes.evidence import judge_snapshot
from ncclscope.engine.processes.motion import Motion
from ncclscope.model import Call, Finding, State


class StackClasses:
    """Ranks are in different calls and do not move, as stacks, GPUs and NCCL's counts show."""

    name = "stack_classes"

    def analyze(self, case: Case) -> Iterable[Finding]:
        """Yield at most one finding, from stacks, GPUs and NCCL's RAS together."""
        snapshot = case.run.snapshot
        if snapshot is None:
            return
        found = judge_snapshot(snapshot)
        if found is None:
            return
        yield Finding(
            kind=found.kind,
            summary=found.summary,
            notes=found.notes,
            diverging_ranks=found.diverging,
            candidate_ranks=found.candidates,
            odd=_call(found.odd),
            peers=_call(found.peers),
            confidence=found.confidence,
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
