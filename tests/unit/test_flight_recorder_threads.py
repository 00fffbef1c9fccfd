"""Threads of Flight Recorder dumps: calls of two threads of a rank have no order."""

from __future__ import annotations

from pathlib import Path

import pytest

from ncclscope.readers import open_run
from tests.support.dumps import Job


def trainer_and_saver(threads: tuple[str | None, str | None]) -> Job:
    """Let rank 3 post both groups' calls in the opposite order; none of them is over."""
    job = Job(4, {"1": ("save", [0, 1, 2, 3])})
    train, save = ({} if name is None else {"thread_id": name} for name in threads)
    for _ in range(3):
        job.post([0, 1, 2, 3], group="0", **train)
        job.post([0, 1, 2, 3], group="1", **save)
    for rank in range(4):
        calls = [("0", train), ("1", save)]
        for group, thread in reversed(calls) if rank == 3 else calls:
            job.post([rank], group=group, state="started", **thread)
    return job


def test_calls_have_the_thread_that_posted_them(tmp_path: Path) -> None:
    run = open_run(trainer_and_saver(("140113", "140977")).write(tmp_path / "dumps"))

    logs = {log.communicator.label: log for log in run.by_rank[0].logs.values()}

    assert logs["default_pg"].threads(1, 5) == [1] * 4
    assert logs["save:0"].threads(2, 4) == [2, 2]
    assert {call.thread for call in logs["save:0"].span(1, 5)} == {2}


@pytest.mark.parametrize("name", [None, "", 7, "9" * 100])
def test_a_thread_without_a_proper_name_is_not_known(tmp_path: Path, name: object) -> None:
    job = Job(2)
    job.post([0, 1], thread_id=name)

    run = open_run(job.write(tmp_path / "dumps"))

    assert [call.thread for call in run.by_rank[0].kept_calls()] == [0]


@pytest.mark.parametrize(
    ("threads", "crossed"), [(("140113", "140977"), False), (("140113", "140113"), True)]
)
def test_the_order_of_two_threads_is_no_deadlock(
    tmp_path: Path, threads: tuple[str, str], crossed: bool
) -> None:
    verdict = trainer_and_saver(threads).verdict(tmp_path / "dumps")

    assert (verdict.cause is not None and verdict.cause.kind == "order_cycle") is crossed
