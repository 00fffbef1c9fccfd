"""Watching: what is a divergence, what is a stall, and what is neither. The clock is ours."""

from __future__ import annotations

import argparse
import re
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ncclscope import procfs
from ncclscope.commands.watch import _once
from ncclscope.engine.verdict import diagnose
from ncclscope.model.snapshot import GpuSample
from ncclscope.readers.ring import cursor as cursor_module
from ncclscope.readers.ring.cursor import KEPT, RingCursor
from ncclscope.ring import layout
from ncclscope.tracing import scope
from ncclscope.tracing.tracer import Tracer
from ncclscope.watch import watch as watch_module
from ncclscope.watch.gpu_load import GpuLoad, all_spin
from ncclscope.watch.poll import Poll
from ncclscope.watch.watch import Watcher
from tests.support.cluster import Cluster
from tests.support.programs import run_program
from tests.support.rings import slot, tracer_in
from tests.support.snapshots import gpus

STALL = 10.0


class Job:
    """Ranks that live in this process, and a watcher with a clock that is moved by hand."""

    def __init__(self, directory: Path, size: int, capacity: int = 4096) -> None:
        self.directory = directory
        self.size = size
        self.capacity = capacity
        self.tracers: dict[int, Tracer] = {}
        self.now = 100.0
        began_ns = time.time_ns()
        self.use: tuple[int, ...] = ()
        self.samples = 0
        self.watcher = Watcher(
            directory,
            stall=STALL,
            clock=lambda: self.now,
            wall=lambda: began_ns,
            gpus=GpuLoad(self._sample),
        )

    def _sample(self) -> tuple[GpuSample, ...]:
        self.samples += 1
        return gpus(*self.use)[0]

    def start(self, *ranks: int) -> None:
        for rank in ranks or range(self.size):
            self.tracers[rank] = tracer_in(
                self.directory, rank=rank, world_size=self.size, capacity=self.capacity
            )

    def post(self, *ranks: int, done: bool = True, comm: str = "tp:0", **given: Any) -> None:
        """Post a call on some ranks, or on all; ``members`` and ``backend`` as needed."""
        members = given.pop("members", range(self.size))
        backend = given.pop("backend", "gloo")
        op = given.pop("op", "all_reduce")
        call = {"shape": (4, 2), "dtype": "float32", "redop": "sum", "site": "f.py:1 f"} | given
        for rank in ranks or tuple(members):
            tracer = self.tracers[rank]
            key = f"{comm}/{tuple(members)}"
            position = tracer.record(tracer.communicator(key, comm, members, backend), op, **call)
            if done:
                tracer.complete(position)

    def poll(self, seconds: float = 0.1) -> Poll:
        """Advance the clock, and poll."""
        self.now += seconds
        return self.watcher.poll()


@pytest.fixture
def job(rings: Path) -> Job:
    return Job(rings, 2)


def verdict_of(poll: Poll) -> tuple[str, tuple[int, ...]]:
    assert poll.verdict is not None
    assert poll.verdict.cause is not None
    return poll.verdict.cause.kind, poll.verdict.cause.diverging_ranks


def test_before_there_is_a_ring_it_waits(tmp_path: Path) -> None:
    poll = Job(tmp_path / "not made yet", 2).poll()

    assert (poll.status, poll.activity, poll.verdict) == ("incomplete", "waiting", None)
    assert not poll.changed


