"""Ranks that depart from their own rounds are the cause where no majority decides."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from ncclscope.engine.case import Case
from ncclscope.engine.repairs.repair import were_answered
from ncclscope.engine.waits.graph import wait_graph
from ncclscope.model import Finding
from ncclscope.model.activities import RAISED
from tests.support.cluster import Cluster

ClusterOf = Callable[[int], Cluster]
STEP, LAYER, GRADIENTS = "train.py:4 step", "train.py:8 forward", "train.py:12 step"
PAIRS = ((0, 1), (2, 3))
REPLICAS = ((0, 2), (1, 3))


def causes(cluster: Cluster) -> list[tuple[str, tuple[int, ...], str]]:
    found = [one for one in cluster.verdict().findings if one.role == "cause"]
    return sorted((one.kind, one.diverging_ranks, one.confidence) for one in found)


def post(
    cluster: Cluster, ranks: Sequence[int], groups: Sequence[tuple[int, ...]], site: str, **how: Any
) -> None:
    """Post a call of some ranks, each on its group."""
    for group in groups:
        name = "tp" if groups is PAIRS else "dp"
        posting = [rank for rank in ranks if rank in group]
        cluster.post(posting, f"{name}:{group[0]}", members=group, site=site, **how)


def test_ranks_without_a_dummy_batch_are_named_though_each_group_has_two(
    cluster_of: ClusterOf,
) -> None:
    cluster = cluster_of(4)
    for _ in range(4):
        post(cluster, range(4), REPLICAS, STEP, dtype="int64")
        post(cluster, range(4), PAIRS, LAYER)
        post(cluster, range(4), REPLICAS, GRADIENTS)
    post(cluster, range(4), REPLICAS, STEP, dtype="int64")
    post(cluster, [0, 1], PAIRS, LAYER)
    post(cluster, [0, 1], REPLICAS, GRADIENTS, done=False)
    post(cluster, [2, 3], REPLICAS, STEP, dtype="int64", done=False)

    assert causes(cluster) == [("missing_call", (2, 3), "likely")]
    found = cluster.verdict().cause
    assert found is not None
    assert [call.site for call in found.round] == [LAYER, GRADIENTS]
    assert found.proof is not None
    assert found.proof["releases"] == found.proof["of"] == 4


def test_a_call_before_its_turn_from_another_line_is_in_the_opposite_order(
    cluster_of: ClusterOf,
) -> None:
    """Rank 1 uses its two groups in the opposite order, in a branch of its own."""
    cluster = cluster_of(4)
    for _ in range(5):
        cluster.post(range(4), "gradients", site="train.py:21 main")
        cluster.post(range(4), "buffers", "all_gather", site="train.py:23 main")
    cluster.post([0, 2, 3], "gradients", site="train.py:21 main", done=False)
    cluster.post([1], "buffers", "all_gather", site="train.py:16 main", done=False)

    assert causes(cluster) == [("order_cycle", (1,), "likely")]
    found = cluster.verdict().cause
    assert found is not None
    assert found.odd is not None
    assert found.odd.site == "train.py:16 main"


@pytest.mark.parametrize("rank", [0, 1])
def test_a_rank_that_stops_early_left_out_the_calls_of_its_peers(
    cluster_of: ClusterOf, rank: int
) -> None:
    """The broadcast behind the loop comes from below it; a root goes on to the barrier."""
    cluster = cluster_of(4)
    for _ in range(5):
        for _ in range(2):
            cluster.post(range(4), "world", site="train.py:22 main")
        cluster.post(range(4), "world", shape=(8,), site="train.py:11 evaluate")
    others = [one for one in range(4) if one != rank]
    for _ in range(2):
        cluster.post(others, "world", site="train.py:22 main", done=False)
    cluster.post([rank], "world", "broadcast", root=0, site="train.py:25 main", done=False)
    if rank == 0:
        cluster.post([rank], "world", "barrier", site="train.py:27 main", done=False)

    assert causes(cluster) == [("missing_call", (rank,), "likely")]


def layers(cluster: Cluster, ranks: Sequence[int], count: int = 3, *, done: bool = True) -> None:
    for _ in range(count):
        post(cluster, ranks, PAIRS, LAYER, done=done)


def test_ranks_of_different_groups_with_the_same_fault_are_one_cause(
    cluster_of: ClusterOf,
) -> None:
    cluster = cluster_of(4)
    for _ in range(4):
        layers(cluster, range(4))
        post(cluster, range(4), REPLICAS, GRADIENTS)
    layers(cluster, range(4), 2)
    layers(cluster, [0, 3], 1, done=False)
    post(cluster, [1, 2], REPLICAS, GRADIENTS, done=False)

    assert causes(cluster) == [("not_joined", (1, 2), "likely")]


def test_two_faults_at_once_are_two_causes(cluster_of: ClusterOf) -> None:
    cluster = cluster_of(4)
    for _ in range(4):
        layers(cluster, range(4))
        post(cluster, range(4), REPLICAS, GRADIENTS)
    layers(cluster, range(4), 1)
    layers(cluster, [2, 3], 1)
    layers(cluster, [0, 3], 1, done=False)
    post(cluster, [1, 2], REPLICAS, GRADIENTS, done=False)

    assert causes(cluster) == [("not_joined", (1,), "likely"), ("not_joined", (2,), "likely")]
    verdict = cluster.verdict()
    said = verdict.to_dict()["verdict"]
    assert sorted(one["diverging_ranks"] for one in said["causes"]) == [[1], [2]]
    assert said["diverging_ranks"] == said["causes"][0]["diverging_ranks"]
    assert all(one.summary in verdict.summary for one in verdict.causes)


def test_a_round_posted_twice_is_seen_where_its_partner_took_it_for_the_next(
    cluster_of: ClusterOf,
) -> None:
    """Rank 3 runs a layer twice; rank 2 takes its call for that of the next step."""
    cluster = cluster_of(4)
    for _ in range(4):
        layers(cluster, range(4))
        post(cluster, range(4), REPLICAS, GRADIENTS)
    layers(cluster, range(4))
    post(cluster, [0, 2], REPLICAS, GRADIENTS)
    layers(cluster, [3], 1)
    post(cluster, [1, 3], REPLICAS, GRADIENTS)
    layers(cluster, [0, 1])
    layers(cluster, [2])
    layers(cluster, [3], 2)
    post(cluster, [0, 2], REPLICAS, GRADIENTS)
    cluster.post([0, 2], "world", site="train.py:14 step", done=False)
    post(cluster, [1], REPLICAS, GRADIENTS, done=False)
    layers(cluster, [3], 1, done=False)

    assert causes(cluster) == [("extra_call", (3,), "likely")]


def served(cluster: Cluster, clients: Sequence[int], *, done: bool = True) -> None:
    """Let rank 0 receive from any of its clients, and answer all."""
    for _ in clients:
        cluster.post([0], "world", "recv", site="server.py:3 serve", done=done)
    for rank in clients:
        cluster.post([rank], "world", "send", peer=0, site="client.py:3 ask", done=done)


def answered(cluster: Cluster, ranks: Sequence[int], *, done: bool = True) -> None:
    for rank in ranks:
        site = "client.py:4 ask" if rank else "server.py:4 serve"
        cluster.post([rank], "world", "broadcast", root=0, site=site, done=done)


def test_a_client_that_asked_for_nothing_is_named_to_a_server_that_receives_from_any(
    cluster_of: ClusterOf,
) -> None:
    cluster = cluster_of(4)
    for _ in range(4):
        served(cluster, [1, 2, 3])
        answered(cluster, range(4))
    served(cluster, [1, 3])
    cluster.post([0], "world", "recv", site="server.py:3 serve", done=False)
    answered(cluster, [1, 2, 3], done=False)

    assert causes(cluster) == [("p2p_mismatch", (2,), "likely")]
    found = cluster.verdict().cause
    assert found is not None
    assert found.peers is not None
    assert (found.peers.op, found.peers.site) == ("send", "client.py:3 ask")


def test_leaving_the_loop_is_no_departure(cluster_of: ClusterOf) -> None:
    """One of two has a step more, or the other one fewer: the new call shows neither."""
    cluster = cluster_of(2)
    for _ in range(6):
        cluster.post([0, 1], "world", site=LAYER)
        cluster.post([0, 1], "world", "all_gather", site=GRADIENTS)
    cluster.post([0], "world", "barrier", site="train.py:20 main", done=False)
    cluster.post([1], "world", site=LAYER, done=False)

    assert all(one.analyzer != "accounting" for one in cluster.verdict().findings)


def test_an_inner_loop_that_one_rank_left_a_round_earlier(cluster_of: ClusterOf) -> None:
    """Requests differ in their numbers of tokens, so that both calls were posted here before."""
    cluster = cluster_of(3)
    token, end = "decode.py:8 decode", "serve.py:18 serve"
    for tokens in (5, 3, 6, 4):
        for _ in range(tokens):
            cluster.post(range(3), "world", site=token)
            cluster.post(range(3), "world", "broadcast", root=0, site="decode.py:9 decode")
        cluster.post(range(3), "world", "all_gather", site=end)
    for _ in range(3):
        cluster.post(range(3), "world", site=token)
        cluster.post(range(3), "world", "broadcast", root=0, site="decode.py:9 decode")
    cluster.post([0, 2], "world", site=token, done=False)
    cluster.post([1], "world", "all_gather", site=end, done=False)

    assert causes(cluster) == [("missing_call", (1,), "likely")]
    found: Finding | None = cluster.verdict().cause
    assert found is not None
    assert found.extent == 2


def test_splits_that_do_not_add_up_are_wrong_themselves(cluster_of: ClusterOf) -> None:
    cluster = cluster_of(3)
    even = {"sizes": (2, 2, 2), "out_sizes": (2, 2, 2), "shape": (6,)}
    for _ in range(2):
        cluster.post(range(3), "world", "all_to_all", **even)
    cluster.post([0, 2], "world", "all_to_all", done=False, **even)
    cluster.post([1], "world", "all_to_all", done=False, **{**even, "sizes": (2, 2, 3)})

    assert causes(cluster) == [("split_mismatch", (1,), "certain")]


def test_ranks_that_did_the_same_on_sister_groups_are_one_cause(cluster_of: ClusterOf) -> None:
    cluster = cluster_of(6)
    groups = ((0, 2, 4), (1, 3, 5))
    for group in groups:
        for _ in range(3):
            cluster.post(group, f"dp:{group[0]}", members=group, site=GRADIENTS)
    for group, odd in zip(groups, (2, 3), strict=True):
        others = [rank for rank in group if rank != odd]
        cluster.post(others, f"dp:{group[0]}", members=group, site=GRADIENTS, done=False)
        cluster.post(
            [odd], f"dp:{group[0]}", "all_gather", members=group, site="test.py:4 test", done=False
        )

    assert causes(cluster) == [("op_mismatch", (2, 3), "certain")]


def test_a_majority_with_a_new_call_is_outweighed_by_sister_groups(cluster_of: ClusterOf) -> None:
    """Ranks 1 and 3 of three broadcast; rank 5 and the other group reduce, as all did before.

    The broadcast comes from a line behind those of the loop: they have left it.
    """
    cluster = cluster_of(6)
    even, uneven = (0, 2, 4), (1, 3, 5)
    for _ in range(3):
        for group in (even, uneven):
            cluster.post(group, f"dp:{group[0]}", members=group, site=GRADIENTS)
    cluster.post(even, "dp:0", members=even, site=GRADIENTS)
    cluster.post([5], "dp:1", members=uneven, site=GRADIENTS, done=False)
    cluster.post(
        [1, 3], "dp:1", "broadcast", root=1, members=uneven, site="train.py:15 step", done=False
    )

    assert causes(cluster) == [("missing_call", (1, 3), "likely")]


def test_rounds_of_changing_length_are_no_evidence(cluster_of: ClusterOf) -> None:
    """Layers are dropped at random; three steps in a row have four by chance."""
    cluster = cluster_of(4)
    for count in (2, 3, 2, 5, 3, 4, 4, 4):
        layers(cluster, range(4), count)
        post(cluster, range(4), REPLICAS, GRADIENTS)
    layers(cluster, range(4), 4)
    layers(cluster, [0, 1, 3], 1, done=False)
    post(cluster, [2], REPLICAS, GRADIENTS, done=False)

    assert all(3 not in ranks for _, ranks, _ in causes(cluster))


# --- a call of the round on another communicator, or to another peer ------------------------------


def shards(cluster: Cluster, *, odd: int | None = None) -> None:
    """Post a step with one call on each group; `odd` posts the second one on the first's group."""
    others = [rank for rank in cluster.everybody if rank != odd]
    post(cluster, range(4), PAIRS, LAYER)
    post(cluster, others, REPLICAS, GRADIENTS, done=odd is None)
    if odd is not None:
        post(cluster, [odd], PAIRS, GRADIENTS, done=False)


