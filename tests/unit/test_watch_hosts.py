"""Hosts that are lost while a job is watched, and hosts whose wall clocks differ."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ncclscope import Tracer
from ncclscope.remote.fleet import LostNodeError
from ncclscope.remote.rings import RemoteRings
from ncclscope.remote.spelling import pack, unpack
from ncclscope.tracing.tracer import Comm
from ncclscope.watch.poll import Poll
from ncclscope.watch.silence import HostNews
from ncclscope.watch.startup import PATIENCE
from ncclscope.watch.watch import Watcher
from tests.support.remote_nodes import LocalClient

SIZE = 4
HOUR_NS = 3600 * 10**9


class Job:
    """Two ranks on each of two nodes, and a watch of both.

    Args:
        directory: For the rings of both nodes.
        tells: Whether calls complete, so that a pending call is known to be pending.
    """

    def __init__(self, directory: Path, *, tells: bool) -> None:
        self.directories = {name: directory / name for name in ("a", "b")}
        self.now = 100.0
        self.tells = tells
        self.ranks: list[tuple[Tracer, Comm]] = []
        for rank in range(SIZE):
            where = self.directories["ab"[rank // 2]]
            where.mkdir(exist_ok=True)
            tracer = Tracer(where, rank=rank, world_size=SIZE, heartbeat=False)
            self.ranks.append((tracer, tracer.communicator("K", "tp:0", range(SIZE), "nccl")))
        self.client = LocalClient(self.directories)
        self.watcher = self.watch()

    def watch(self) -> Watcher:
        rings = RemoteRings(self.client)
        return Watcher(Path("nodes"), clock=lambda: self.now, rings=rings)

    def post(self, *ranks: int, op: str = "all_reduce", completes: bool = True) -> None:
        for rank in ranks or range(SIZE):
            tracer, comm = self.ranks[rank]
            position = tracer.record(comm, op, shape=(4,), dtype="float32")
            if self.tells and completes:
                tracer.complete(position)

    def poll(self, after: float = 0.1) -> Poll:
        self.now += after
        return self.watcher.poll()

    def close(self) -> None:
        for tracer, _ in self.ranks:
            tracer.close()


@pytest.fixture(params=[False, True], ids=["defaults", "given"])
def job(rings: Path, request: pytest.FixtureRequest) -> Iterator[Job]:
    found = Job(rings, tells=request.param)
    found.post()
    found.post()
    yield found
    found.close()


def blamed(poll: Poll) -> tuple[tuple[int, ...], tuple[int, ...], str]:
    assert poll.verdict is not None
    assert poll.verdict.cause is not None
    cause = poll.verdict.cause
    return cause.diverging_ranks, cause.candidate_ranks, cause.confidence


def test_an_idle_job_of_which_a_host_is_lost_is_no_alarm(job: Job) -> None:
    assert job.poll().status == "ok"
    job.poll(60.0)
    job.client.lost.add(1)
    for seconds in (0.1, 5.0, 20.0, 100.0):
        poll = job.poll(seconds)
        assert (poll.status, poll.in_trouble) == ("incomplete", False)
        assert dict(poll.silent) == {"b": "gone"}
    assert poll.verdict is not None
    assert poll.verdict.run.missing == (2, 3)
    assert poll.verdict.summary.startswith("Ranks 2 3: b does not report.")
    assert poll.verdict.notes == ("b does not report: gone",)
    job.client.lost.clear()
    poll = job.poll()
    assert poll.status in ("ok", "unknown")  # a job that rests proves little
    assert not poll.silent
    assert poll.verdict is not None
    assert poll.verdict.notes == ()


def test_a_host_that_was_behind_when_it_was_lost_is_no_alarm(job: Job) -> None:
    job.post(0, 1)
    assert not job.poll().in_trouble
    job.client.lost.add(1)
    job.poll()
    # Its ranks have made these calls as well, as far as anybody knows.
    for _ in range(3):
        job.post(0, 1)
    for seconds in (0.1, 9.0, 9.0, 100.0):
        assert not job.poll(seconds).in_trouble
    job.post(2, 3)
    for _ in range(3):
        job.post(2, 3)
    job.client.lost.clear()
    job.client.restart(1)
    assert job.poll().status == "ok"


def test_a_late_report_makes_no_rank_late(job: Job) -> None:
    """A host that is slow, and not lost yet, is known only up to its last report."""
    job.post(0, 1, 2)
    job.poll()
    reports = job.client.reports
    job.client.reports = lambda: {0: reports()[0]}  # type: ignore[method-assign]
    if job.tells:
        job.post(0, 1)
    for seconds in (4.0, 4.0, 1.5):
        poll = job.poll(seconds)
        assert not poll.silent
        assert not poll.stuck & {cursor.path for cursor in poll.ranks if cursor.rank in (2, 3)}


def test_trouble_outlasts_the_loss_of_its_host_with_less_certainty(job: Job) -> None:
    job.post(0, 1, 2)
    job.post(3, op="all_gather")
    poll = job.poll()
    assert poll.news
    assert blamed(poll) == ((3,), (), "certain")
    job.client.lost.add(1)
    poll = job.poll()
    assert (poll.status, poll.news, poll.changed) == ("diverged", False, False)
    assert blamed(poll) == ((3,), (), "likely")
    job.client.lost.clear()
    job.client.restart(1)
    poll = job.poll()
    assert (poll.status, poll.news, poll.changed) == ("diverged", False, False)
    assert blamed(poll) == ((3,), (), "certain")


@pytest.mark.parametrize("is_known", [False, True])
def test_ranks_that_are_stuck_are_an_alarm_that_blames_no_lost_rank(
    rings: Path, is_known: bool
) -> None:
    job = Job(rings, tells=True)
    job.post()
    if is_known:
        assert len(job.poll().ranks) == SIZE
    job.client.lost.add(1)
    assert not job.poll().in_trouble
    job.post(0, 1, completes=False)
    assert not job.poll(0.1).in_trouble
    poll = job.poll(11.0)
    assert poll.status == "hung"
    assert blamed(poll) == ((), (2, 3), "ambiguous")
    assert poll.verdict is not None
    assert poll.verdict.summary.startswith("Ranks 0 1 wait in call 2 on tp:0")
    assert "nothing is known of ranks 2 3: b does not report" in poll.verdict.summary
    # It comes back, and its ranks are where they were.
    job.client.lost.clear()
    poll = job.poll()
    assert poll.status == "hung"
    assert poll.verdict is not None
    assert poll.verdict.run.missing == ()
    assert "does not report" not in poll.verdict.summary
    # Rank 2 comes to the others, and rank 3 does not.
    job.post(2, completes=False)
    job.poll(3.0)
    poll = job.poll(11.0)
    assert poll.status == "hung"
    assert blamed(poll)[0] == (3,)
    job.close()


def test_an_idle_job_of_which_a_host_was_never_seen_is_no_alarm(job: Job) -> None:
    job.client.lost.add(1)
    for seconds in (0.1, 11.0, 100.0):
        poll = job.poll(seconds)
        assert poll.status in ("incomplete", "unknown")
        assert not poll.stuck
    assert len(poll.ranks) == 2


def test_a_rendezvous_with_a_lost_host_is_no_alarm(rings: Path) -> None:
    directories = {name: rings / name for name in ("a", "b")}
    ranks = [
        Tracer(directories[name], rank=rank, world_size=3, heartbeat=False, details={"run": "one"})
        for rank, name in ((0, "a"), (1, "a"), (2, "b"))
    ]
    for tracer in ranks[:2]:
        tracer.activity("init_process_group").begin("gloo at train.py:3", 300)
    now = [100.0]
    client = LocalClient(directories)
    client.lost.add(1)
    watch = Watcher(Path("nodes"), stall=1.0, clock=lambda: now[0], rings=RemoteRings(client))
    for _ in range(3):
        assert not watch.poll().in_trouble
        now[0] += PATIENCE + 2.0
    client.lost.clear()
    now[0] += 2.0
    poll = watch.poll()
    now[0] += 2.0
    poll = watch.poll()
    assert poll.status == "hung"
    assert blamed(poll)[0] == (2,)
    for tracer in ranks:
        tracer.close()


def test_a_host_that_begins_anew_reports_its_rings_once(job: Job) -> None:
    assert len(job.poll().ranks) == SIZE
    job.post()
    tracer, _ = job.ranks[3]
    tracer.close()
    for path in job.directories["b"].iterdir():
        if path == Path(tracer.path):
            path.unlink()
    job.client.restart(1)
    poll = job.poll()
    assert [cursor.rank for cursor in poll.ranks] == [0, 1, 2]
    assert [cursor.comm_cursors["K"].seq for cursor in poll.ranks] == [3, 3, 3]
    # Its communicators are numbered anew as well.
    job.ranks[2][0].close()
    Path(job.ranks[2][0].path).unlink()
    other = Tracer(job.directories["b"], rank=2, world_size=SIZE, heartbeat=False)
    comm = other.communicator("L", "pp:0", (2, 3), "nccl")
    other.record(comm, "all_gather", shape=(4,), dtype="float32")
    job.client.restart(1)
    poll = job.poll()
    assert [set(cursor.comm_cursors) for cursor in poll.ranks] == [{"K"}, {"K"}, {"L"}]
    assert not job.watcher.notes
    other.close()


@pytest.mark.parametrize("what", ["summary", "members", "answers", "answers later"])
def test_a_host_with_invalid_answers_costs_only_its_own_ranks(rings: Path, what: str) -> None:
    job = Job(rings, tells=False)
    job.post()
    client: Any = job.client
    summaries, ask = client.summaries, client.ask

    def damaged() -> dict[int, bytes | str]:
        found = summaries()
        summary = unpack(found[1])
        summary["ranks" if what == "summary" else "comms"] = [["x"]]
        return {**found, 1: pack(summary)}

    def refused(requests: dict[int, bytes]) -> dict[int, bytes]:
        first = {unpack(data)[0][0] for node, data in requests.items() if node == 1}
        if first - ({"members"} if what == "answers later" else set()):
            raise LostNodeError(1, "b: no answer for 10 s")
        found: dict[int, bytes] = ask(requests)
        return found

    if what.startswith("answers"):
        client.ask = refused
    else:
        client.summaries = damaged
    poll = job.poll()
    assert poll.verdict is not None
    assert [rank.rank for rank in poll.verdict.run.ranks] in ([0, 1], [0, 1, 2, 3])
    job.post(0, 2, 3)
    job.post(1, op="all_gather")
    for _ in range(400):
        job.post()
    poll = job.poll()
    assert poll.status == "diverged"
    assert poll.verdict is not None
    assert poll.verdict.run.missing == (2, 3)
    assert [*poll.silent] == ["b"]
    job.close()


class SkewedClient(LocalClient):
    """Nodes of which one has a wall clock that is an hour behind or ahead."""

    skew_ns = 0
    jump_ns = 0
    """How far the clock has jumped since everything that it dated."""

    def reports(self) -> dict[int, bytes | str]:
        found = super().reports()
        report = unpack(found[1])  # type: ignore[arg-type]
        report["wall_ns"] += self.skew_ns + self.jump_ns
        for _, _, comms, waits in report["rows"]:
            for comm in comms:
                if comm[-1]:
                    comm[-1][2] += self.skew_ns
            for one in waits:
                one[0] += self.skew_ns
        return {**found, 1: pack(report)}

    def summaries(self) -> dict[int, bytes | str]:
        found = super().summaries()
        summary = unpack(found[1])  # type: ignore[arg-type]
        for rank in summary["ranks"]:
            for at in (8, 9):
                rank["about"][at] += self.skew_ns
            for one in rank["activities"]:
                one[4] += self.skew_ns
            for log in rank["logs"]:
                times = log[-1][3]
                if times:
                    times[0] += self.skew_ns
        return {**found, 1: pack(summary)}


@pytest.mark.parametrize("skew_ns", [-HOUR_NS, HOUR_NS, 2 * 10**9, -2 * 10**9, 0])
def test_a_clock_that_differs_neither_hides_nor_makes_a_hang(rings: Path, skew_ns: int) -> None:
    job = Job(rings, tells=True)
    job.client = SkewedClient(job.directories)
    job.client.skew_ns = skew_ns
    job.watcher = job.watch()
    job.post()
    job.post(1, 2, 3, completes=False)
    for seconds in (0.1, 4.0, 4.0):
        assert not job.poll(seconds).in_trouble
    poll = job.poll(3.0)
    assert poll.status == "hung"
    assert blamed(poll)[0] == (0,)
    job.close()


@pytest.mark.parametrize("skew_ns", [-HOUR_NS, HOUR_NS, 0])
def test_a_clock_that_differs_makes_no_wait_longer(rings: Path, skew_ns: int) -> None:
    directories = {name: rings / name for name in ("a", "b")}
    ranks = [
        Tracer(directories["b"], rank=rank, world_size=3, heartbeat=False, details={"run": "one"})
        for rank in (0, 1)
    ]
    for tracer in ranks:
        tracer.activity("init_process_group").begin("gloo at train.py:3", 300)
    now = [100.0]
    client = SkewedClient(directories)
    client.skew_ns = skew_ns
    watch = Watcher(Path("nodes"), stall=1.0, clock=lambda: now[0], rings=RemoteRings(client))
    assert not watch.poll().in_trouble
    now[0] += PATIENCE - 2.0
    assert not watch.poll().in_trouble
    # The clock jumps while the rank waits, and all is reported again: no wait is longer.
    client.jump_ns = HOUR_NS
    client.restart(1)
    now[0] += 1.0
    assert not watch.poll().in_trouble
    now[0] += 2.0
    poll = watch.poll()
    assert poll.status == "hung"
    assert blamed(poll)[0] == (2,)
    for tracer in ranks:
        tracer.close()


def test_news_of_hosts_come_once() -> None:
    news = HostNews()
    assert news.of({}) == []
    assert news.of({"a": "timed out"}) == ["a does not report: timed out"]
    assert news.of({"a": "refused", "b": "x"}) == [
        "a does not report: refused",
        "b does not report: x",
    ]
    assert news.of({"a": "timed out", "b": "x"}) == []
    assert news.of({"b": "x"}) == ["a reports again"]
    assert news.of({"a": "timed out"}) == ["b reports again", "a does not report: timed out"]
