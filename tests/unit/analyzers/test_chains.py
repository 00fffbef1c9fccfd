"""Chains of sends, receives and collectives: the cause is at their end."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from ncclscope import diagnose
from ncclscope.model.activities import STORE_WAIT
from tests.support.cluster import Cluster

ClusterOf = Callable[[int], Cluster]


def _pipeline(cluster: Cluster, ranks: Sequence[int], *, done: bool = True) -> None:
    """Hand a batch on from each rank to the next one."""
    for rank in ranks:
        if rank:
            cluster.post([rank], "pp", "recv", peer=rank - 1, site="stage.py:4", done=done)
        if rank < cluster.size - 1 and done:
            cluster.post([rank], "pp", "send", peer=rank + 1, site="stage.py:5")


def _named(cluster: Cluster) -> list[tuple[str, tuple[int, ...]]]:
    causes = [one for one in cluster.verdict().findings if one.role == "cause"]
    return [(one.kind, one.diverging_ranks or one.candidate_ranks) for one in causes]


def test_a_chain_leads_on_through_a_receive_whose_sender_is_in_a_collective(
    cluster_of: ClusterOf,
) -> None:
    """Rank 2 makes a call that rank 1 does not. What ranks 3 and 4 lack comes after it."""
    cluster = cluster_of(5)
    for _ in range(2):
        _pipeline(cluster, cluster.everybody)
        cluster.post([1, 2], "pair", members=[1, 2], site="stage.py:9")
    _pipeline(cluster, [0, 1])
    cluster.post([1], "pp", "send", peer=2, site="stage.py:5", done=False)
    cluster.post([2], "pair", members=[1, 2], site="stage.py:9", done=False)
    _pipeline(cluster, [3, 4], done=False)

    assert [ranks for _, ranks in _named(cluster) if {3, 4} & {*ranks}] == []


def test_a_chain_behind_a_rank_without_a_record_is_not_the_cause_where_another_ends(
    cluster_of: ClusterOf,
) -> None:
    """Rank 1 leaves out a send. Rank 3, whose record is missing, waits like all others."""
    cluster = cluster_of(6)
    for _ in range(3):
        _pipeline(cluster, cluster.everybody)
    _pipeline(cluster, [0])
    cluster.post([1], "pp", "recv", peer=0, site="stage.py:4")
    _pipeline(cluster, [2, 3, 4, 5], done=False)
    cluster.tracers[3].ring.path.unlink()

    assert _named(cluster) == [("p2p_mismatch", (1, 2))]


# --- stores ------------------------------------------------------------------------------------


def _at_store(cluster: Cluster, *ranks: int) -> None:
    for rank in ranks:
        cluster.tracers[rank].activity(STORE_WAIT).begin("get plan/7")


def test_a_receive_from_a_rank_at_a_store_leads_on_to_all_that_may_set_the_key(
    cluster_of: ClusterOf,
) -> None:
    cluster = cluster_of(4)
    cluster.history()
    cluster.post([0], "tp:0", "recv", peer=1, done=False)
    _at_store(cluster, 1)

    assert _named(cluster) == [("p2p_mismatch", (0, 1, 2, 3))]
    assert "rank 1 has posted no send for it; it has waited at the store for key 'plan/7'" in (
        cluster.verdict().summary.replace(" (node-0, pid 1001)", "")
    )


def test_the_one_rank_that_may_set_a_key_and_come_to_a_call_is_named(cluster_of: ClusterOf) -> None:
    cluster = cluster_of(4)
    cluster.history()
    cluster.post([0, 3], "tp:0", done=False)
    _at_store(cluster, 1)

    assert _named(cluster) == [("not_joined", (2,))]
    assert cluster.verdict().summary.endswith("Only rank 2 would release all 3 waiting ranks.")


def test_a_wait_at_a_store_that_ranks_post_calls_beside_keeps_nobody(cluster_of: ClusterOf) -> None:
    """A thread of each waits there for commands."""
    cluster = cluster_of(4)
    cluster.history()
    _at_store(cluster, *cluster.everybody)
    cluster.post([0, 2, 3], "tp:0", done=False)

    assert _named(cluster) == [("not_joined", (1,))]
    assert "at the store" not in cluster.verdict().summary


def test_who_receives_from_a_rank_at_a_store_follows_from_the_wait_there(
    cluster_of: ClusterOf,
) -> None:
    cluster = cluster_of(4)
    cluster.history()
    cluster.post([2], "tp:0", "recv", peer=0, done=False)
    _at_store(cluster, 0, 1)

    assert _named(cluster) == [("init_stalled", (2, 3))]


def test_a_rank_at_a_store_is_no_more_to_blame_than_who_may_set_the_key(
    cluster_of: ClusterOf,
) -> None:
    """Rank 1 alone is in no call, and all others wait for it; rank 3 did not set its key."""
    cluster = cluster_of(4)
    for _ in range(4):
        cluster.post(cluster.everybody, "world")
        cluster.post([1], "world", "send", peer=0)
        cluster.post([0], "world", "recv", peer=1)
    cluster.post(cluster.everybody, "world")
    cluster.post([0], "world", "recv", peer=1, done=False)
    cluster.post([2, 3], "world", done=False)
    assert (("not_joined", (1,))) in _named(cluster)
    _at_store(cluster, 1)

    assert {ranks for _, ranks in _named(cluster)} == {(0, 1, 2, 3)}


def test_a_dead_rank_that_may_have_set_a_key_is_what_all_wait_for(cluster_of: ClusterOf) -> None:
    cluster = cluster_of(4)
    cluster.history(members=[0, 1, 2])
    cluster.post([0, 1], "tp:0", members=[0, 1, 2], done=False)
    _at_store(cluster, 2)
    run = cluster.run()
    *others, last = (replace(one, alive=True) for one in run.ranks)
    gone = replace(last, alive=False, last_seen_ns=(last.last_seen_ns or 0) - 40_000_000_000)

    cause = diagnose(replace(run, ranks=(*others, gone))).cause

    assert cause is not None
    assert (cause.kind, cause.diverging_ranks) == ("dead_rank", (3,))


def test_of_two_ranks_at_the_ends_of_all_chains_none_is_named_alone(cluster_of: ClusterOf) -> None:
    """Rank 1 waits to receive from rank 2; rank 0 waits for all, and rank 3 is in no call."""
    cluster = cluster_of(4)
    for _ in range(4):
        cluster.post([2], "tp:0", "send", peer=1)
        cluster.post([1], "tp:0", "recv", peer=2)
        cluster.post(cluster.everybody, "tp:0")
    cluster.post([1], "tp:0", "recv", peer=2, done=False)
    cluster.post([0], "tp:0", done=False)

    assert _named(cluster) == [("not_joined", (2, 3))]