def test_a_call_on_another_group_than_in_each_round_before_is_the_cause(
    cluster_of: ClusterOf,
) -> None:
    cluster = cluster_of(4)
    for _ in range(6):
        shards(cluster)
        cluster.post(range(4), "world", "all_gather", site=STEP)
    shards(cluster, odd=2)
    cluster.post([3], "world", "all_gather", site=STEP, done=False)

    assert causes(cluster) == [("comm_swap", (2,), "likely")]
    found = cluster.verdict().cause
    assert found is not None
    assert found.odd is not None
    assert (found.odd.site, found.comm and found.comm.label) == (GRADIENTS, "tp:2")


HALO, NEXT = "halo.py:9 exchange", "halo.py:12 step"


def halo(cluster: Cluster, *, odd: int | None = None) -> None:
    """Send to the next rank of a ring and receive from the one before; `odd` sends to rank 1."""
    size = len(cluster.everybody)
    for rank in cluster.everybody:
        peer = 1 if rank == odd else (rank + 1) % size
        cluster.post([rank], "world", "send", peer=peer, site=HALO, done=odd is None)
    for rank in cluster.everybody:
        if odd is None or rank not in (odd, 1):
            before = (rank - 1) % size
            cluster.post([rank], "world", "recv", peer=before, site=NEXT, done=odd is None)


