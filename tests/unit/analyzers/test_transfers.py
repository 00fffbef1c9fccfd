"""Point-to-point calls: pairs that do not fit, and what only looks like it."""

from __future__ import annotations

from collections.abc import Callable

from tests.cluster import Cluster

ClusterOf = Callable[[int], Cluster]


def _transfer(cluster: Cluster, sender: int, receiver: int, rows: int, received: int) -> None:
    cluster.post([sender], "pp:0", "send", peer=receiver, shape=(rows, 2))
    cluster.post([receiver], "pp:0", "recv", peer=sender, shape=(received, 2))


def test_a_pair_that_does_not_fit_names_both(cluster_of: ClusterOf) -> None:
    cluster = cluster_of(4)
    cluster.history("pp:0")
    _transfer(cluster, 0, 2, rows=4, received=4)
    _transfer(cluster, 0, 2, rows=5, received=6)

    verdict = cluster.verdict()

    assert verdict.status == "diverged"
    assert verdict.cause is not None
    assert verdict.cause.kind == "p2p_mismatch"
    assert verdict.cause.diverging_ranks == ()
    assert verdict.cause.candidate_ranks == (0, 2)
    assert verdict.cause.seq == 2


def test_directions_and_peers_are_paired_apart(cluster_of: ClusterOf) -> None:
    """Posted in another order on each side, with collectives between: all of it fits."""
    cluster = cluster_of(4)
    cluster.history("pp:0")
    cluster.post([0], "pp:0", "send", peer=1, shape=(1, 2))
    cluster.post([0], "pp:0", "send", peer=2, shape=(2, 2))
    cluster.post([0], "pp:0", "recv", peer=1, shape=(3, 2))
    cluster.post([1], "pp:0", "send", peer=0, shape=(3, 2))
    cluster.post([1], "pp:0", "recv", peer=0, shape=(1, 2))
    cluster.post([2], "pp:0", "recv", peer=0, shape=(2, 2))
    cluster.post(cluster.everybody, "pp:0")
    cluster.post([3], "pp:0", "send", peer=0, shape=(9, 2))  # not received yet

    verdict = cluster.verdict()

    assert verdict.status == "ok"
    assert verdict.findings == ()
