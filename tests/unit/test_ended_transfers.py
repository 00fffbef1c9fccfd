"""Sends and receives whose other end is stopped or gone, and jobs that end in them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from ncclscope.engine.verdict import Verdict, diagnose
from ncclscope.model import Activity, Rank, Run
from tests.support.cluster import Cluster

SIZE = 4
LOST = "RuntimeError: Connection closed by peer [127.0.0.1]:15240"
TIMED_OUT = "RuntimeError: Timed out waiting 8000ms for recv operation to complete"


def exchange(cluster: Cluster, done: bool = True, without: int | None = None) -> None:
    """Post a round of a ring: each rank sends to the next one and receives from the last."""
    for rank in cluster.everybody:
        if rank != without:
            for op, peer in (("send", (rank + 1) % SIZE), ("recv", (rank - 1) % SIZE)):
                cluster.post([rank], "world", op, peer=peer, done=done, site="ring.py:5 step")


def quiet(rank: Rank, seconds: float, *, stopped: bool = False) -> Rank:
    """Return a living rank whose last heartbeat came that long after its newest call."""
    calls = (rank.last_call(), *rank.last_transfers().values())
    newest = max(call.time_ns or 0 for call in calls if call is not None)
    details = {**rank.details, "stopped": True} if stopped else rank.details
    return replace(rank, alive=True, last_seen_ns=newest + int(seconds * 1e9), details=details)


@pytest.mark.parametrize("lives", [True, False])
def test_a_stopped_rank_of_a_ring_is_named(tmp_path: Path, lives: bool) -> None:
    cluster = Cluster(tmp_path, SIZE)
    for _ in range(12):
        exchange(cluster)
        cluster.post(range(SIZE), "world")
    exchange(cluster, done=False, without=3)
    ranks = [
        quiet(rank, 0.0, stopped=lives) if rank.rank == 3 else quiet(rank, 15.0)
        for rank in cluster.run().ranks
    ]
    if not lives:
        ranks = [replace(rank, alive=False) for rank in ranks]

    verdict = diagnose(replace(cluster.run(), ranks=tuple(ranks)))

    assert verdict.cause is not None, verdict.summary
    kind = "not_joined" if lives else "dead_rank"
    assert (verdict.status, verdict.cause.kind) == ("hung", kind)
    assert verdict.cause.diverging_ranks == (3,)
    assert {one.role for one in verdict.findings[1:]} <= {"consequence"}


def ended(rank: Rank, error: str, place: str) -> Rank:
    """Return a rank that an exception at this place ended."""
    raised = Activity("raised", f"{error.partition(':')[0]} at {place}", 1, 1, 1, 1)
    details = {**rank.details, "ended_with": error}
    return replace(rank, exited=True, alive=False, activities={"raised": raised}, details=details)


def verdict_of(cluster: Cluster, places: dict[int, str]) -> Verdict:
    """Return the verdict on ranks of which these ended with a timeout, and others were killed."""
    run = cluster.run(quiet=8.0)
    ranks = [
        ended(rank, TIMED_OUT, places[rank.rank])
        if rank.rank in places
        else replace(rank, alive=False)
        for rank in run.ranks
    ]
    return diagnose(replace(run, ranks=tuple(ranks)))


def test_a_receive_that_timed_out_is_a_mismatch(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path, SIZE)
    cluster.history("world")
    cluster.post([1], "world", "recv", peer=0, done=False, site="p.py:6 step")

    verdict = verdict_of(cluster, {1: "p.py:6 step"})

    assert verdict.cause is not None, verdict.summary
    assert (verdict.cause.kind, verdict.cause.candidate_ranks) == ("p2p_mismatch", (0, 1))


def test_a_rank_beside_a_transfer_that_timed_out_is_not_blamed(tmp_path: Path) -> None:
    """As where a send and its receive have different tags, which are not recorded."""
    cluster = Cluster(tmp_path, 3)
    cluster.history("world")
    cluster.post([0], "world", "send", peer=1, done=False, site="p.py:4 step")
    cluster.post([1], "world", "recv", peer=0, done=False, site="p.py:5 step")
    cluster.post([2], "world", "barrier", done=False, site="p.py:6 step")

    verdict = verdict_of(cluster, {0: "p.py:4 step", 1: "p.py:5 step", 2: "p.py:6 step"})

    assert verdict.status != "ok"
    assert verdict.cause is None or 2 not in verdict.cause.diverging_ranks


@pytest.mark.parametrize("waited", [False, True])
def test_calls_that_nobody_waits_for_are_not_stalled(tmp_path: Path, waited: bool) -> None:
    """As all_reduces with ``async_op``, read much later: each appears pending until then.

    Where the program waited for earlier calls of the line, it would have waited for this one.
    """
    cluster = Cluster(tmp_path, SIZE)
    cluster.history("world", site="train.py:1 setup")
    for number in range(10):
        done = waited and number < 4
        cluster.post(range(SIZE), "world", shape=(number + 1,), site="train.py:9 log", done=done)
    ranks = [quiet(rank, 20.0) for rank in cluster.run().ranks]

    verdict = diagnose(replace(cluster.run(), ranks=tuple(ranks)))

    assert (verdict.status, verdict.cause is None) == (
        ("hung", False) if waited else ("unknown", True)
    )


def test_peers_that_lost_a_rank_and_were_killed_still_show_it(tmp_path: Path) -> None:
    """A launcher's signal may come while they print their traceback."""
    cluster = Cluster(tmp_path, 3)
    cluster.history("world")
    cluster.post((0, 2), "world", done=False)
    run = cluster.run(quiet=0.5)
    ranks = []
    for rank in run.ranks:
        call = rank.last_call()
        assert call is not None
        since = (call.time_ns or 0) + 100_000_000
        raised = Activity("raised", "RuntimeError at model.py:10 all_reduce", 0, 1, since, since)
        noted = {} if rank.rank == 1 else {"raised": raised}
        ranks.append(replace(rank, alive=False, activities=noted))

    verdict = diagnose(replace(run, ranks=tuple(ranks)))

    assert verdict.cause is not None, verdict.summary
    assert (verdict.cause.kind, verdict.cause.diverging_ranks) == ("dead_rank", (1,))
    assert not any("it comes in" in line for line in verdict.cause.evidence)