def test_a_send_to_another_peer_than_in_each_round_before_is_the_cause(
    cluster_of: ClusterOf,
) -> None:
    cluster = cluster_of(5)
    for _ in range(8):
        halo(cluster)
    halo(cluster, odd=3)

    assert causes(cluster) == [("p2p_mismatch", (3,), "likely")]
    found = cluster.verdict().cause
    assert found is not None
    assert found.odd is not None
    assert (found.odd.op, found.odd.peer) == ("send", 1)


def batch(cluster: Cluster, ranks: Sequence[int]) -> None:
    """Post an object's broadcast: its size, then its bytes."""
    for shape, dtype in (((1,), "int64"), ((80,), "uint8")):
        cluster.post(ranks, "world", "broadcast", root=0, site=STEP, shape=shape, dtype=dtype)


def test_a_loop_left_out_is_one_statement_and_no_call_was_posted_again(
    cluster_of: ClusterOf,
) -> None:
    """An engine leaves out an empty step; its next call receives the object of the step after."""
    cluster = cluster_of(4)
    for size in (1, 4, 2, 3, 1, 4, 2):
        batch(cluster, range(4))
        for _ in range(6):
            cluster.post(range(4), "world", shape=(size, 16), site=LAYER)
    batch(cluster, range(4))
    cluster.post([0, 1, 3], "world", shape=(3, 16), site=LAYER, done=False)
    shape = {"shape": (1,), "dtype": "int64"}
    cluster.post([2], "world", "broadcast", root=0, site=STEP, done=False, **shape)

    assert causes(cluster) == [("missing_call", (2,), "likely")]


