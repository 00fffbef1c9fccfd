"""One dump of several, as gloo writes it: its only description has no name, or is empty."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from benchmarks.runners.dumps import pickled
from ncclscope.engine.verdict import Verdict, diagnose
from ncclscope.readers import open_run
from tests.support.dumps import Job, history


def one_of(job: Job, rank: int, described: str, directory: Path) -> Verdict:
    value: dict[str, Any] = job.value(rank)
    value["pg_config"] = {"": {"name": "", "desc": "", "ranks": described}}
    directory.mkdir(exist_ok=True)
    (directory / f"trace_{rank}").write_bytes(pickled(value))
    return diagnose(open_run(directory))


def waiting_job(size: int = 3) -> Job:
    job = Job(size, backend="gloo")
    history(job)
    job.post([0], state="scheduled")
    return job


@pytest.mark.parametrize("rank", [0, 1])
def test_the_world_is_as_large_as_the_group_without_a_name(tmp_path: Path, rank: int) -> None:
    job = waiting_job()
    if rank:
        job.post([rank], "broadcast", state="scheduled")

    verdict = one_of(job, rank, "[0, 1, 2]", tmp_path)

    assert verdict.run.expected == 3
    assert verdict.status == "hung"
    assert verdict.cause is not None
    # Most dumps are missing, so that the one which was read may be of the culprit.
    assert verdict.cause.candidate_ranks == (0, 1, 2)
    assert not any("did not" in line for line in verdict.cause.evidence)


def test_a_call_that_others_may_not_have_joined_is_no_agreement(tmp_path: Path) -> None:
    verdict = one_of(waiting_job(), 0, "[]", tmp_path)

    assert verdict.status == "unknown"
    assert "how many ranks the job has: 1 rank left one" in verdict.summary


def test_completed_calls_need_no_size(tmp_path: Path) -> None:
    job = Job(3, backend="gloo")
    history(job)

    assert one_of(job, 0, "[]", tmp_path).status == "ok"
