"""Ranks that post from two threads: which of them posted first is no evidence."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from ncclscope.clock import now_ns
from ncclscope.engine.case import Case
from ncclscope.engine.verdict import Verdict, diagnose
from ncclscope.model import Activity
from ncclscope.model.threads import SEVERAL
from ncclscope.ring import writer
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


def test_a_thread_that_waits_for_one_rank_may_be_awaited_by_its_own(cluster_of: ClusterOf) -> None:
    """The thread of rank 3 ends a call early, and the main thread of rank 2 joins its own."""
    cluster = cluster_of(4)
    for _ in range(3):
        post(cluster, cluster.everybody, "world")
        in_thread(cluster, (2, 3), "save", members=(2, 3))
    in_thread(cluster, (2,), "save", members=(2, 3), done=False)
    post(cluster, (0, 1, 3), "world", op="barrier", done=False)

    cause = cluster.verdict().cause

    assert cause is not None
    assert (cause.diverging_ranks, cause.candidate_ranks) == ((), (2, 3))


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


def swap(cluster: Cluster, other: str, ranks: Iterable[int], **given: Any) -> None:
    """Post on two communicators, on some ranks in the opposite order."""
    for rank in cluster.everybody:
        for label in (other, "world") if rank in ranks else ("world", other):
            post(cluster, [rank], label, backend="nccl", **given)


@pytest.mark.parametrize("other", ["save", "tp"])
def test_threads_that_went_on_have_streams_of_their_own(cluster_of: ClusterOf, other: str) -> None:
    """Rank 3 enqueues the two in the opposite order: a deadlock only if one thread does."""
    cluster = cluster_of(4)
    for ranks in ((3,), (), (1, 3)):
        swap(cluster, other, ranks, done=False)

    verdict = cluster.verdict()

    assert (verdict.status == "hung") is (other == "tp")
    assert verdict.status != "ok"


def test_threads_that_ended_in_opposite_orders_hang_together(cluster_of: ClusterOf) -> None:
    """If they share a stream: which order is wrong, no thread shows."""
    cluster = cluster_of(4)
    for ranks in ((), (), (3,)):
        swap(cluster, "save", ranks, done=False)

    verdict = cluster.verdict()

    assert verdict.status == "hung"
    assert named(verdict) == ("order_cycle", ())
    assert verdict.cause is not None
    assert verdict.cause.confidence == "ambiguous"


@pytest.mark.parametrize("op", ["all_reduce", "barrier"])
def test_threads_that_wait_in_opposite_orders_are_stalled(cluster_of: ClusterOf, op: str) -> None:
    """Their earlier calls have completed, and those of both threads are pending on all ranks."""
    cluster = cluster_of(4)
    for ranks in ((), (2,), (1, 3)):
        swap(cluster, "save", ranks, op=op)
    swap(cluster, "save", (3,), op=op, done=False)

    verdict = cluster.verdict()

    causes = [one for one in verdict.findings if one.role == "cause"]
    assert verdict.status == "hung"
    assert [(one.kind, one.diverging_ranks) for one in causes] == [("stalled", ())] * 2
    assert {one.comm.label for one in causes if one.comm is not None} == {"world", "save"}
    assert all("on one stream" in " ".join(one.inferred) for one in causes)


@pytest.mark.parametrize("backend", ["gloo", "nccl"])
@pytest.mark.parametrize("ends", [False, True])
@pytest.mark.parametrize("seed", range(4))
def test_healthy_ranks_with_two_threads_are_ok(
    cluster_of: ClusterOf, backend: str, ends: bool, seed: int
) -> None:
    """Each rank is at another place, with the calls of its threads in an order of their own."""
    cluster, rng = cluster_of(4), random.Random(seed)
    for rank in cluster.everybody:
        left = {label: 20 if ends else rng.randint(17, 20) for label in ("world", "save")}
        while any(left.values()):
            label = rng.choice([label for label, count in left.items() if count])
            left[label] -= 1
            done = backend == "gloo" and (ends or left[label] > 3)
            post(cluster, [rank], label, backend=backend, done=done, site=f"{label}.py:1 f")
        if ends:
            cluster.tracers[rank].close()

    verdict = cluster.verdict() if ends else cluster.verdict(quiet=0.1)

    assert (verdict.status, verdict.cause) == ("ok", None)


@pytest.fixture
def use_number(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Return a function that sets the number of the thread that posts."""
    monkeypatch.setenv("NCCLSCOPE_NATIVE", "0")

    def use(number: int) -> None:
        monkeypatch.setattr(writer, "own", SimpleNamespace(number=number))

    return use


