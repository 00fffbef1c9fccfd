"""Ranks at work for which others wait are late, and hang nobody."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from ncclscope.engine.verdict import Verdict, diagnose
from ncclscope.model import Rank
from ncclscope.model.activities import COMPILE, CPU, STORE_WAIT
from ncclscope.model.memory import ListLog
from ncclscope.tracing import heart
from ncclscope.tracing.started import started_time_ns
from tests.support.cluster import Cluster
from tests.support.rings import read, tracer_in

ClusterOf = Callable[[int], Cluster]
MICROSECONDS = 1_000_000


def works(cluster: Cluster, rank: int, seconds: float) -> None:
    """Let a rank have used so much CPU time since its last call."""
    last = cluster.run().by_rank[rank].last_call()
    assert last is not None
    assert last.time_ns
    slot = cluster.tracers[rank].activity(CPU)
    slot.begin(number=int(seconds * MICROSECONDS), since=last.time_ns)


def wait_for(cluster: Cluster, *absent: int) -> None:
    cluster.history()
    cluster.post([rank for rank in cluster.everybody if rank not in absent], "tp:0", done=False)


def named(verdict: Verdict) -> tuple[str, str, tuple[int, ...], str]:
    cause = verdict.cause
    assert cause is not None
    return verdict.status, cause.kind, cause.diverging_ranks, cause.confidence


@pytest.mark.parametrize("seconds", [55.0, 6.5])
def test_a_rank_that_computes_is_late_and_hangs_nobody(
    cluster_of: ClusterOf, seconds: float
) -> None:
    """It has a core for itself, or shares it with others and waited for a part of the time."""
    cluster = cluster_of(4)
    wait_for(cluster, 2)
    works(cluster, 2, seconds)
    works(cluster, 1, 0.3)

    verdict = cluster.verdict()

    assert named(verdict) == ("unknown", "late", (2,), "likely")
    assert verdict.exit_status == 3
    assert not verdict.in_trouble
    assert verdict.cause is not None
    assert verdict.cause.seq == 6
    assert verdict.cause.to_dict()["proof"]["releases"] == 3


def test_a_rank_that_is_blocked_is_not_late(cluster_of: ClusterOf) -> None:
    cluster = cluster_of(4)
    wait_for(cluster, 2)
    works(cluster, 2, 1.0)

    assert named(cluster.verdict())[:3] == ("hung", "not_joined", (2,))


def test_a_rank_that_an_exception_ended_is_not_late(cluster_of: ClusterOf) -> None:
    """Its process is at work for a while, as it is taken down."""
    cluster = cluster_of(4)
    wait_for(cluster, 2)
    works(cluster, 2, 55.0)
    cluster.tracers[2].describe(ended_with="ValueError: loss is not finite")

    assert named(cluster.verdict())[:3] == ("hung", "dead_rank", (2,))


def test_without_a_record_of_its_cpu_time_a_rank_is_not_late(cluster_of: ClusterOf) -> None:
    cluster = cluster_of(4)
    wait_for(cluster, 2)

    assert named(cluster.verdict())[:3] == ("hung", "not_joined", (2,))


def test_a_rank_that_its_only_peer_waits_for_is_late(cluster_of: ClusterOf) -> None:
    cluster = cluster_of(2)
    wait_for(cluster, 1)
    works(cluster, 1, 55.0)

    assert named(cluster.verdict()) == ("unknown", "late", (1,), "likely")


def test_a_rank_from_which_a_peer_receives_is_late(cluster_of: ClusterOf) -> None:
    """It was a mismatch of both, and the one that waits a candidate."""
    cluster = cluster_of(3)
    cluster.history()
    for _ in range(4):
        cluster.post([0], "tp:0", "send", peer=1)
        cluster.post([1], "tp:0", "recv", peer=0)
    cluster.post([1], "tp:0", "recv", peer=0, done=False)
    cluster.post([2], "tp:0", done=False)
    works(cluster, 0, 55.0)

    assert named(cluster.verdict()) == ("unknown", "late", (0,), "likely")


def test_most_ranks_at_work_may_be_right_that_the_call_is_not_due(cluster_of: ClusterOf) -> None:
    cluster = cluster_of(4)
    wait_for(cluster, 1, 2, 3)
    for rank in (1, 2, 3):
        works(cluster, rank, 55.0)

    verdict = cluster.verdict()

    assert named(verdict) == ("unknown", "late", (), "ambiguous")
    assert verdict.cause is not None
    assert verdict.cause.candidate_ranks == (1, 2, 3)


def test_of_two_absent_ranks_one_that_is_blocked_hangs_the_job(cluster_of: ClusterOf) -> None:
    cluster = cluster_of(5)
    wait_for(cluster, 1, 2)
    works(cluster, 2, 55.0)
    works(cluster, 1, 0.2)

    assert cluster.verdict().status == "hung"


@pytest.mark.parametrize("is_gone", [False, True])
def test_where_no_majority_waits_a_blocked_rank_may_wait_for_the_one_at_work(
    cluster_of: ClusterOf, is_gone: bool
) -> None:
    """As at a lock that the rank at work holds; but not if the other process is gone."""
    cluster = cluster_of(4)
    wait_for(cluster, 1, 2)
    works(cluster, 2, 20.0)
    if is_gone:
        cluster.tracers[1].describe(ended_with="ValueError: loss is not finite")

    verdict = cluster.verdict()

    assert verdict.cause is not None
    if is_gone:
        assert verdict.status == "hung"
        return
    assert named(verdict) == ("unknown", "late", (), "ambiguous")
    assert verdict.cause.candidate_ranks == (1, 2)
    assert verdict.summary.startswith("Rank 2 ")
    assert any("rank 1 may wait for rank 2" in one for one in verdict.cause.inferred)


def test_what_differs_is_the_cause_and_not_who_is_late(cluster_of: ClusterOf) -> None:
    cluster = cluster_of(4)
    wait_for(cluster, 2)
    cluster.post([0], "dp:0", "all_reduce", members=(0, 1), done=False)
    cluster.post([1], "dp:0", "all_gather", members=(0, 1), done=False)
    works(cluster, 2, 55.0)

    verdict = cluster.verdict()

    assert verdict.status == "diverged"
    assert [one.role for one in verdict.findings if one.kind == "late"] == ["consequence"]


@pytest.mark.parametrize("meets", [False, True])
def test_who_is_late_for_others_alone_is_one_more_cause(cluster_of: ClusterOf, meets: bool) -> None:
    """Ranks 5 and 2 keep a trio waiting each; or rank 2 waits for rank 5 itself."""
    cluster = cluster_of(6)
    cluster.history()
    for _ in range(3):
        cluster.post([3, 4, 5], "pp:0", members=(3, 4, 5))
        cluster.post([0, 1, 2], "dp:0", "reduce_scatter", members=(0, 1, 2))
    cluster.post([3, 4], "pp:0", members=(3, 4, 5), done=False)
    cluster.post([0, 1], "dp:0", "reduce_scatter", members=(0, 1, 2), done=False)
    works(cluster, 2, 55.0)
    if meets:
        cluster.post([2], "ep:0", members=(2, 5), done=False)

    verdict = cluster.verdict()

    assert verdict.status == "hung"
    assert named(verdict)[:3] == ("hung", "not_joined", (5,))
    late = [(one.kind, one.diverging_ranks) for one in verdict.causes[1:]]
    assert late == ([] if meets else [("late", (2,))])
    assert verdict.summary.startswith("Rank 5" if meets else "2 causes. Rank 5")


@pytest.mark.parametrize(
    ("name", "seconds", "is_late"),
    [(COMPILE, 55.0, True), (COMPILE, 3.0, True), (COMPILE, 0.1, False), (STORE_WAIT, 55.0, False)],
)
def test_a_note_says_whether_the_cpu_time_is_work(
    cluster_of: ClusterOf, name: str, seconds: float, is_late: bool
) -> None:
    """A process that polls a store uses a core and waits; one that compiles has others work."""
    cluster = cluster_of(4)
    wait_for(cluster, 2)
    works(cluster, 2, seconds)
    cluster.tracers[2].activity(name).begin("step (train.py:3)")

    assert (named(cluster.verdict())[1] == "late") == is_late


@pytest.mark.both_writers
def test_heartbeats_count_cpu_time_from_the_newest_call_on(
    rings: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now, used = [10_000_000_000], [3_000_000_000]
    monkeypatch.setattr(heart, "now_ns", lambda: now[0])
    monkeypatch.setattr(heart.time, "process_time_ns", lambda: used[0])
    tracer = tracer_in(rings, rank=0, world_size=1)
    comm = tracer.communicator("KEY", "world", [0], "gloo")

    beating = heart.Heart(tracer.ring, tracer.activity)

    def beats(count: int) -> None:
        for _ in range(count):
            beating.beat()
            now[0] += 1_000_000_000
            used[0] += 250_000_000

    tracer.record(comm, "all_reduce", shape=(2,), dtype="float32", redop="sum")
    beats(3)
    first = read(tracer.path).activities[CPU]
    tracer.record(comm, "all_reduce", shape=(2,), dtype="float32", redop="sum")
    beats(1)
    second = read(tracer.path).activities[CPU]

    assert (first.number, second.number) == (500_000, 0)
    assert second.since_ns - first.since_ns == 3_000_000_000


@pytest.mark.both_writers
def test_heartbeats_count_the_cpu_time_of_started_processes(
    rings: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A rank that compiles in other processes is at work; a job that moves never asks."""
    started, own = iter([7_000_000_000, 8_500_000_000]), threading.current_thread()

    def used() -> int:
        """Leave the values to this thread: heartbeats of other tests may still run."""
        return next(started) if threading.current_thread() is own else 0

    monkeypatch.setattr(heart, "started_time_ns", used)
    monkeypatch.setattr(heart.time, "process_time_ns", lambda: 0)
    tracer = tracer_in(rings, rank=0, world_size=1)
    comm = tracer.communicator("KEY", "world", [0], "gloo")
    beating = heart.Heart(tracer.ring, tracer.activity)

    for _ in range(3):
        tracer.record(comm, "all_reduce", shape=(2,), dtype="float32", redop="sum")
        beating.beat()
    beating.beat()
    beating.beat()

    assert read(tracer.path).activities[CPU].number == 1_500_000


