"""A rank that stands apart in a capture of living processes that were not traced."""

from __future__ import annotations

from collections.abc import Iterable

from ncclscope.analysis.case import Case
from ncclscope.analysis.stances import Stance
from ncclscope.analysis.witnesses import judge_capture
from ncclscope.model import Call, Finding, State

__all__ = ["StackClasses"]


class StackClasses:
    """Ranks stand at different places and do not move; nothing was recorded."""

    name = "stack_classes"

    def analyze(self, case: Case) -> Iterable[Finding]:
        """Yields at most one finding, from stacks, GPUs and NCCL's RAS together."""
        capture = case.run.capture
        if capture is None or self._is_traced(case):
            return
        found = judge_capture(capture)
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

    def _is_traced(self, case: Case) -> bool:
        """Whether records of all the ranks answer, which are better than stacks."""
        recorded = [rank for rank in case.run.ranks if any(log.calls for log in rank.logs.values())]
        return len(recorded) == len(case.run.ranks) > 0


def _call(stance: Stance | None) -> Call | None:
    """The collective that a stack shows. Its number and its tensor do not stand in a stack."""
    if stance is None or stance.op is None:
        return None
    place = stance.place
    return Call(
        op=stance.op,
        comm="",
        seq=0,
        position=0,
        site=place.site if place else None,
        state=State.STARTED,
    )