def test_a_ring_without_threads_reads_as_one_thread(
    cluster_of: ClusterOf, use_number: Callable[[int], None]
) -> None:
    use_number(0)
    cluster = cluster_of(4)
    for ranks in ((3,), (), (1, 3)):
        swap(cluster, "save", ranks, done=False)

    logs = cluster.run().by_rank[0].logs.values()
    verdict = cluster.verdict()

    assert {number for log in logs for number in log.threads(1, 4)} == {0}
    assert verdict.status == "hung"
    assert named(verdict) == ("order_cycle", (3,))


@pytest.mark.parametrize("number", [2, SEVERAL])
def test_threads_that_share_a_number_make_a_verdict_less_sure(
    cluster_of: ClusterOf, use_number: Callable[[int], None], number: int
) -> None:
    """Rank 2 enters two calls in another order than its peers, which only one thread must not."""
    use_number(number)
    cluster = cluster_of(4)
    for label in ("world", "tp") * 3:
        cluster.post(cluster.everybody, label)
    cluster.post((0, 1, 3), "tp", done=False)
    cluster.post((2,), "world", done=False)
    case = Case(cluster.run())

    verdict = cluster.verdict()

    assert (2 in case.waits.cycle) is (number != SEVERAL)
    assert verdict.status == "hung"
    assert verdict.cause is not None
    assert verdict.cause.confidence != "certain"


def test_threads_that_share_a_number_show_no_skip(
    cluster_of: ClusterOf, use_number: Callable[[int], None]
) -> None:
    use_number(SEVERAL)
    cluster = cluster_of(4)
    for ranks in ((3,), (), (1, 3)):
        swap(cluster, "save", ranks, done=False)

    verdict = cluster.verdict()

    assert (verdict.status, verdict.cause) == ("unknown", None)


@pytest.mark.parametrize("ends", [0, 1])
def test_an_exception_that_ended_a_thread_is_told_though_another_went_on(
    cluster_of: ClusterOf, ends: int
) -> None:
    cluster = cluster_of(4)
    for label in ("world", "save") * 3:
        post(cluster, cluster.everybody, label)
    since = now_ns()
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


@pytest.mark.parametrize("line", ["train.py:9 step", "train.py:30 main"])
def test_who_raised_in_a_call_waits_there_no_more(cluster_of: ClusterOf, line: str) -> None:
    """An exception at another line may be of any work."""
    cluster = cluster_of(4)
    for _ in range(3):
        cluster.post(cluster.everybody, "world", site="train.py:9 step")
    cluster.post((0, 1, 3), "world", site="train.py:9 step", done=False)
    run, since = cluster.run(), now_ns()
    raised = Activity("raised", f"RuntimeError at {line}", 0, 1, since, since)
    ranks = [
        replace(rank, activities={"raised": raised}) if rank.rank == 3 else rank
        for rank in run.ranks
    ]

    verdict = diagnose(replace(run, ranks=tuple(ranks)))

    assert named(verdict) == ("not_joined", (2,))
    assert verdict.cause is not None
    said = [note for note in verdict.cause.notes if "RuntimeError" in note]
    assert len(said) == (line == "train.py:9 step")
