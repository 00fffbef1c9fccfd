"""A rank that differs from the others in the process snapshot."""

from __future__ import annotations

from collections.abc import Iterable

from ncclscope.engine.case import Case
from ncclscope.engine.processes.evidence import judge_snapshot
from ncclscope.engine.processes.judgement import finding_of
from ncclscope.model import Finding


class StackClasses:
    """Ranks are in different calls and do not move, as stacks, GPUs and NCCL's counts show."""

    name = "stack_classes"

    def analyze(self, case: Case) -> Iterable[Finding]:
        """Yield a finding for each part of the job, from stacks, GPUs and NCCL's RAS together."""
        if case.run.snapshot is not None:
            yield from map(finding_of, judge_snapshot(case.run.snapshot))
