"""`watch` of a job that does not get to its first call: a wait that lasts is an alarm."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

from ncclscope.readers.ring.cursor import RingCursor
from ncclscope.tracing.tracer import Tracer
from ncclscope.watch.poll import Poll
from ncclscope.watch.startup import PATIENCE, StartupWatch
from ncclscope.watch.watch import Watcher
from tests.support.programs import run_program
from tests.support.rings import tracer_in

SIZE, STALL = 3, 10.0


class Job:
    """Ranks that live in this process, and a watcher whose clock is moved by hand."""

    def __init__(self, directory: Path, *ranks: int) -> None:
        self.directory = directory
        self.now = 100.0
        began_ns = time.time_ns()
        self.tracers: dict[int, Tracer] = {
            rank: tracer_in(directory, rank=rank, world_size=SIZE, details={"run": "one"})
            for rank in ranks
        }
        self.watcher = Watcher(
            directory, stall=STALL / PATIENCE, clock=lambda: self.now, wall=lambda: began_ns
        )

    def wait(self, activity: str, detail: str, *ranks: int) -> dict[int, Any]:
        """Begin an activity on some ranks; return the slot and what has begun, by rank."""
        slots = {rank: self.tracers[rank].activity(activity) for rank in ranks}
        return {rank: (slot, slot.begin(detail, 300)) for rank, slot in slots.items()}

    def post(self, *ranks: int) -> None:
        for rank in ranks:
            tracer = self.tracers[rank]
            comm = tracer.communicator("world", "world", range(SIZE), "gloo")
            tracer.complete(tracer.record(comm, "all_reduce", shape=(4,), dtype="float32"))

    def poll(self, seconds: float) -> Poll:
        self.now += seconds
        return self.watcher.poll()


def cause_of(poll: Poll) -> tuple[str, tuple[int, ...]]:
    assert poll.verdict is not None
    assert poll.verdict.cause is not None, poll.verdict.summary
    return poll.verdict.cause.kind, poll.verdict.cause.diverging_ranks


def test_a_rank_that_never_comes_to_the_rendezvous_is_an_alarm_once(rings: Path) -> None:
    job = Job(rings, 0, 1)
    job.wait("init_process_group", "gloo at train.py:3", 0, 1)
    assert job.poll(5.0).status == "unknown"

    poll = job.poll(6.0)

    assert (poll.status, poll.news) == ("hung", True)
    assert cause_of(poll) == ("init_stalled", (2,))
    assert not job.poll(2.0).news


@pytest.mark.parametrize("activity", ["store_wait", "comm_init"])
def test_other_waits_before_a_call_are_alarms(rings: Path, activity: str) -> None:
    job = Job(rings, 0, 1, 2)
    for begun in job.wait(activity, "get weights", 0, 1).values():
        slot, one = begun
        slot.end(one)
        slot.begin("get weights", SIZE)
    assert job.poll(5.0).status != "hung"

    assert cause_of(job.poll(6.0)) == ("init_stalled", (2,))


def test_the_alarm_is_over_once_the_rank_has_come(rings: Path) -> None:
    job = Job(rings, 0, 1)
    begun = job.wait("init_process_group", "gloo at train.py:3", 0, 1)
    assert job.poll(11.0).status == "hung"
    job.tracers[2] = tracer_in(rings, rank=2, world_size=SIZE, details={"run": "one"})
    for slot, one in begun.values():
        slot.end(one)

    assert job.poll(2.0).status != "hung"
    assert job.watcher.poll().activity == "idle"


def test_a_wait_of_one_rank_is_not_examined_while_others_go_on(rings: Path) -> None:
    job = Job(rings, 0, 1)
    job.post(0, 1)
    job.wait("store_wait", "get weights", 0)
    began_ns = time.time_ns()
    cursors = [RingCursor(Path(one.path), 0.0, began_ns) for one in job.tracers.values()]
    startup = StartupWatch(STALL)

    for now in range(3, 30, 3):
        job.post(1)
        for cursor in cursors:
            cursor.poll(now)
        assert not startup.is_due(cursors, (), now, began_ns + now * 10**9)

    now += 10  # and now nobody does
    assert startup.is_due(cursors, (), now, began_ns + now * 10**9)
    now += 2
    assert not startup.is_due(cursors, (), now, began_ns + now * 10**9)


def test_a_thread_of_one_idle_rank_at_the_store_is_no_alarm(rings: Path) -> None:
    job = Job(rings, 0, 1, 2)
    job.post(0, 1, 2)
    job.wait("store_wait", "get shutdown", 0)

    poll = job.poll(20.0)

    assert poll.status == "unknown"
    assert poll.verdict is not None
    assert "Rank 0 waits at the store for key 'shutdown' (get)" in poll.verdict.summary


def test_asking_a_store_again_and_again_is_a_wait_until_it_ends(rings: Path) -> None:
    job = Job(rings, 0)
    slot = job.tracers[0].activity("store_wait")
    now_ns = time.time_ns()
    slot.end(slot.begin("get ready", SIZE, now_ns - 20 * 10**9))
    cursors = [RingCursor(Path(job.tracers[0].path), 0.0, now_ns)]

    assert StartupWatch(STALL).is_due(cursors, (), 0.0, now_ns)
    assert not StartupWatch(STALL).is_due(cursors, (), 0.0, now_ns + 5 * 10**9)
    assert not StartupWatch(3 * STALL).is_due(cursors, (), 0.0, now_ns)


def test_a_rank_that_ended_before_it_had_a_group_is_named_as_dead(rings: Path) -> None:
    run_program(
        "from ncclscope.tracing.tracer import Tracer\n"
        f"t = Tracer({str(rings)!r}, rank=2, world_size={SIZE}, details={{'run': 'one'}})\n"
        "t.activity('init_process_group').begin('gloo at train.py:3', 300)\n"
        "import os; os.kill(os.getpid(), 9)\n"
    )
    job = Job(rings, 0, 1)
    job.wait("init_process_group", "gloo at train.py:3", 0, 1)

    poll = job.poll(11.0)

    assert cause_of(poll) == ("dead_rank", (2,))