def test_another_root_that_no_call_of_the_line_had_is_no_later_call(cluster_of: ClusterOf) -> None:
    """Each parameter has its owner; rank 0 takes another one for the owner of the first."""
    cluster = cluster_of(4)
    for _ in range(5):
        for root, size in ((0, 40), (1, 20), (2, 20)):
            cluster.post(range(4), "world", "reduce", root=root, shape=(size,), site=STEP)
    for ranks, root in (([1, 2, 3], 0), ([0], 1)):
        cluster.post(ranks, "world", "reduce", root=root, shape=(40,), site=STEP, done=False)

    assert causes(cluster) == [("root_mismatch", (0,), "likely")]


@pytest.mark.parametrize("raised", [True, False])
def test_an_exception_explains_calls_left_out_better_than_a_call_too_many(
    cluster_of: ClusterOf, raised: bool
) -> None:
    cluster = cluster_of(4)
    for size in (1, 4, 2, 3, 1, 4, 2):
        batch(cluster, range(4))
        for layer in (*[LAYER, "train.py:9 forward"] * 3,):
            cluster.post(range(4), "world", shape=(size, 16), site=layer)
    batch(cluster, range(4))
    if raised:
        cluster.tracers[2].activity(RAISED).begin("KeyError at train.py:6 forward")
    cluster.post([0, 1, 3], "world", shape=(3, 16), site=LAYER, done=False)
    shape = {"shape": (1,), "dtype": "int64"}
    cluster.post([2], "world", "broadcast", root=0, site=STEP, done=False, **shape)

    kind = "missing_call" if raised else "extra_call"
    assert [(one, ranks) for one, ranks, _ in causes(cluster)] == [(kind, (2,))]


