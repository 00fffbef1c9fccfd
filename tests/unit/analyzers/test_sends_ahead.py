"""Sends that a rank posted without waiting, ahead of a receiver that waits elsewhere."""

from __future__ import annotations

from collections.abc import Callable

from tests.support.cluster import Cluster

ClusterOf = Callable[[int], Cluster]


def _exchange(cluster: Cluster, *, sent: bool, received: bool) -> None:
    cluster.post([0], "pp:0", "send", peer=1, done=sent)
    cluster.post([1], "pp:0", "recv", peer=0, done=received)


def test_sends_ahead_of_a_receiver_in_an_earlier_transfer_are_no_mismatch(
    cluster_of: ClusterOf,
) -> None:
    """As where gloo loses an ``isend`` whose work the program dropped."""
    cluster = cluster_of(3)
    cluster.post(cluster.everybody, "pp:0", "barrier")
    _exchange(cluster, sent=False, received=False)
    for _ in range(4):
        cluster.post([0], "pp:0", "send", peer=1, done=False)
    cluster.post([0, 2], "pp:0", done=False)

    verdict = cluster.verdict()

    assert verdict.cause is not None
    assert (verdict.status, verdict.cause.kind) == ("hung", "stalled")
    assert (verdict.cause.diverging_ranks, verdict.cause.candidate_ranks) == ((), (0, 1))
    assert "transfer 1 from rank 0 to rank 1" in verdict.cause.evidence[0]
    assert [one.kind for one in verdict.findings] == ["stalled", "not_joined"]
    assert verdict.findings[1].role == "consequence"


def test_a_receive_beside_a_send_without_its_half_does_not_hide_it(cluster_of: ClusterOf) -> None:
    """Near miss: rank 1 may wait for its own send, and has not noticed that it has received."""
    cluster = cluster_of(3)
    cluster.history("pp:0")
    cluster.post([1], "pp:0", "send", peer=2, done=False)
    _exchange(cluster, sent=False, received=False)
    cluster.post([0, 2], "pp:0", done=False)

    cause = cluster.verdict().cause

    assert cause is not None
    assert (cause.kind, cause.candidate_ranks) == ("p2p_mismatch", (1, 2))


def test_sends_ahead_of_a_collective_that_a_third_rank_holds_up_are_no_mismatch(
    cluster_of: ClusterOf,
) -> None:
    """Rank 1 may receive them after the collective, to which rank 2 has not come."""
    cluster = cluster_of(4)
    cluster.history("pp:0")
    _exchange(cluster, sent=True, received=True)
    for _ in range(3):
        cluster.post([0], "pp:0", "send", peer=1, done=False)
    cluster.post([0, 1, 3], "pp:0", done=False)

    cause = cluster.verdict().cause

    assert cause is not None
    assert (cause.kind, cause.diverging_ranks) == ("not_joined", (2,))
