"""Ranks that post from two threads: which of them posted first is no evidence."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

import pytest

from ncclscope.analysis.case import Case
from ncclscope.analysis.verdict import Verdict, diagnose
from ncclscope.model import Activity
from tests.support.cluster import Cluster

ClusterOf = Callable[[int], Cluster]


def in_thread(cluster: Cluster, ranks: Iterable[int], label: str, **given: Any) -> None:
    """Post a call from another thread than the main one."""
    own = threading.Thread(target=lambda: cluster.post(ranks, label, **given))
    own.start()
    own.join()


def post(cluster: Cluster, ranks: Iterable[int], label: str, **given: Any) -> None:
    """Post on ``save`` from the other thread, and elsewhere from the main one."""
    (in_thread if label == "save" else Cluster.post)(cluster, ranks, label, **given)


def named(verdict: Verdict) -> tuple[str, tuple[int, ...]]:
    assert verdict.cause is not None
    return verdict.cause.kind, verdict.cause.diverging_ranks


def test_a_record_holds_the_thread_of_its_call(cluster_of: ClusterOf) -> None:
    cluster = cluster_of(2)
    for label in ("world", "save", "world"):
        post(cluster, cluster.everybody, label)

    logs = {log.communicator.label: log for log in cluster.run().by_rank[0].logs.values()}

    assert logs["world"].threads(1, 3) == [1, 1]
    assert logs["save"].threads(1, 2) == [2]
    assert [call.thread for call in logs["save"].span(1, 2)] == [2]


@pytest.mark.parametrize("has_threads", [True, False])
def test_progress_of_another_thread_shows_no_skip(cluster_of: ClusterOf, has_threads: bool) -> None:
    """Rank 3 is at its tenth call, its peers at their twelfth, and ``save`` shows a shift."""
    cluster = cluster_of(4)
    for rank in cluster.everybody:
        for number in range(12):
            late = rank == 3 and number >= 5
            if not (late and number >= 10):
                cluster.post([rank], "world", backend="nccl", done=False, site="a.py:1 f")
            for _ in range(2 if late and number == 5 else number != 11):
                given: dict[str, Any] = {"backend": "nccl", "done": False, "site": "b.py:1 g"}
                (in_thread if has_threads else Cluster.post)(cluster, [rank], "save", **given)

    case = Case(cluster.run())

    assert bool(case.differences) is not has_threads


def test_the_thread_that_never_came_is_no_part_of_a_cycle(cluster_of: ClusterOf) -> None:
    """The thread of rank 2 has died; its main thread waits for those that wait for the thread."""
    cluster = cluster_of(4)
    for label in ("world", "save") * 3:
        post(cluster, cluster.everybody, label)
    post(cluster, (0, 1, 3), "save", done=False)
    post(cluster, (2,), "world", done=False)
    case = Case(cluster.run())

    verdict = cluster.verdict()

    assert case.waits.cycle == ()
    assert named(verdict) == ("not_joined", (2,))
    assert verdict.cause is not None
    assert verdict.cause.comm is not None
    assert verdict.cause.comm.label == "save"
    assert verdict.cause.confidence == "likely", "it may wait for its main thread"


def test_who_is_missing_where_more_wait_is_the_cause(cluster_of: ClusterOf) -> None:
    """The main thread of rank 2 is gone from a loop, and its other thread is in a barrier."""
    cluster = cluster_of(4)
    for label in ("world", "save") * 3:
        post(cluster, cluster.everybody, label)
    post(cluster, (2,), "save", op="barrier", done=False)
    post(cluster, (0, 1, 3), "world", done=False)

    verdict = cluster.verdict()

    assert named(verdict) == ("not_joined", (2,))
    assert verdict.cause is not None
    assert verdict.cause.comm is not None
    assert verdict.cause.comm.label == "world"
    assert [one for one in verdict.findings if one.role == "cause"] == [verdict.cause]


def test_both_threads_of_a_rank_wait(cluster_of: ClusterOf) -> None:
    cluster = cluster_of(4)
    for label in ("world", "save") * 3:
        post(cluster, cluster.everybody, label)
    post(cluster, (0, 1, 3), "save", done=False)
    post(cluster, (0, 1, 3), "world", done=False)
    case = Case(cluster.run())

    assert [len(calls) for calls in case.waits.heads_by_thread.values()] == [2, 2, 2]
    assert case.waits.ends == {2: (0, 1, 3)}
    assert named(cluster.verdict()) == ("not_joined", (2,))


def test_one_thread_that_enters_two_in_another_order_is_a_cycle(cluster_of: ClusterOf) -> None:
    cluster = cluster_of(4)
    for label in ("world", "tp") * 3:
        post(cluster, cluster.everybody, label)
    post(cluster, (0, 1, 3), "tp", done=False)
    post(cluster, (2,), "world", done=False)

    assert 2 in Case(cluster.run()).waits.cycle


@pytest.mark.parametrize("other", ["save", "tp"])
def test_threads_have_queues_of_their_own(cluster_of: ClusterOf, other: str) -> None:
    """Rank 3 enqueues the two in the opposite order: a deadlock only if one thread does."""
    cluster = cluster_of(4)
    for labels in (("world", other), (other, "world")):
        for rank in cluster.everybody:
            for label in labels if rank == 3 else ("world", other):
                post(cluster, [rank], label, done=False, backend="nccl")

    verdict = cluster.verdict()

    assert (verdict.status == "hung") is (other == "tp")


def test_ranks_that_went_on_and_exited_wait_for_no_missing_record(cluster_of: ClusterOf) -> None:
    """On NCCL nothing says that the calls of a thread, which nobody waited for, have completed."""
    cluster = cluster_of(3)
    for label in ("save", "world", "save", "save"):
        post(cluster, cluster.everybody, label, done=label == "world", backend="nccl")
    for tracer in cluster.tracers:
        tracer.close()
    cluster.tracers[2].ring.path.unlink()

    verdict = cluster.verdict()

    assert (verdict.status, verdict.cause) == ("incomplete", None)


@pytest.mark.parametrize("ends", [0, 1])
def test_an_exception_that_ended_a_thread_is_told_though_another_went_on(
    cluster_of: ClusterOf, ends: int
) -> None:
    cluster = cluster_of(4)
    for label in ("world", "save") * 3:
        post(cluster, cluster.everybody, label)
    since = time.time_ns()
    for _ in range(3):
        post(cluster, cluster.everybody, "world")
    post(cluster, (0, 1, 3), "save", done=False)
    run = cluster.run()
    raised = Activity("raised", "ValueError at save.py:7 save", ends, 1, since, since)
    ranks = [
        replace(rank, activities={"raised": raised}) if rank.rank == 2 else rank
        for rank in run.ranks
    ]

    verdict = diagnose(replace(run, ranks=tuple(ranks)))

    assert named(verdict) == ("not_joined", (2,))
    assert verdict.cause is not None
    assert ("ValueError" in verdict.cause.summary) is bool(ends)