def test_a_rank_that_could_not_connect_is_named_and_not_one_that_was_ended(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path, 3)
    for rank in range(3):
        cluster.comm(rank, "world", range(3))
    cluster.post([0], "world", done=False)
    run = cluster.run(quiet=1.0)
    error = "RuntimeError: Gloo connectFullMesh failed with timed out connecting"
    lost = "RuntimeError: Connection closed by peer"
    ranks = [
        ended(run.ranks[0], lost, "model.py:10 all_reduce"),
        replace(ended(run.ranks[1], error, "a.py:5 init"), logs={}),
        replace(run.ranks[2], alive=False, logs={}),
    ]

    verdict = diagnose(replace(run, ranks=tuple(ranks)))

    assert verdict.cause is not None, verdict.summary
    assert verdict.cause.diverging_ranks == (1,)


def test_an_exception_that_a_launcher_caught_is_how_a_rank_ended(tmp_path: Path) -> None:
    """As with ``mp.spawn``, which catches it, and exits."""
    cluster = Cluster(tmp_path, 3)
    cluster.history("world")
    cluster.post((0, 2), "world", done=False)
    run = cluster.run(quiet=20.0)
    seen = run.ranks[1].last_seen_ns or 0
    raised = Activity("raised", "ValueError at p.py:8 main", 0, 1, seen - 200_000_000, seen)
    ranks = [*run.ranks]
    ranks[1] = replace(ranks[1], exited=True, alive=False, activities={"raised": raised})

    verdict = diagnose(replace(run, ranks=tuple(ranks)))

    assert verdict.cause is not None, verdict.summary
    assert verdict.cause.diverging_ranks == (1,)
    assert "it exited after it raised ValueError at p.py:8 main" in verdict.summary