def test_an_engine_that_is_stopped_and_resumed_is_judged_again(
    job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    job.start()
    engine = tracer_in(job.directory, rank=-1, labels={"engine": "0"}, details={"role": "engine"})
    engine.activity("dequeue").begin()
    job.post()
    assert job.poll().status == "ok"

    monkeypatch.setattr(procfs, "is_stopped", lambda pid: True)
    poll = job.poll()
    monkeypatch.setattr(procfs, "is_stopped", lambda pid: False)

    assert poll.verdict is not None
    assert poll.status == "unknown"
    assert re.match(r"Ranks 0 1 and engine 0 \(pid \d+\) are stopped", poll.verdict.summary)
    assert job.poll().status == "ok"


def test_an_engine_that_outlives_its_workers_does_not_hide_what_became_of_them(job: Job) -> None:
    job.start()
    engine = tracer_in(job.directory, rank=-1, details={"role": "engine"})
    engine.activity("dequeue").begin()
    job.post()
    assert job.poll().activity == "idle"
    job.post(0)
    job.post(1, op="all_gather")
    assert verdict_of(job.poll())[0] == "op_mismatch"

    for tracer in job.tracers.values():
        tracer.close()
    poll = job.poll(5.0)

    assert (poll.activity, poll.status) == ("over", "diverged")
    assert verdict_of(poll)[0] == "op_mismatch"


def test_ranks_may_join_later(job: Job) -> None:
    job.start(0)
    job.post(0)
    first = job.poll()
    assert (first.status, first.changed, first.news) == ("incomplete", True, False)

    job.start(1)
    job.post(1)
    second = job.poll(1.0)
    assert (second.status, second.changed) == ("ok", True)
    assert not job.poll().changed


def test_a_difference_is_seen_at_once_though_nobody_waits(job: Job) -> None:
    job.start()
    job.post()
    assert job.poll().status == "ok"
    job.post(0, shape=(8, 2))
    assert job.poll().status == "ok"  # rank 1 has not come as far

    job.post(1, shape=(9, 2))
    poll = job.poll()

    assert (poll.status, poll.changed, poll.news) == ("diverged", True, True)
    assert poll.verdict is not None
    assert poll.verdict.cause is not None
    assert poll.verdict.cause.kind == "size_mismatch"
    assert poll.verdict.cause.seq == 2
    again = job.poll()
    assert (again.status, again.changed, again.news) == ("diverged", False, False)


@pytest.mark.parametrize("ahead", [3, KEPT - 10, KEPT + 500])
def test_however_far_the_others_are_ahead(rings: Path, ahead: int) -> None:
    job = Job(rings, 2, capacity=3 * KEPT)
    job.start()
    job.post()
    job.poll()
    job.post(0, shape=(7, 2))
    for _ in range(ahead):
        job.post(0)
    assert job.poll().status == "ok"

    job.post(1, shape=(6, 2))

    assert job.poll().status == "diverged"


def test_a_difference_from_before_the_watch_began(job: Job) -> None:
    job.start()
    job.post(0)
    job.post(1, shape=(6, 2))
    for _ in range(50):
        job.post()

    poll = job.poll()
    assert poll.status == "diverged"
    assert poll.verdict is not None
    assert poll.verdict.cause is not None
    assert poll.verdict.cause.seq == 1


def test_a_ring_that_has_gone_round_between_two_polls(rings: Path) -> None:
    job = Job(rings, 2, capacity=layout.MIN_CAPACITY)
    job.start()
    job.post()
    job.poll()
    for _ in range(3000):
        job.post()
    poll = job.poll()
    assert poll.status == "ok"
    assert {cursor.comm_cursors["tp:0/(0, 1)"].seq for cursor in poll.ranks} == {3001}

    job.post(0, shape=(5, 2))
    job.post(1, shape=(6, 2))
    assert job.poll().status == "diverged"


def test_a_record_that_is_being_written_is_left_for_the_next_poll(job: Job) -> None:
    job.start()
    job.post()
    job.poll()
    job.post(0, shape=(8, 2))
    job.post(1, shape=(9, 2))
    ring = job.tracers[1].ring
    place = slot(ring, ring.position - 1)
    whole = bytes(ring._buffer[place])
    ring._buffer[place] = whole[:40] + bytes(len(whole) - 40)

    poll = job.poll()
    assert poll.status == "ok"
    assert [cursor.head for cursor in poll.ranks] == [2, 1]

    ring._buffer[place] = whole
    assert job.poll().status == "diverged"


def test_an_idle_server_is_no_stall(job: Job) -> None:
    job.start()
    for _ in range(5):
        job.post()
    job.poll()

    poll = job.poll(3600.0)

    assert (poll.status, poll.activity, poll.changed) == ("ok", "idle", False)


def test_bursts_and_pauses_change_nothing(job: Job) -> None:
    job.start()
    job.post()
    job.poll()
    for _ in range(20):
        for _ in range(30):
            job.post()
        assert not job.poll().changed
        assert not job.poll(11.0).changed


def test_a_stall_is_one_after_so_many_seconds(job: Job) -> None:
    job.start()
    job.post()
    job.post(0, done=False)
    assert job.poll().status == "ok"
    assert job.poll(STALL - 1).status == "ok"

    poll = job.poll(1.5)

    assert (poll.status, poll.news) == ("hung", True)
    assert verdict_of(poll) == ("not_joined", ())
    assert poll.activity == "running"  # inside of a call is not idle


def test_and_none_any_more_when_it_moves_on(job: Job) -> None:
    job.start()
    job.post()
    job.post(0, done=False)
    job.poll()
    assert job.poll(STALL + 1).status == "hung"

    job.post(1)
    job.tracers[0].complete(1)
    poll = job.poll(3.0)

    assert (poll.status, poll.changed, poll.news) == ("ok", True, False)


def test_all_in_one_call_that_does_not_come_to_its_end(job: Job) -> None:
    job.start()
    job.post()
    job.post(done=False)
    job.poll()

    poll = job.poll(STALL + 1)

    assert poll.status == "hung"
    assert poll.verdict is not None
    assert poll.verdict.cause is not None
    assert poll.verdict.cause.kind == "stalled"


def test_where_completion_is_not_reported_equal_counts_are_no_stall(job: Job) -> None:
    job.start()
    for _ in range(4):
        job.post(done=False, backend="nccl")
    job.poll()

    assert job.poll(3600.0).status == "unknown"

    job.post(0, done=False, backend="nccl")
    job.poll()
    assert verdict_of(job.poll(STALL + 1)) == ("not_joined", ())


def test_an_order_swap_where_completion_is_not_reported_is_found_when_nothing_moves(
    rings: Path,
) -> None:
    job = Job(rings, 4)
    job.start()

    def post(*ranks: int, comm: str) -> None:
        for rank in ranks:
            pair = range(rank // 2 * 2, rank // 2 * 2 + 2)
            members = range(4) if comm == "world" else pair
            job.post(rank, comm=comm, members=members, done=False, backend="nccl")

    for _ in range(3):
        post(*range(4), comm="world")
        post(*range(4), comm="tp:0")
    job.poll()
    assert job.poll(STALL + 1).status == "unknown"

    post(0, 1, 2, comm="world")
    post(*range(4), comm="tp:0")
    post(3, comm="world")
    assert not job.poll().in_trouble
    poll = job.poll(STALL + 1)

    assert verdict_of(poll) == ("order_cycle", (3,))
    assert (poll.status, poll.news) == ("hung", True)


def test_a_barrier_that_has_completed_does_not_make_the_next_call_one_that_hangs(job: Job) -> None:
    job.start()
    job.post(op="barrier", backend="nccl")
    job.post(done=False, backend="nccl")
    job.poll()

    poll = job.poll(STALL + 1)

    assert (poll.status, poll.activity, poll.stuck) == ("unknown", "idle", frozenset())


def test_gpus_that_spin_reveal_a_stall_where_completion_is_not_reported(job: Job) -> None:
    job.start()
    job.post(done=False, backend="nccl")
    job.use = (100, 100)
    assert job.poll().status == "ok"
    assert job.poll(STALL - 1).status == "ok"
    assert job.samples == 0
    assert job.poll(2.0).status == "unknown"
    assert job.poll(1.0).status == "unknown"

    poll = job.poll(1.5)

    assert (poll.status, poll.news, verdict_of(poll)) == ("hung", True, ("stalled", ()))
    assert job.samples == 2
    job.post(done=False, backend="nccl")
    assert job.poll(2.0).status == "ok"
    assert job.poll(30.0).status == "unknown"


def test_a_single_poll_takes_the_time_to_sample_gpus_twice(
    job: Job, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    job.start()
    job.post(done=False, backend="nccl")
    job.use = (100, 100)
    job.now += 60.0
    monkeypatch.setattr(time, "sleep", job.poll)  # the watcher's clock goes on meanwhile
    arguments = argparse.Namespace(json=False, textfile=None)

    assert _once(job.watcher, arguments, ()) == 1
    assert "stalled" in capsys.readouterr().out


def test_engines_that_have_no_gpu_are_not_asked_for_one(job: Job) -> None:
    job.start()
    engine = tracer_in(job.directory, rank=-1, details={"role": "engine", "pid": 7})
    engine.activity("dequeue").begin()
    job.post(done=False, backend="nccl")
    job.use = (100, 100)
    for seconds in (0.1, 40.0, 2.5):
        poll = job.poll(seconds)

    assert verdict_of(poll) == ("stalled", ())


@pytest.mark.parametrize("use", [(100, 0), (0, 0), (100,), ()])
def test_other_gpus_do_not(job: Job, use: tuple[int, ...]) -> None:
    job.start()
    job.post(done=False, backend="nccl")
    job.use = use

    polls = [job.poll(11.0) for _ in range(10)]

    assert {poll.status for poll in polls} == {"unknown"}
    assert not any(poll.in_trouble for poll in polls)


def test_gpus_are_not_sampled_where_calls_are_known_to_have_completed(job: Job) -> None:
    job.start()
    job.post()
    job.use = (100, 100)

    assert {job.poll(11.0).status for _ in range(10)} == {"unknown"}
    assert job.samples == 0


def test_gpus_of_other_processes_do_not_count() -> None:
    busy, idle = gpus(100, 100, 0)[0][:2], gpus(0, 0, 0)[0][2:]

    assert all_spin([1000, 1001], busy + idle)
    assert not all_spin([1000, 1002], busy + idle)
    assert not all_spin([1000, 7], busy)
    shared = [replace(gpu, pids=(*gpu.pids, 7)) for gpu in busy]
    assert not all_spin([1000, 1001], shared), "another process may load them"
    # In a container the processes of the host are named, which are nobody's here.
    assert all_spin([5, 6], busy)
    assert not all_spin([5, 6], busy + idle)


def test_one_replica_hangs_while_the_other_goes_on(rings: Path) -> None:
    job = Job(rings, 4)
    job.start()
    job.post(comm="world")
    for members in ((0, 1), (2, 3)):
        job.post(members=members)
    job.poll()
    job.post(0, members=(0, 1), done=False)
    status = "ok"
    for _ in range(int(STALL) + 3):
        job.post(members=(2, 3))
        job.post(2, members=(2, 3), done=False)  # rank 2 waits for a moment at each poll
        poll = job.poll(1.0)
        status = poll.status
        job.post(3, members=(2, 3))
        job.tracers[2].complete(job.tracers[2].ring.position - 1)

    assert status == "hung"
    assert verdict_of(poll) == ("not_joined", (1,))


def test_a_rank_that_a_part_judged_alone_waits_for_left_a_record(rings: Path) -> None:
    """Ranks 0 to 2 wait in a group of theirs, for what rank 3 is to send to rank 1."""
    cluster = Cluster(rings, 4)
    for _ in range(3):
        cluster.post([3], "world", "send", peer=1)
        cluster.post([1], "world", "recv", peer=3)
        cluster.post([0, 1, 2], "tp:0", members=[0, 1, 2])
    cluster.post([1], "world", "recv", peer=3, done=False)
    cluster.post([0, 2], "tp:0", members=[0, 1, 2], done=False)
    ranks = [replace(rank, alive=True) for rank in cluster.run().ranks]
    near = {Path(rank.source) for rank in ranks[:3]}
    watcher = Watcher(rings, stall=STALL)

    assert watcher._diagnose([rank for rank in ranks if Path(rank.source) in near]).run.missing
    verdict = watcher._diagnose_near(ranks, near)

    assert verdict.status == "hung"
    assert verdict.run.missing == ()
    assert "left no record" not in verdict.summary


def test_the_order_inside_a_group_is_no_alarm_and_what_comes_after_is(job: Job) -> None:
    job.start()
    job.post()
    for rank, order in ((0, (3, 4)), (1, (4, 3))):
        scope.enter_group()
        for rows in order:
            job.post(rank, shape=(rows, 2))
            assert job.poll().status == "ok"  # also while the group is under way
        scope.leave_group()
    for _ in range(30):
        job.post()
        assert job.poll().status == "ok"

    job.post(0, shape=(5, 2))
    job.post(1, shape=(6, 2))
    assert job.poll().status == "diverged"


def test_other_calls_in_a_group_are_one(job: Job) -> None:
    job.start()
    job.post()
    job.poll()
    for rank, order in ((0, (3, 4)), (1, (4, 5))):
        scope.enter_group()
        for rows in order:
            job.post(rank, shape=(rows, 2), done=False)
        scope.leave_group()
    assert not job.poll().in_trouble

    assert job.poll(1.5).status == "diverged"


GONE = """
import os, sys
from tests.support.snapshots import gpus
from tests.support.rings import tracer_in
for rank in (0, 1):
    tracer = tracer_in(sys.argv[1], rank=rank, world_size=2)
    comm = tracer.communicator("tp:0/(0, 1)", "tp:0", [0, 1], "gloo")
    for number in range(9):
        tracer.record(comm, "all_reduce", shape=(rank, number), dtype="int8", site="f.py:1 f")
os._exit(0)
"""


def test_what_an_earlier_job_left_is_not_taken_for_this_one(rings: Path, job: Job) -> None:
    assert run_program(GONE, rings).returncode == 0
    assert (job.poll().status, job.poll().activity) == ("incomplete", "over")

    job.start()
    for _ in range(12):
        job.post()
    poll = job.poll(1.0)

    assert (poll.status, poll.activity) == ("ok", "idle")
    assert len(poll.ranks) == 2


def test_a_job_that_ended_in_order(job: Job) -> None:
    job.start()
    for _ in range(3):
        job.post()
    assert job.poll().status == "ok"
    for tracer in job.tracers.values():
        tracer.close()

    poll = job.poll(1.5)

    assert (poll.status, poll.activity) == ("ok", "over")


def test_workers_that_are_started_anew_after_a_divergence(job: Job) -> None:
    job.start()
    job.post(0)
    job.post(1, shape=(9, 9))
    assert job.poll().status == "diverged"
    for tracer in job.tracers.values():
        tracer.close()
    assert job.poll(1.5).status == "diverged"  # the verdict stays

    time.sleep(0.002)  # names of rings distinguish milliseconds
    job.start()
    job.post()
    poll = job.poll(1.5)

    assert (poll.status, poll.changed, poll.news) == ("ok", True, False)
    assert len(poll.ranks) == 2


def test_a_file_that_is_no_ring_is_noted_and_passed_over(job: Job) -> None:
    (job.directory / "foreign.ring").write_bytes(b"nothing of ours")
    job.start()
    job.post()

    assert job.poll().status == "ok"
    assert "foreign.ring" in job.watcher.notes[0]


def test_a_hash_under_another_ranks_number_costs_no_search(
    job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    job.start()
    job.post()
    job.poll()

    def search(*_: object) -> None:
        raise AssertionError("the ring was searched")

    monkeypatch.setattr(cursor_module, "log_of", search)
    for _ in range(200):
        job.post(0)
    job.poll()
    for _ in range(200):
        job.post(1)
        assert job.poll().status == "ok"


def test_words_follow_a_ring(rings: Path) -> None:
    tracer = tracer_in(rings, rank=3, world_size=4)
    cursor = RingCursor(Path(tracer.path))
    assert (cursor.rank, cursor.head, cursor.comm_cursors) == (3, 0, {})

    comm = tracer.communicator("k", "tp:0", [2, 3])
    position = tracer.record(comm, "all_reduce", shape=(4,), dtype="int8")
    tracer.record(comm, "send", shape=(4,), peer=0)
    assert cursor.poll(1.0)
    comm_cursor = cursor.comm_cursors["k"]
    assert (comm_cursor.seq, comm_cursor.hash, comm_cursor.p2p, comm_cursor.tells) == (
        1,
        comm.channel.hash,
        1,
        False,
    )
    assert not cursor.poll(2.0)
    assert cursor.moved_at == 1.0

    tracer.complete(position)
    assert cursor.poll(3.0)
    assert comm_cursor.tells
    last = cursor.last("k")
    assert last is not None
    assert (last.op, last.shape, last.state) == ("all_reduce", (4,), 2)


def test_calls_that_only_the_plugin_recorded_on_one_rank_are_no_alarm(
    job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    diagnoses = []
    monkeypatch.setattr(
        watch_module,
        "diagnose",
        lambda *args, **more: diagnoses.append(1) or diagnose(*args, **more),
    )
    job.start()
    for size in range(1, 200):
        job.post(0, shape=(size,), backend="nccl", done=False)
        job.post(1, shape=None, numel=size, redop=None, backend="nccl", done=False)
        assert job.poll().status == "ok"
    assert len(diagnoses) < 20, "their hashes differ at every poll, and are not judged at every one"

    job.post(0, shape=(7,), backend="nccl", done=False)
    job.post(1, shape=None, numel=8, redop=None, backend="nccl", done=False)
    assert verdict_of(job.poll(seconds=3.0)) == ("size_mismatch", ())