def test_time_of_started_processes_counts_while_they_run_and_afterwards() -> None:
    spin = "import sys, time\nwhile time.process_time() < 0.3: pass\nprint(); sys.stdin.read()"
    before = started_time_ns()
    with subprocess.Popen(
        [sys.executable, "-c", spin], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        process.stdout.readline()
        running = started_time_ns()
    assert running - before > 250_000_000
    assert started_time_ns() >= running


@pytest.mark.parametrize("until", [30.0, 2.0])
def test_ranks_that_post_calls_elsewhere_may_still_come(
    cluster_of: ClusterOf, until: float
) -> None:
    """Ranks 1 and 2 go on for half a minute, or for two seconds only, and then do nothing."""
    cluster = cluster_of(3)
    cluster.post([0], "world", "broadcast", root=1, done=False)
    for _ in range(5):
        cluster.post([1, 2], "pair", members=(1, 2))
    run = cluster.run()
    begun = run.by_rank[0].last_call().time_ns
    last = begun + int(until * 1e9)

    def later(rank: Rank) -> Rank:
        logs = {
            key: ListLog(
                log.communicator,
                [replace(call, time_ns=last) for call in log.span(1, log.calls + 1)],
            )
            if rank.rank
            else log
            for key, log in rank.logs.items()
        }
        return replace(rank, logs=logs, last_seen_ns=begun + 31 * 10**9)

    moved = replace(run, ranks=tuple(map(later, run.ranks)))
    verdict = diagnose(moved)

    assert verdict.cause is not None
    assert (verdict.status == "unknown") == (until > 10)
    assert (verdict.cause.kind == "late") == (until > 10)
