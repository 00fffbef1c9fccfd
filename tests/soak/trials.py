"""Runs a plan in real processes, and says how that ended."""

from __future__ import annotations

import shutil
from dataclasses import dataclass, replace

from ncclscope.lab.plan import Program
from ncclscope.launch.processes import Outcome, rings_directory, run_ranks
from ncclscope.readers import open_run
from tests.soak import steps
from tests.soak.judgement import Divergence, Sequences, divergence, sequences
from tests.soak.routing import Plan

STALL_SECONDS = 3.0
PATIENCE = 4 * 3600.0
HAZARD = 1 / 32
"""Chance that a step of the buggy reference diverges: some succeed before one fails."""


def make_plan(
    strategy: str,
    *,
    count: int,
    tp: int = 4,
    dp: int = 2,
    layers: int = 1,
    seed: int = 0,
    sequence_parallel: bool = False,
) -> Plan:
    """Return a plan of small tensors, of which many steps fit into a minute."""
    program = Program(
        tp=tp,
        dp=dp,
        layers=layers,
        steps=count,
        hidden=8,
        experts=2 * tp * dp,
        max_tokens=4 * tp,
        seed=seed,
        fault="none",
    )
    return Plan(program, strategy, sequence_parallel)


@dataclass(frozen=True)
class Soaked:
    """A soak that came to its end, or did not.

    Attributes:
        outcome: Of the processes.
        sequences: Of each communicator.
        status: Of the verdict: ``ok`` where ranks agree.
    """

    outcome: Outcome
    sequences: list[Sequences]
    status: str

    @property
    def wrong(self) -> int:
        """Layers with a wrong result, over all ranks."""
        return sum(self.outcome.results)

    @property
    def passed(self) -> bool:
        """Whether all ranks ran all steps, rightly, and posted the same."""
        return (
            self.outcome.ending == "finished"
            and self.status == "ok"
            and not self.wrong
            and len(self.sequences) > 0
            and all(one.equal and one.calls[0] > 0 for one in self.sequences)
        )


def soak(plan: Plan, *, terminal: int = -1) -> Soaked:
    """Run all steps of a plan.

    Args:
        plan: What is run.
        terminal: Descriptor for progress messages.
    """
    rings = rings_directory()
    try:
        outcome = run_ranks(
            steps.run,
            plan,
            terminal,
            ranks=plan.program.world_size,
            rings=rings,
            stall_after=30.0,
            timeout=PATIENCE,
        )
        found = divergence(run := open_run(rings), stall_seconds=STALL_SECONDS)
        return Soaked(outcome, sequences(run), found.verdict.status)
    finally:
        shutil.rmtree(rings, ignore_errors=True)


@dataclass(frozen=True)
class Caught:
    """A run that was bound to hang.

    Attributes:
        plan: What was run.
        ending: How it ended, and after how many seconds.
        step: Step in which the ranks' loads differ.
        loads: Tokens for each rank's experts in that step.
        found: What the rings say.
    """

    plan: Plan
    ending: str
    step: int
    loads: list[int]
    found: Divergence

    @property
    def named(self) -> tuple[int, ...]:
        """The ranks that the verdict names."""
        cause = self.found.verdict.cause
        return () if cause is None else cause.diverging_ranks or cause.candidate_ranks

    @property
    def passed(self) -> bool:
        """Whether it was caught in its step, and no rank is blamed for what its peers did too."""
        cause = self.found.verdict.cause
        blamed = () if cause is None else cause.diverging_ranks
        return (
            self.ending in ("stalled", "failed")
            and self.found.verdict.status in ("diverged", "hung")
            and self.found.step == self.step
            and len({bool(self.loads[rank]) for rank in blamed}) <= 1
        )


def catch(plan: Plan) -> Caught:
    """Run a plan until its ranks part, which happens in a step that is known beforehand.

    Args:
        plan: What is run; with another seed where that has no such step.
    """
    plan = replace(plan, hazard=HAZARD)
    while (bound := plan.divergence()) is None:
        plan = replace(plan, program=replace(plan.program, seed=plan.program.seed + 1))
    rings = rings_directory()
    try:
        outcome = run_ranks(
            steps.run,
            plan,
            -1,
            ranks=plan.program.world_size,
            rings=rings,
            stall_after=STALL_SECONDS,
        )
        found = divergence(open_run(rings), stall_seconds=STALL_SECONDS)
        return Caught(plan, outcome.ending, *bound, found)
    finally:
        shutil.rmtree(rings, ignore_errors=True)
