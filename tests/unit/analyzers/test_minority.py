"""Who is alone: the few that wait in a call, or the few that never came to it."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from ncclscope.model import Finding
from tests.support.cluster import Cluster

ClusterOf = Callable[[int], Cluster]


def _cause(cluster: Cluster) -> Finding:
    verdict = cluster.verdict()
    assert verdict.status == "hung"
    assert verdict.cause is not None
    return verdict.cause


def _answer(cause: Finding) -> tuple[str, tuple[int, ...], tuple[int, ...], str]:
    return cause.kind, cause.diverging_ranks, cause.candidate_ranks, cause.confidence


@pytest.mark.parametrize(
    ("waiting", "expected"),
    [
        ([0], ("not_joined", (), (0, 1, 2, 3), "ambiguous")),
        ([0, 2], ("not_joined", (), (0, 1, 2, 3), "ambiguous")),
        ([0, 1, 3], ("not_joined", (2,), (), "certain")),
    ],
)
def test_the_few_that_are_missing_are_singled_out_and_in_a_tie_nobody(
    cluster_of: ClusterOf,
    waiting: list[int],
    expected: tuple[str, tuple[int, ...], tuple[int, ...], str],
) -> None:
    cluster = cluster_of(4)
    cluster.history("world")
    cluster.post(waiting, "world", "all_gather", done=False, site="metric.py:7 compute")

    cause = _cause(cluster)

    assert _answer(cause) == expected
    assert cause.comm is not None
    assert (cause.comm.label, cause.seq) == ("world", 6)


def test_one_that_waits_alone_while_others_went_on_is_shown_with_its_call(
    cluster_of: ClusterOf,
) -> None:
    """Without the others' later calls, they may be held up before it."""
    cluster = cluster_of(4)
    cluster.history("world")
    cluster.post([0], "world", "all_gather", done=False, site="metric.py:7 compute")
    cluster.post([1, 2, 3], "tp:0", members=(1, 2, 3))

    cause = _cause(cluster)

    assert cause.odd is not None
    assert cause.odd.site == "metric.py:7 compute"
    assert cause.peers is None
    assert "which ranks 1-3 never posted" in cause.summary
    assert any("is unknown" in thought for thought in cause.inferred)


def test_who_waits_behind_others_counts_as_waiting(cluster_of: ClusterOf) -> None:
    """Rank 0 alone waits in world, but the others wait in pairs behind one rank: rank 5."""
    cluster = cluster_of(6)
    cluster.history("world")
    cluster.history("tp:0", members=range(1, 6))
    cluster.post([0], "world", done=False)
    cluster.post([1, 2, 3, 4], "tp:0", members=range(1, 6), done=False)

    assert _answer(_cause(cluster)) == ("not_joined", (5,), (), "certain")


def test_a_chain_through_a_pair_names_its_end(cluster_of: ClusterOf) -> None:
    """In the pair it is one against one; two more wait for it further on."""
    cluster = cluster_of(4)
    cluster.history("world")
    cluster.history("tp:0", members=(2, 3))
    cluster.post([2], "tp:0", members=(2, 3), done=False)
    cluster.post([0, 1], "world", done=False)

    assert _answer(_cause(cluster))[:2] == ("not_joined", (3,))


def _pairs(cluster: Cluster, calls: int) -> None:
    """Two replicas of two; the second one has ended after a number of calls."""
    for pair, count in (((0, 1), 5), ((2, 3), calls)):
        for number in range(count):
            cluster.post(pair, "tp:0", shape=(10 + number, 2), members=pair)
    for rank in (2, 3):
        cluster.tracers[rank].close()


def test_a_replica_that_posted_the_call_decides_a_pair(cluster_of: ClusterOf) -> None:
    cluster = cluster_of(4)
    _pairs(cluster, 6)
    cluster.post([0], "tp:0", shape=(15, 2), members=(0, 1), done=False)

    cause = _cause(cluster)

    assert _answer(cause) == ("not_joined", (1,), (), "likely")
    assert "tp:0 of ranks 2 3: all members posted" in " ".join(cause.inferred)