# --- a ring in which something goes round ---------------------------------------------------------


def ring(cluster: Cluster, first: int, rounds: int, *, sends: bool = True) -> None:
    """Let three ranks hand something round, the first of them at the beginning of each round.

    Args:
        cluster: The job.
        first: The first rank of the ring; the others come after it.
        rounds: Number of whole rounds. In the one after them, the third rank sends nothing.
        sends: Whether the first rank sends in that round.
    """
    one, two, three = first, first + 1, first + 2
    for left in range(rounds, -1, -1):
        if sent := bool(left) or sends:
            cluster.post([one], "world", "send", peer=two)
        cluster.post([two], "world", "recv", peer=one, done=sent)
        if sent:
            cluster.post([two], "world", "send", peer=three)
        cluster.post([three], "world", "recv", peer=two, done=sent)
        if left:
            cluster.post([three], "world", "send", peer=one)
        cluster.post([one], "world", "recv", peer=three, done=bool(left))


def test_a_rank_within_a_round_that_its_peers_answered_has_not_gone_round_again(
    cluster_of: ClusterOf,
) -> None:
    """Rank 0 waits in the second call of its round, and rank 1 of another ring in the first."""
    cluster = cluster_of(6)
    ring(cluster, 0, 4)
    ring(cluster, 3, 4, sends=False)
    case = Case(cluster.run())

    assert were_answered(case, (0, 3, 4)) == {0}


def test_parts_of_a_job_that_wait_for_no_other_are_decided_alone(cluster_of: ClusterOf) -> None:
    """Rank 0 of a ring leaves out a send, and rank 5 of another one does not come to its own."""
    cluster = cluster_of(6)
    ring(cluster, 0, 5, sends=False)
    ring(cluster, 3, 7)

    assert causes(cluster) == [
        ("p2p_mismatch", (0,), "likely"),
        ("p2p_mismatch", (5,), "likely"),
    ]


def test_groups_that_have_made_as_many_calls_by_chance_left_nothing_out(
    cluster_of: ClusterOf,
) -> None:
    """Before call 1 on the world, one pair has made as many calls as another before call 2."""
    cluster = cluster_of(6)
    pairs = [(0, 1), (2, 3), (4, 5)]

    def train(steps: tuple[int, ...]) -> None:
        for number, (pair, count) in enumerate(zip(pairs, steps, strict=True)):
            for _ in range(count):
                cluster.post(pair, f"pg{number}", members=pair, site="train.py:3")

    train((40, 6, 17))
    cluster.post(cluster.everybody, "world", "all_gather", site="train.py:9")
    train((9, 34, 22))
    cluster.post([2, 3, 4, 5], "world", "all_gather", site="train.py:9", done=False)

    cause = cluster.verdict().cause
    assert cause is not None
    assert (cause.kind, cause.diverging_ranks) == ("not_joined", (0, 1))


def test_halves_that_both_have_posted_are_no_wait_beside_one_that_lacks_its_other_half(
    cluster_of: ClusterOf,
) -> None:
    """Rank 4 sends both blocks to the right, where each rank sends one each way."""
    cluster = cluster_of(5)

    def hop(rank: int, *halves: tuple[str, int, bool]) -> None:
        for op, peer, done in halves:
            cluster.post([rank], "world", op, peer=peer, site="ring.py:4", shape=(12,), done=done)

    def around(rank: int) -> None:
        right, left = (rank + 1) % 5, (rank - 1) % 5
        hop(rank, ("send", right, True), ("recv", left, True))
        hop(rank, ("send", left, True), ("recv", right, True))

    for _ in range(3):
        for rank in cluster.everybody:
            around(rank)
    around(1)
    around(2)
    hop(0, ("send", 1, True), ("recv", 4, True), ("send", 4, False), ("recv", 1, False))
    hop(3, ("send", 4, True), ("recv", 2, True), ("send", 2, True), ("recv", 4, False))
    hop(4, ("send", 0, True), ("recv", 3, True), ("send", 0, False), ("recv", 3, False))
    hop(1, ("send", 2, True), ("recv", 0, False), ("send", 0, False), ("recv", 2, False))
    hop(2, ("send", 3, False), ("recv", 1, False), ("send", 1, False), ("recv", 3, False))

    graph = wait_graph(Case(cluster.run()))
    assert graph.cheapest == [frozenset({4})]
    assert [ranks for _, ranks, _ in causes(cluster)] == [(4,)]
