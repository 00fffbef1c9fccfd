"""When a verdict is good enough to kill a job for."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ncclscope import Verdict, diagnose, open_run
from ncclscope.model import Blame
from ncclscope.watch.killing import unread_text, why_not_kill
from tests.support.rings import tracer_in


@pytest.fixture
def verdict(rings: Path) -> Verdict:
    """Rank 1 of three has diverged, certainly; rank 3 left no record."""
    for rank in range(3):
        tracer = tracer_in(rings, rank=rank, world_size=4)
        comm = tracer.communicator("k", "tp:0", [0, 1, 2])
        op = "all_gather" if rank == 1 else "all_reduce"
        tracer.record(comm, op, shape=(4,), dtype="int8", site="f.py:1 f")
    found = diagnose(open_run(rings))
    assert found.cause is not None
    assert found.cause.diverging_ranks == (1,)
    return found


def changed(verdict: Verdict, *unseen: str, **fields: Any) -> Verdict:
    """Return the verdict with another cause, and with these gaps alone."""
    assert verdict.cause is not None
    coverage = replace(verdict.coverage, unrecorded=unseen, unread=())
    return replace(verdict, cause=replace(verdict.cause, **fields), coverage=coverage)


@pytest.mark.parametrize(
    ("unseen", "blame", "why"),
    [
        ((), Blame.on((1,), "certain"), ""),
        (("a gap",), Blame.on((1,), "certain"), ""),
        ((), Blame.on((1,)), ""),
        (("a gap",), Blame.on((1,)), "the verdict is likely, and not all is recorded"),
        ((), Blame.on((1,), "ambiguous"), "the verdict is ambiguous"),
        ((), Blame.on((), "certain"), "the verdict names no rank"),
        ((), Blame.on((3,)), "the verdict names rank 3, of which no record was read"),
        ((), Blame.on((1, 3)), "the verdict names rank 3, of which no record was read"),
        ((), Blame.among((0, 3)), "the verdict names rank 3, of which no record was read"),
    ],
)
def test_only_certain_or_complete_verdicts_on_ranks_that_were_read(
    verdict: Verdict, unseen: tuple[str, ...], blame: Blame, why: str
) -> None:
    found = why_not_kill(changed(verdict, *unseen, blame=blame))

    assert found.startswith(why) if why else not found


def test_a_verdict_without_a_cause_kills_nobody(verdict: Verdict) -> None:
    assert unread_text(replace(verdict, cause=None)) == "the verdict names no rank"


def test_a_cause_in_a_linked_job_is_about_the_ranks_of_that_job(verdict: Verdict) -> None:
    alone = replace(verdict.run, ranks=verdict.run.ranks[:1])
    linked = replace(verdict, run=replace(alone, linked=(verdict.run,)))

    assert why_not_kill(changed(verdict)) == why_not_kill(changed(linked)) == ""
    assert why_not_kill(changed(replace(verdict, run=alone)))
