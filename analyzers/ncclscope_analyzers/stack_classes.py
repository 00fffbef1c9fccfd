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
        """Yield at most one finding, from stacks, GPUs and NCCL's RAS together."""
        snapshot = case.run.snapshot
        if snapshot is None:
            return
        found = judge_snapshot(snapshot)
        if found is None:
            return
        yield finding_of(found)
