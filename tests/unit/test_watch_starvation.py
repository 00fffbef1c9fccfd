"""Ranks without a processor are late; that is no hang, until it has lasted for too long."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from ncclscope.procfs import processor_wait
from ncclscope.watch import starvation
from tests.unit.test_watch import STALL, Job


@pytest.fixture
def job(rings: Path) -> Job:
    """Two ranks, of which the second has not made the second call."""
    job = Job(rings, 2)
    job.start()
    job.post()
    job.post(0, done=False)
    job.poll()
    return job


def seconds_until_trouble(job: Job, most: float = 100.0) -> float:
    began = job.now
    while job.now - began < most:
        if job.poll(0.5).in_trouble:
            return job.now - began
    return most


@pytest.mark.parametrize(
    ("share", "seconds"), [(0.0, STALL), (0.5, STALL), (0.7, 6 * STALL), (1.0, 6 * STALL)]
)
def test_a_hang_of_ranks_without_a_processor_is_reported_later(
    job: Job, monkeypatch: pytest.MonkeyPatch, share: float, seconds: float
) -> None:
    monkeypatch.setattr(starvation, "processor_wait", lambda _pid: share * job.now)

    assert seconds_until_trouble(job) == pytest.approx(seconds, abs=2.0)


def test_late_ranks_that_go_on_raise_no_alarm(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(starvation, "processor_wait", lambda _pid: job.now)
    assert seconds_until_trouble(job, 3 * STALL) == 3 * STALL

    job.post(1)
    job.tracers[0].complete(2)

    assert job.poll().status == "ok"
    assert seconds_until_trouble(job, 12 * STALL) == 12 * STALL


def test_a_hang_is_reported_soon_after_the_ranks_have_processors_again(
    job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    until = job.now + 1.5 * STALL
    monkeypatch.setattr(starvation, "processor_wait", lambda _pid: min(job.now, until))

    assert 1.5 * STALL < seconds_until_trouble(job) < 3 * STALL


def test_where_the_kernel_does_not_count_nothing_is_held_back(
    job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(starvation, "processor_wait", lambda _pid: None)

    assert seconds_until_trouble(job) == pytest.approx(STALL, abs=2.0)


@pytest.fixture
def spinners() -> Iterator[list[int]]:
    """Pids of two processes that spin on one processor, of which the second may hardly run."""
    processor = min(os.sched_getaffinity(0))
    program = (
        "import os, sys\n"
        f"os.sched_setaffinity(0, {{{processor}}})\n"
        "os.nice(int(sys.argv[1]))\n"
        "print(flush=True)\n"
        "while True: pass\n"
    )
    begun = [
        subprocess.Popen([sys.executable, "-c", program, nice], stdout=subprocess.PIPE)
        for nice in ("0", "19")
    ]
    for process in begun:
        assert process.stdout is not None
        process.stdout.readline()
    yield [process.pid for process in begun]
    for process in begun:
        process.kill()
        process.communicate()


def test_the_kernel_counts_how_long_a_process_had_no_processor(spinners: list[int]) -> None:
    before = processor_wait(spinners[1])
    if before is None:
        pytest.skip("this kernel does not count how long threads wait for a processor")
    began = time.monotonic()
    while time.monotonic() - began < 30.0:
        waited = processor_wait(spinners[1])
        assert waited is not None
        if waited - before > 0.3:
            return
        time.sleep(0.02)
    pytest.fail("a process that shares a processor with a more important one did not wait")


def test_a_process_that_has_ended_waits_for_nothing() -> None:
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()

    assert processor_wait(ended.pid) is None
