"""A job on several nodes is watched by what they report."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from ncclscope import Tracer
from ncclscope.remote.rings import RemoteRings
from ncclscope.remote.spelling import pack, unpack
from ncclscope.tracing.tracer import Comm
from ncclscope.watch.startup import PATIENCE
from ncclscope.watch.watch import Watcher
from tests.support.remote_nodes import LocalClient

SIZE = 4


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


class Job:
    """Two ranks on each of two nodes."""

    def __init__(self, directory: Path) -> None:
        self.directories = {name: directory / name for name in ("a", "b")}
        for path in self.directories.values():
            path.mkdir()
        self.tracers: list[Tracer] = []
        self.comms: list[Comm] = []
        for rank in range(SIZE):
            where = self.directories["ab"[rank // 2]]
            tracer = Tracer(where, rank=rank, world_size=SIZE, heartbeat=False)
            self.tracers.append(tracer)
            self.comms.append(tracer.communicator("K", "tp:0", range(SIZE), "nccl"))

    def post(self, rank: int, op: str = "all_reduce", count: int = 1) -> None:
        for _ in range(count):
            self.tracers[rank].record(self.comms[rank], op, shape=(4,), dtype="float32")


@pytest.fixture
def job(rings: Path) -> Iterator[Job]:
    found = Job(rings)
    yield found
    for tracer in found.tracers:
        tracer.close()


def watcher(job: Job) -> tuple[Watcher, RemoteRings, LocalClient, Clock]:
    client, clock = LocalClient(job.directories), Clock()
    rings = RemoteRings(client)
    return Watcher(Path("nodes"), clock=clock, rings=rings), rings, client, clock


def test_ranks_of_all_nodes_are_seen(job: Job) -> None:
    for rank in range(SIZE):
        job.post(rank, count=3)
    watch, _, _, _ = watcher(job)
    poll = watch.poll()
    assert [cursor.rank for cursor in poll.ranks] == [0, 1, 2, 3]
    assert [cursor.comm_cursors["K"].seq for cursor in poll.ranks] == [3] * SIZE
    last = poll.ranks[0].last("K")
    assert last is not None
    assert (last.op, last.shape) == ("all_reduce", (4,))
    assert poll.status == "ok"
    assert poll.verdict is not None
    assert len(poll.verdict.run.ranks) == SIZE


def test_a_divergence_between_nodes_shows_at_the_next_poll(job: Job) -> None:
    watch, _, _, clock = watcher(job)
    for step in range(5):
        for rank in range(SIZE):
            job.post(rank, count=100 + step)
        clock.now += 0.1
        assert not watch.poll().in_trouble
    for rank in range(SIZE):
        job.post(rank, "all_gather" if rank == 3 else "all_reduce")
    clock.now += 0.1
    poll = watch.poll()
    assert poll.news
    assert poll.status == "diverged"
    assert poll.verdict is not None
    assert poll.verdict.cause is not None
    assert poll.verdict.cause.diverging_ranks == (3,)
    assert poll.verdict.cause.seq == 511


def test_those_behind_are_compared_with_what_was_there(job: Job) -> None:
    """The rank that diverged is far behind the others, which nobody waits for."""
    watch, _, _, clock = watcher(job)
    for rank in range(SIZE):
        job.post(rank, count=10)
    assert not watch.poll().in_trouble
    job.post(2, "all_gather")
    for rank in (0, 1, 3):
        job.post(rank, count=500)
    clock.now += 0.1
    poll = watch.poll()
    assert poll.status == "diverged"
    assert poll.verdict is not None
    assert poll.verdict.cause is not None
    assert (poll.verdict.cause.diverging_ranks, poll.verdict.cause.seq) == ((2,), 11)


def test_being_behind_is_no_divergence(job: Job) -> None:
    watch, _, _, clock = watcher(job)
    for count, rank in ((900, 0), (1, 1), (500, 2), (30, 3)):
        job.post(rank, count=count)
    for _ in range(3):
        clock.now += 0.1
        assert watch.poll().status == "ok"


def test_a_hang_is_found_by_time(job: Job) -> None:
    watch, _, _, clock = watcher(job)
    for rank in range(SIZE):
        job.post(rank, count=2)
    for rank in range(1, SIZE):
        job.post(rank)
    watch.poll()
    clock.now += 11.0
    poll = watch.poll()
    assert poll.status == "hung"
    assert poll.verdict is not None
    assert poll.verdict.cause is not None
    assert (poll.verdict.cause.kind, poll.verdict.cause.diverging_ranks) == ("not_joined", (0,))


def test_a_rank_that_never_comes_to_the_rendezvous_is_an_alarm_once(rings: Path) -> None:
    directories = {name: rings / name for name in ("a", "b")}
    ranks = [
        Tracer(directories[name], rank=rank, world_size=3, heartbeat=False, details={"run": "one"})
        for rank, name in ((0, "a"), (1, "b"))
    ]
    for tracer in ranks:
        tracer.activity("init_process_group").begin("gloo at train.py:3", 300)
    clock = Clock()
    watch = Watcher(
        Path("nodes"), stall=1.0, clock=clock, rings=RemoteRings(LocalClient(directories))
    )
    assert watch.poll().status == "unknown"
    clock.now += PATIENCE - 1.0
    assert not watch.poll().in_trouble

    clock.now += 2.0
    poll = watch.poll()

    assert (poll.status, poll.news) == ("hung", True)
    assert poll.verdict is not None
    assert poll.verdict.cause is not None
    cause = poll.verdict.cause
    assert (cause.kind, cause.diverging_ranks) == ("init_stalled", (2,))
    clock.now += 2.0
    assert not watch.poll().news
    for tracer in ranks:
        tracer.close()


def test_little_travels_and_nothing_where_nothing_moves(job: Job) -> None:
    watch, rings, _, clock = watcher(job)
    for rank in range(SIZE):
        job.post(rank, count=7)
    watch.poll()
    clock.now += 0.1
    before = rings.received
    watch.poll()
    idle = rings.received - before
    assert idle < 2 * 100
    for rank in range(SIZE):
        job.post(rank, count=50)
    clock.now += 0.1
    before = rings.received
    watch.poll()
    assert rings.received - before < SIZE * 300


def test_a_lost_node_is_reported(job: Job) -> None:
    watch, _, client, clock = watcher(job)
    for rank in range(SIZE):
        job.post(rank)
    assert watch.poll().status == "ok"
    client.lost.add(1)
    clock.now += 0.1
    poll = watch.poll()
    assert watch.notes == ("b does not report: gone",)
    assert not poll.in_trouble  # that a node is silent is no divergence
    client.lost.clear()
    clock.now += 0.1
    watch.poll()
    assert watch.notes == ()


def test_the_newest_calls_are_asked_for(job: Job) -> None:
    for rank in range(SIZE):
        job.post(rank, count=5)
    job.post(3, "all_gather")
    watch, _, _, _ = watcher(job)
    cursor = watch.poll().ranks[3]
    for key in (None, "K"):
        calls = cursor.newest(3, key)
        assert [(call.op, call.comm, call.seq) for call in calls] == [
            *(("all_reduce", "K", 4), ("all_reduce", "K", 5), ("all_gather", "K", 6)),
        ]
    assert cursor.newest(3, "other") == []


def test_a_job_that_is_over_has_a_last_word(job: Job) -> None:
    for rank in range(SIZE):
        job.post(rank, "all_gather" if rank == 1 else "all_reduce")
    for tracer in job.tracers:
        tracer.close()
    watch, _, _, _ = watcher(job)
    assert watch.poll().activity == "over"
    verdict = watch.last_word()
    assert verdict.cause is not None
    assert verdict.cause.diverging_ranks == (1,)


def test_a_report_that_is_none(job: Job) -> None:
    watch, _, client, _ = watcher(job)
    client.reports = lambda: {0: b"junk", 1: b""}  # type: ignore[method-assign]
    poll = watch.poll()
    assert poll.activity == "waiting"
    assert len(watch.notes) == 2
    assert json.dumps(watch.notes)


@pytest.mark.parametrize("wrong", [None, "x", -5, 1 << 64, ["x"]])
def test_a_row_of_another_type_is_a_note(job: Job, wrong: object) -> None:
    for rank in range(SIZE):
        job.post(rank, count=3)
    job.tracers[0].activity("store_wait").begin("get weights", 300)
    client = LocalClient(job.directories)
    report = unpack(client.reports()[0])  # type: ignore[arg-type]
    who, moved, rows, waits = report["rows"][0]
    holders = [(report, "rows"), (report, "comms"), (report["comms"][0], 0)]
    parts = (who, moved, rows[0], waits[0])
    holders += [(holder, place) for holder in parts for place in range(len(holder))]
    for holder, place in holders:
        before, holder[place] = holder[place], wrong
        data = pack(report)
        holder[place] = before
        client.reports = lambda data=data: {0: data}  # type: ignore[method-assign]
        watch = Watcher(Path("nodes"), clock=Clock(), rings=RemoteRings(client))
        poll = watch.poll()
        assert len(poll.ranks) in (1, 2) or watch.notes, (holder, place)
        json.dumps([cursor.rank for cursor in poll.ranks])


@pytest.mark.parametrize(
    "answer", [b"junk", pack(None), pack([]), pack([[None] * 9] * 9), pack([["x"], [-1, 0.5]])]
)
def test_hashes_that_are_none_stay_unknown(job: Job, answer: bytes) -> None:
    for rank in range(SIZE):
        job.post(rank, count=3 + rank)
    watch, _, client, _ = watcher(job)
    client.ask_reporters = lambda _, requests: dict.fromkeys(requests, answer)  # type: ignore[method-assign]

    poll = watch.poll()

    assert poll.status == "ok"
    assert len(poll.ranks) == SIZE


@pytest.mark.parametrize("path", ["/x\0.ring", "/node/rank.ring"])
def test_a_path_on_a_node_is_not_opened_here(
    job: Job, tmp_path: Path, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for rank in range(SIZE):
        job.post(rank)
    monkeypatch.chdir(tmp_path)
    if "\0" not in path:
        (tmp_path / "0:" / "node").mkdir(parents=True)
        os.mkfifo(tmp_path / f"0:{path}")
    watch, _, client, _ = watcher(job)
    reports = client.reports

    def renamed() -> dict[int, bytes | str]:
        found = dict(reports())
        report = unpack(found[0])  # type: ignore[arg-type]
        report["rows"][0][0][0] = path
        return {**found, 0: pack(report)}

    client.reports = renamed  # type: ignore[method-assign]
    opened: list[str] = []
    monkeypatch.setattr("ncclscope.watch.transfers.RingImage", opened.append)

    watch.poll()

    assert not opened
