"""Each cause carries what its repair releases, and another story replaces one that fails."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from ncclscope import diagnose, open_run
from ncclscope.engine.case import Case
from ncclscope.engine.repairs.graph import Unfit, Wait, WaitGraph
from ncclscope.engine.repairs.repair import Change, Played, Proof, repaired
from ncclscope.engine.waits.graph import wait_graph
from ncclscope.model import Call, Finding
from tests.corpus.registry import all_cases
from tests.support.cluster import Cluster
from tests.worlds.sample import sample, verdict_on

ClusterOf = Callable[[int], Cluster]
LOOP, PAIR = "train.py:8 step", "train.py:14 step"


def cause(cluster: Cluster) -> Finding:
    found = cluster.verdict().cause
    assert found is not None
    return found


def test_a_call_in_place_of_another_is_repaired_where_it_differs(cluster_of: ClusterOf) -> None:
    cluster = cluster_of(4)
    cluster.history("world")
    cluster.post([0, 1, 3], "world", done=False)
    cluster.post([2], "world", dtype="float16", done=False)

    found = cause(cluster)

    assert (found.kind, found.confidence) == ("dtype_mismatch", "certain")
    proof = found.to_dict()["proof"]
    (changed,) = proof["repair"]["calls"]
    assert (changed["rank"], changed["seq"], changed["drop"], changed["add"]) == (2, 6, 1, 1)
    assert changed["like"] in (0, 1, 3)
    assert proof["releases"] == proof["of"] == 4
    assert proof["rival"]["releases"] == 1


def test_a_call_on_another_communicator_is_moved_there(cluster_of: ClusterOf) -> None:
    cluster = cluster_of(4)
    cluster.history("world")
    cluster.history("tp:0", members=(2, 3))
    cluster.post([0, 1], "world", done=False)
    cluster.post([2], "world", "all_gather", done=False)
    cluster.post([3], "tp:0", "all_gather", members=(2, 3), done=False)

    found = cause(cluster)

    assert (found.kind, found.diverging_ranks) == ("comm_swap", (2,))
    proof = found.to_dict()["proof"]
    assert len(proof["repair"]["calls"]) == 2
    assert proof["releases"] == proof["of"] == 4


@pytest.mark.parametrize(
    ("line", "kind"), [("train.py:12 step", "extra_call"), ("train.py:20 step", "missing_call")]
)
def test_a_rank_whose_peers_wait_for_more_posted_no_other_call_instead(
    cluster_of: ClusterOf, line: str, kind: str
) -> None:
    """Rank 3 waits for rank 2 in their pair: another call of rank 2 would leave both waiting."""
    cluster = cluster_of(4)
    for _ in range(5):
        cluster.post([0, 1, 2, 3], "world", site=LOOP)
        for pair in ((0, 1), (2, 3)):
            cluster.post(pair, f"pair:{pair[0]}", "all_gather", members=pair, site=PAIR)
    cluster.post([0, 1, 2, 3], "world", site=LOOP)
    cluster.post([0, 1], "pair:0", "all_gather", members=(0, 1), site=PAIR)
    cluster.post([0, 1], "world", site=LOOP, done=False)
    cluster.post([3], "pair:2", "all_gather", members=(2, 3), site=PAIR, done=False)
    cluster.post([2], "world", "reduce_scatter", site=line, done=False)

    found = cause(cluster)

    assert (found.kind, found.diverging_ranks, found.confidence) == (kind, (2,), "likely")
    assert found.comm is not None
    assert (found.comm.label, found.seq) == ("world", 7)
    proof = found.to_dict()["proof"]
    assert proof["releases"] == proof["of"] == 4


@pytest.mark.parametrize("late", [(2,), (2, 3)])
def test_who_else_holds_the_others_up_is_a_cause_as_well(
    cluster_of: ClusterOf, late: tuple[int, ...]
) -> None:
    """All wait for ranks that never came, before they come to the call in which rank 0 differs."""
    cluster = cluster_of(6)
    came = [rank for rank in range(6) if rank not in late]
    cluster.history("world", backend="nccl")
    cluster.post(came, "world", backend="nccl", done=False)
    cluster.post(came[1:], "world", backend="nccl", done=False)
    cluster.post([0], "world", "broadcast", root=0, backend="nccl", done=False)

    causes = [one for one in cluster.verdict().findings if one.role == "cause"]

    assert {(one.kind, one.diverging_ranks) for one in causes} == {
        ("op_mismatch", (0,)),
        *(("not_joined", (rank,)) for rank in late),
    }
    assert all((one.proof or {})["releases"] == (one.proof or {})["of"] for one in causes)


def test_a_cause_that_does_not_account_for_all_that_waits_is_not_certain(
    cluster_of: ClusterOf,
) -> None:
    """Ranks 4 and 5 wait for each other, whichever of them is wrong."""
    cluster = cluster_of(6)
    cluster.history("world", members=(0, 1, 2, 3))
    for pair in ("a", "b"):
        cluster.history(pair, members=(4, 5))
    cluster.post([0, 1, 2], "world", members=(0, 1, 2, 3), done=False)
    cluster.post([3], "world", "broadcast", root=0, members=(0, 1, 2, 3), done=False)
    cluster.post([4], "a", members=(4, 5), done=False)
    cluster.post([5], "b", members=(4, 5), done=False)

    found = cause(cluster)

    assert (found.kind, found.diverging_ranks, found.confidence) == ("op_mismatch", (3,), "likely")
    assert (found.proof or {})["releases"] == 4


def test_who_reduces_in_another_way_holds_nobody_up(cluster_of: ClusterOf) -> None:
    """The data is wrong, and all go on; only rank 3 has yet to come to the next call."""
    cluster = cluster_of(4)
    cluster.history("world", backend="nccl", done=False)
    cluster.post([0, 1, 3], "world", backend="nccl", done=False)
    cluster.post([2], "world", redop="max", backend="nccl", done=False)

    graph = wait_graph(Case(cluster.run()))

    assert (graph.waits, graph.unfit) == ((), ())
    cluster.post([0, 1, 2], "world", backend="nccl", done=False)
    graph = wait_graph(Case(cluster.run()))
    assert graph.waiting.keys() == {0, 1, 2}
    assert graph.awaited == {3}


def test_who_completed_a_call_that_differs_does_not_wait_in_it(cluster_of: ClusterOf) -> None:
    """The root of a broadcast sends its data, and goes on."""
    cluster = cluster_of(4)
    cluster.history("world")
    cluster.post([0], "world", "broadcast", root=0)
    cluster.post([1, 3], "world", "broadcast", root=0, done=False)
    cluster.post([2], "world", "broadcast", root=1, done=False)

    assert wait_graph(Case(cluster.run())).waiting.keys() == {1, 2, 3}


@pytest.mark.parametrize(
    ("number", "calls", "comes"),
    [
        (105, (18, 0, 1), []),  # a round of three calls, of which its peers have posted the first
        (223, (11, 0, 1), [3]),  # with transfers, which the repair does not have
    ],
)
def test_a_repair_copies_what_peers_have_posted(
    number: int, calls: tuple[int, int, int], comes: list[int]
) -> None:
    drawn = sample(1, number)
    (found,) = [
        one for one in verdict_on(drawn.world, drawn.outcome)["findings"] if one["role"] == "cause"
    ]

    repair = found["proof"]["repair"]
    (changed,) = repair["calls"]
    assert (changed["seq"], changed["drop"], changed["add"]) == calls
    assert (repair["comes"], found["confidence"]) == (comes, "likely")


@pytest.mark.parametrize(("against", "alone"), [((), False), (("leaves it unlike",), True)])
def test_what_is_certain_has_no_rival_that_is_as_cheap(
    against: tuple[str, ...], alone: bool
) -> None:
    proof = Proof((0,), {}, frozenset({0, 1}), frozenset(), (1, 2), (), against=against)

    assert proof.is_alone is alone
    assert proof.to_dict("comm_swap")["rival_against"] == list(against)


@pytest.mark.parametrize(("side", "held"), [((2,), {0, 1, 2}), ((3,), set())])
def test_a_repair_releases_nobody_who_comes_to_a_further_call_that_differs(
    side: tuple[int, ...], held: set[int]
) -> None:
    """All wait for rank 3, before a call in which one of them differs."""
    waits = [
        Wait(rank, Call("barrier", "world", 6, position=6), frozenset({3})) for rank in (0, 1, 2)
    ]
    further = Unfit("world", 9, ((0, 1), side))

    played = Played(frozenset({0, 1, 2}), WaitGraph(waits, [further]), frozenset({3}), frozenset())

    assert played.held() == held


def test_calls_moved_to_another_communicator_come_in_the_order_of_the_peers(tmp_path: Path) -> None:
    """Rank 3 posted two calls on ep:0 that belong between others on the world."""
    all_cases()["other_communicator.rings"].write(tmp_path / "case")

    found = diagnose(open_run(tmp_path / "case")).cause

    assert found is not None
    assert (found.kind, found.diverging_ranks, found.confidence) == ("comm_swap", (3,), "certain")
    proof = found.proof or {}
    calls = proof["repair"]["calls"]
    assert sum(one["add"] for one in calls) == sum(one["drop"] for one in calls) == 2
    assert proof["releases"] == proof["of"] == 4


def test_a_repair_that_drops_more_calls_than_were_posted_drops_those(cluster_of: ClusterOf) -> None:
    cluster = cluster_of(2)
    cluster.history("world")
    cluster.post([0, 1], "world", site=LOOP)
    for _ in range(3):
        cluster.post([0], "world", site=LOOP)
    run = cluster.run()
    (key,) = run.communicators

    found = repaired(run, {1: (Change(key, 6, 3, 4, 0, 6),)})

    assert found is not None
    assert found.by_rank[1].logs[key].calls == 9


def test_most_ranks_are_not_late_for_one_that_still_waits(cluster_of: ClusterOf) -> None:
    """Rank 3 reduces in another way. Rank 5, which goes round once more, waits for all others."""
    cluster = cluster_of(6)
    cluster.history("world")
    cluster.post([0, 1, 2, 4, 5], "world", done=False)
    cluster.post([3], "world", "broadcast", root=3, done=False)
    cluster.post([5], "world", done=False)

    causes = [one for one in cluster.verdict().findings if one.role == "cause"]

    assert [(one.kind, one.diverging_ranks) for one in causes] == [("op_mismatch", (3,))]