def test_a_replica_that_ended_without_the_call_decides_a_pair(cluster_of: ClusterOf) -> None:
    cluster = cluster_of(4)
    _pairs(cluster, 5)
    cluster.post([0], "tp:0", shape=(15, 2), members=(0, 1), done=False)

    cause = _cause(cluster)

    assert _answer(cause) == ("extra_call", (0,), (), "likely")
    assert "went past this point without such a call" in " ".join(cause.inferred)


def test_a_replica_that_did_something_else_says_nothing(cluster_of: ClusterOf) -> None:
    """Near miss: its calls before this one are others."""
    cluster = cluster_of(4)
    cluster.post([2, 3], "tp:0", "all_gather", members=(2, 3))
    _pairs(cluster, 6)
    cluster.post([0], "tp:0", shape=(15, 2), members=(0, 1), done=False)

    assert _answer(_cause(cluster)) == ("not_joined", (), (0, 1), "ambiguous")


@pytest.mark.parametrize(
    ("ended", "expected"),
    [
        ([3], ("dead_rank", (3,), (), "certain")),
        ([1, 2, 3], ("extra_call", (0,), (), "likely")),
        ([2, 3], ("dead_rank", (), (0, 1, 2, 3), "ambiguous")),
    ],
)
def test_ranks_that_ended_in_order_left_early_or_were_done(
    cluster_of: ClusterOf,
    ended: list[int],
    expected: tuple[str, tuple[int, ...], tuple[int, ...], str],
) -> None:
    cluster = cluster_of(4)
    cluster.history("world")
    waiting = [rank for rank in cluster.everybody if rank not in ended]
    cluster.post(waiting, "world", done=False)
    for rank in ended:
        cluster.tracers[rank].close()

    assert _answer(_cause(cluster)) == expected


@pytest.mark.parametrize(("seconds", "confidence"), [(20.0, "likely"), (40.0, "certain")])
def test_a_rank_that_was_killed_soon_may_only_have_been_late(
    cluster_of: ClusterOf, seconds: float, confidence: str
) -> None:
    cluster = cluster_of(4)
    cluster.history()
    cluster.post([0, 1, 3], "tp:0", done=False)

    cause = cluster.verdict(quiet=seconds).cause

    assert cause is not None
    assert (cause.kind, cause.diverging_ranks, cause.confidence) == ("not_joined", (2,), confidence)


@pytest.mark.parametrize(
    ("waiting", "ended", "expected"),
    [
        ([0], [], ("not_joined", (), (0, 1, 2, 3), "ambiguous")),
        ([0], [1, 2, 3], ("extra_call", (0,), (), "likely")),
        ([0, 1, 2], [], ("not_joined", (3,), (), "certain")),
    ],
)
def test_a_call_that_is_due_is_no_extra_call_while_the_others_live(
    cluster_of: ClusterOf,
    waiting: list[int],
    ended: list[int],
    expected: tuple[str, tuple[int, ...], tuple[int, ...], str],
) -> None:
    """Most ranks may be late for the next step of a loop, as when their storage hangs."""
    cluster = cluster_of(4)
    cluster.history("world")
    cluster.post(waiting, "world", done=False)
    for rank in ended:
        cluster.tracers[rank].close()

    assert _answer(_cause(cluster)) == expected


@pytest.mark.parametrize(("late", "confidence"), [((2,), "likely"), ((2, 3), "certain")])
def test_who_came_to_the_end_of_its_program_may_have_been_right(
    cluster_of: ClusterOf, late: tuple[int, ...], confidence: str
) -> None:
    """Two that wait in the first call of a round may have gone round once more; five hardly."""
    cluster = cluster_of(3 if len(late) == 1 else 8)
    for _ in range(8):
        cluster.post(cluster.everybody, "world")
    cluster.post([rank for rank in cluster.everybody if rank not in late], "world", done=False)
    for rank in late:
        cluster.tracers[rank].close()

    cause = _cause(cluster)

    assert (cause.kind, cause.diverging_ranks, cause.confidence) == ("dead_rank", late, confidence)
