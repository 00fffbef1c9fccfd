"""Receives that wait for something else than a mismatch: listeners, prefetches, tags, servers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from ncclscope.engine.verdict import diagnose
from ncclscope.readers.bundle import with_snapshot
from tests.support.cluster import Cluster, agrees
from tests.support.snapshots import elsewhere, in_collective, snapshot, worker

ClusterOf = Callable[[int], Cluster]


def _recv(cluster: Cluster, receiver: int, sender: int, **more: Any) -> None:
    cluster.post([receiver], "world", "recv", peer=sender, **more)


def _send(cluster: Cluster, sender: int, receiver: int, **more: Any) -> None:
    cluster.post([sender], "world", "send", peer=receiver, **more)


# --- the peer waits for a third rank ---------------------------------------------------------


def test_a_listener_is_no_cause_where_its_peer_waits_for_a_third_rank(
    cluster_of: ClusterOf,
) -> None:
    cluster = cluster_of(4)
    _recv(cluster, 0, 1, done=False)
    cluster.history("world")
    cluster.post([0, 1, 3], "world", done=False)

    verdict = cluster.verdict()

    assert verdict.status == "hung"
    assert verdict.cause is not None
    assert (verdict.cause.kind, verdict.cause.diverging_ranks) == ("not_joined", (2,))
    roles = {finding.kind: finding.role for finding in verdict.findings}
    assert roles["p2p_mismatch"] == "consequence"


def test_a_listener_is_no_second_cause_of_a_skipped_call(cluster_of: ClusterOf) -> None:
    cluster = cluster_of(3)
    _recv(cluster, 0, 1, done=False)
    cluster.history("world")
    cluster.post([0], "world", "broadcast", root=0, done=False)
    cluster.post([1], "world", "broadcast", root=0)
    cluster.post([1, 2], "world", done=False)

    found = cluster.verdict().findings

    assert (found[0].kind, found[0].diverging_ranks) == ("missing_call", (2,))
    assert {one.role for one in found if one.kind == "p2p_mismatch"} == {"consequence"}


def test_who_waits_to_receive_from_a_rank_that_waits_for_another_is_no_cause(
    cluster_of: ClusterOf,
) -> None:
    """As an evaluator that waits for weights from a trainer, whose peer is in its loader."""
    cluster = cluster_of(4)
    cluster.history("dp:0", members=[0, 1, 2])
    _recv(cluster, 3, 0, done=False)
    cluster.post([0, 2], "dp:0", members=[0, 1, 2], done=False)

    cause = cluster.verdict().cause

    assert cause is not None
    assert (cause.kind, cause.diverging_ranks) == ("not_joined", (1,))


def test_who_waits_for_the_rank_in_a_receive_stays_in_one_finding_with_it(
    cluster_of: ClusterOf,
) -> None:
    """Near miss: rank 0 forgot a send, and the collective that it is in waits for its receiver."""
    cluster = cluster_of(4)
    cluster.history("world")
    _recv(cluster, 1, 0, done=False)
    cluster.post([0, 2, 3], "world", done=False)

    cause = cluster.verdict().cause

    assert cause is not None
    assert (cause.kind, cause.candidate_ranks) == ("p2p_mismatch", (0, 1))


def test_a_rank_that_a_receiver_and_a_collective_wait_for_is_named(cluster_of: ClusterOf) -> None:
    """Two stages of two replicas; rank 2 is in its loader, and rank 1 has posted a prefetch."""
    cluster = cluster_of(4)
    for pair in ([0, 2], [1, 3]):
        cluster.history("dp:0", members=pair)
    for sender in (0, 2):
        _send(cluster, sender, sender + 1)
        _recv(cluster, sender + 1, sender)
    _send(cluster, 0, 1)
    _recv(cluster, 1, 0)
    for receiver in (1, 3):
        _recv(cluster, receiver, receiver - 1, done=False)
    for rank in (0, 1):
        cluster.post([rank], "dp:0", members=[rank, rank + 2], done=False)

    verdict = cluster.verdict()

    assert verdict.status == "hung"
    assert verdict.cause is not None
    assert (verdict.cause.kind, verdict.cause.diverging_ranks) == ("not_joined", (2,))
    assert {one.role for one in verdict.findings[1:]} == {"consequence"}


# --- tags --------------------------------------------------------------------------------------


def _swapped(cluster: Cluster, backend: str) -> None:
    """A stage receives two messages in the other order than they are sent, as tags allow."""
    cluster.history("world", backend=backend)
    for _ in range(3):
        for rows in (1, 32):
            _send(cluster, 0, 1, shape=(rows, 2), backend=backend)
        for rows in (32, 1):
            _recv(cluster, 1, 0, shape=(rows, 2), backend=backend)


def test_who_is_in_a_transfer_of_its_own_is_not_named_for_one_that_it_lacks(
    cluster_of: ClusterOf,
) -> None:
    """Rank 1 sends to rank 3 in place of rank 2, which blocks the streams of all after it."""
    cluster = cluster_of(4)
    nccl = {"backend": "nccl", "done": False}
    for _ in range(2):
        for one in range(3):
            _send(cluster, one, one + 1, **nccl)
            _recv(cluster, one + 1, one, **nccl)
    _send(cluster, 1, 3, **nccl)
    _recv(cluster, 2, 1, **nccl)
    _send(cluster, 2, 3, **nccl)
    _recv(cluster, 3, 2, **nccl)
    cluster.post([0, 1], "world", **nccl)

    cause = cluster.verdict().cause

    assert cause is not None
    assert 3 not in cause.diverging_ranks


@pytest.mark.parametrize(("backend", "status"), [("gloo", "unknown"), ("nccl", "diverged")])
def test_tags_pair_transfers_that_fit_in_any_order(
    cluster_of: ClusterOf, backend: str, status: str
) -> None:
    cluster = cluster_of(2)
    _swapped(cluster, backend)

    verdict = cluster.verdict()

    assert verdict.status == status
    assert agrees(verdict) == (backend == "gloo")


def test_a_receive_that_no_send_fits_is_a_mismatch_in_spite_of_tags(
    cluster_of: ClusterOf,
) -> None:
    cluster = cluster_of(2)
    _swapped(cluster, "gloo")
    _send(cluster, 0, 1, shape=(5, 2))
    _recv(cluster, 1, 0, shape=(6, 2))

    cause = cluster.verdict().cause

    assert cause is not None
    assert (cause.kind, cause.candidate_ranks) == ("p2p_mismatch", (0, 1))
    assert "transfer 7 between them does not match" in cause.summary
    assert "tags" in cause.inferred[0]


def test_a_listener_and_messages_with_other_tags_are_no_mismatch(cluster_of: ClusterOf) -> None:
    cluster = cluster_of(2)
    cluster.history("world")
    _recv(cluster, 1, 0, shape=(4,), done=False)
    for _ in range(3):
        _send(cluster, 0, 1, shape=(16,))
        _recv(cluster, 1, 0, shape=(16,))
    _send(cluster, 0, 1, shape=(16,))  # buffered, and received later

    assert agrees(cluster.verdict(quiet=0.3))


@pytest.mark.parametrize("quiet", [0.3, 60.0])
def test_a_send_and_a_receive_of_different_sizes_that_stay_pending_are_a_mismatch(
    cluster_of: ClusterOf, quiet: float
) -> None:
    cluster = cluster_of(2)
    cluster.history("world")
    _send(cluster, 0, 1, shape=(16,), done=False)
    _recv(cluster, 1, 0, shape=(4,), done=False)

    kinds = [finding.kind for finding in cluster.verdict(quiet=quiet).findings]

    assert kinds == (["p2p_mismatch"] if quiet == 60.0 else [])


# --- a cycle, in the records and in stacks ---------------------------------------------------


def test_stacks_do_not_outrank_a_recorded_cycle_of_receives(cluster_of: ClusterOf) -> None:
    cluster = cluster_of(4)
    cluster.history("world")
    for rank in cluster.everybody:
        _recv(cluster, rank, (rank - 1) % 4, done=False)
    seen = [worker(rank, in_collective("recv", 9)) for rank in cluster.everybody]
    stacks = snapshot(seen, gap=10.0)

    verdict = diagnose(with_snapshot(cluster.run(), stacks))

    assert verdict.cause is not None
    assert (verdict.cause.kind, verdict.cause.candidate_ranks) == ("p2p_mismatch", (0, 1, 2, 3))
    assert "wait for each other in a cycle" in verdict.summary


# --- servers that receive from any source ------------------------------------------------------


def _serve(cluster: Cluster) -> None:
    """Rank 0 receives requests from any source and answers, and waits for the next one."""
    cluster.history("world")
    for client in range(1, cluster.size):
        _send(cluster, client, 0)
        cluster.post([0], "world", "recv")
        _send(cluster, 0, client)
        _recv(cluster, client, 0)
    cluster.post([0], "world", "recv", done=False)


def test_a_server_without_requests_is_not_hung(cluster_of: ClusterOf) -> None:
    cluster = cluster_of(3)
    _serve(cluster)

    verdict = cluster.verdict()

    assert verdict.status == "unknown"
    assert "a server without requests looks the same" in verdict.summary


@pytest.mark.parametrize("size", [3, 5])
def test_stacks_of_a_server_without_requests_are_no_hang(cluster_of: ClusterOf, size: int) -> None:
    cluster = cluster_of(size)
    _serve(cluster)
    seen = [worker(0, in_collective("recv", 9))]
    seen += [worker(rank, elsewhere(15, "play")) for rank in range(1, size)]

    verdict = diagnose(with_snapshot(cluster.run(), snapshot(seen, gap=10.0)))

    assert verdict.status == "unknown"


def test_a_server_and_a_client_that_wait_for_each_other_hang(cluster_of: ClusterOf) -> None:
    cluster = cluster_of(3)
    _serve(cluster)
    _recv(cluster, 1, 0, done=False)

    verdict = cluster.verdict()

    assert verdict.in_trouble
    assert verdict.cause is not None
    assert verdict.cause.kind == "p2p_mismatch"


def test_a_server_whose_clients_wait_for_another_rank_follows_from_that(
    cluster_of: ClusterOf,
) -> None:
    cluster = cluster_of(4)
    cluster.history("dp:0", members=[1, 2, 3])
    _serve(cluster)
    cluster.post([1, 2], "dp:0", members=[1, 2, 3], done=False)

    cause = cluster.verdict().cause

    assert cause is not None
    assert (cause.kind, cause.diverging_ranks) == ("not_joined", (3,))