def left(cluster: Cluster, lost: int | None = None) -> Run:
    """Return ranks that ended normally, except one that lost a connection, or none did."""
    for rank, tracer in enumerate(cluster.tracers):
        cluster.comm(rank, "world", cluster.everybody)
        if rank == lost:
            tracer.describe(ended_with=LOST)
        tracer.close()
    return cluster.run(quiet=1.0)


def pipeline(cluster: Cluster, skips: int | None = None) -> None:
    """Post the microbatches of a pipeline, of which one stage does not send one."""
    for number in range(5):
        for rank in range(1, cluster.size):
            short = rank - 1 == skips and number == 4
            if not short:
                cluster.post([rank - 1], "world", "send", peer=rank)
            cluster.post([rank], "world", "recv", peer=rank - 1, done=not short)


def test_a_stage_that_skipped_a_send_and_ended_is_named(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path, 3)
    pipeline(cluster, skips=1)

    verdict = diagnose(left(cluster, lost=2))

    assert verdict.cause is not None, verdict.summary
    assert (verdict.cause.kind, verdict.cause.diverging_ranks) == ("p2p_mismatch", (1,))
    assert "rank 1 ended normally without its half" in verdict.cause.evidence[0]


def test_a_send_to_a_rank_that_ended_leaves_out_who_had_no_part_in_it(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path, 3)
    cluster.post([0], "world", "send", peer=1, done=False)

    cause = diagnose(left(cluster, lost=0)).cause

    assert cause is not None
    assert (cause.kind, cause.candidate_ranks) == ("p2p_mismatch", (0, 1))


@pytest.mark.parametrize("seconds", [4.0, 0.1])
def test_a_rank_that_was_killed_in_a_send_to_one_that_ended_is_not_ok(
    tmp_path: Path, seconds: float
) -> None:
    """The second was killed right after it had posted the send."""
    cluster = Cluster(tmp_path, 2)
    cluster.post([0], "world", "send", peer=1, done=False)
    run = left(cluster)
    sender = run.ranks[0]
    since = sender.last_transfers()["world/0,1"].time_ns or 0
    killed = replace(sender, exited=False, last_seen_ns=since + int(seconds * 1e9))

    verdict = diagnose(replace(run, ranks=(killed, run.ranks[1])))

    kind = None if verdict.cause is None else verdict.cause.kind
    assert kind == ("p2p_mismatch" if seconds > 1 else None)


def test_a_send_that_nobody_waited_for_is_no_mismatch(tmp_path: Path) -> None:
    """Near miss: its rank ended normally, too."""
    cluster = Cluster(tmp_path, 2)
    cluster.post([0], "world", "send", peer=1, done=False)

    assert diagnose(left(cluster)).status == "ok"


@pytest.mark.parametrize("inside", [True, False])
def test_only_the_peer_of_a_lost_transfer_is_a_candidate(tmp_path: Path, inside: bool) -> None:
    """Near miss: in an unrecorded call, any rank that ended may be the peer."""
    cluster = Cluster(tmp_path, 4)
    pipeline(cluster)
    if inside:
        cluster.post([2], "world", "recv", peer=1, done=False)
    ranks = [*left(cluster, lost=2).ranks]
    if inside:
        ranks[1] = replace(ranks[1], exited=False)

    cause = diagnose(replace(cluster.run(), ranks=tuple(ranks))).cause

    assert cause is not None
    assert cause.kind == "dead_rank"
    assert cause.candidate_ranks == (1, 2) if inside else 0 in cause.candidate_ranks
    assert ("ended normally" in cause.summary) != inside
