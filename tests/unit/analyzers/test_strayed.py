"""Calls on another communicator in which all wait, and mistakes that few calls leave open."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from ncclscope.model import Finding
from tests.support.cluster import Cluster

ClusterOf = Callable[[int], Cluster]
LINE = "train.py:20 step"
OWN = "train.py:30 step"


def _rounds(cluster: Cluster) -> None:
    for _ in range(3):
        cluster.post(cluster.everybody, "world", site=LINE)
        cluster.post([0, 1, 2], "tp", members=(0, 1, 2), site=OWN)


def _cause(cluster: Cluster) -> Finding:
    causes = [one for one in cluster.verdict().findings if one.role == "cause"]
    assert len(causes) == 1
    return causes[0]


def test_a_rank_that_waits_alone_where_its_peers_wait_elsewhere_mixed_them_up(
    cluster_of: ClusterOf,
) -> None:
    cluster = cluster_of(4)
    _rounds(cluster)
    cluster.post([0, 1, 3], "world", site=LINE, done=False)
    cluster.post([2], "tp", members=(0, 1, 2), site=LINE, done=False)

    found = _cause(cluster)

    assert (found.kind, found.diverging_ranks, found.confidence) == ("comm_swap", (2,), "certain")
    assert found.comm is not None
    assert (found.comm.label, found.seq) == ("tp", 4)
    assert cluster.verdict().status == "hung"


def test_another_call_in_place_of_the_peers_shows_the_same(cluster_of: ClusterOf) -> None:
    cluster = cluster_of(4)
    _rounds(cluster)
    cluster.post([0, 1], "tp", members=(0, 1, 2), site=OWN, done=False)
    cluster.post([3], "world", "barrier", shape=None, dtype=None, site=LINE, done=False)
    cluster.post([2], "world", site=OWN, done=False)

    found = _cause(cluster)

    assert (found.kind, found.diverging_ranks) == ("comm_swap", (2,))
    assert found.confidence == "certain"


@pytest.mark.parametrize(
    "more", [{"site": "train.py:40 step"}, {"site": LINE, "shape": (9, 2)}], ids=["line", "size"]
)
def test_another_call_than_the_peers_wait_in_is_no_mix_up(
    cluster_of: ClusterOf, more: dict[str, Any]
) -> None:
    cluster = cluster_of(4)
    _rounds(cluster)
    cluster.post([0, 1, 3], "world", site=LINE, done=False)
    cluster.post([2], "tp", members=(0, 1, 2), done=False, **more)

    assert _cause(cluster).kind != "comm_swap"


def test_a_line_that_posts_on_both_shows_no_mix_up(cluster_of: ClusterOf) -> None:
    """Near miss: a function of the program posts on whichever communicator it is given."""
    cluster = cluster_of(4)
    for _ in range(3):
        cluster.post(cluster.everybody, "world", site=LINE)
        cluster.post([0, 1, 2], "tp", members=(0, 1, 2), site=LINE)
    cluster.post([0, 1, 3], "world", site=LINE, done=False)
    cluster.post([2], "tp", members=(0, 1, 2), site=LINE, done=False)

    assert _cause(cluster).kind != "comm_swap"


@pytest.mark.parametrize("steps", [0, 1, 3])
def test_one_call_before_the_peers_first_may_be_early(cluster_of: ClusterOf, steps: int) -> None:
    """In the first rounds nothing shows what follows; later they show that it is extra."""
    cluster = cluster_of(4)
    for number in range(steps):
        cluster.post(cluster.everybody, "world", "barrier", shape=None, dtype=None, site=LINE)
        cluster.post(cluster.everybody, "world", shape=(8 + number, 2), site=OWN)
    cluster.post([1], "world", "all_gather", site="train.py:24 step", done=False)
    cluster.post(
        cluster.everybody, "world", "barrier", shape=None, dtype=None, site=LINE, done=False
    )

    found = _cause(cluster)

    assert (found.kind, found.diverging_ranks) == ("extra_call", (1,))
    assert found.confidence == ("certain" if steps > 1 else "likely")


@pytest.mark.parametrize(
    ("line", "kind", "confidence"), [(25, "op_mismatch", "certain"), (50, "missing_call", "likely")]
)
def test_an_operation_from_after_the_loop_may_follow_a_round_left_out(
    cluster_of: ClusterOf, line: int, kind: str, confidence: str
) -> None:
    """A call that not each round has hides the period, but not where the loop ends."""
    cluster = cluster_of(4)
    for number in range(4):
        cluster.post(cluster.everybody, "world", shape=(8 + number**3, 2), site=LINE)
        cluster.post(cluster.everybody, "world", "all_gather", site=OWN)
    cluster.post([0, 2, 3], "world", shape=(99, 2), site=LINE, done=False)
    other: dict[str, Any] = {"shape": None, "dtype": None, "site": f"train.py:{line} step"}
    cluster.post([1], "world", "barrier", done=False, **other)

    found = _cause(cluster)

    assert (found.kind, found.diverging_ranks) == (kind, (1,))
    assert found.confidence == confidence


def test_an_operation_in_the_first_round_may_follow_a_skip(cluster_of: ClusterOf) -> None:
    cluster = cluster_of(4)
    cluster.post([0, 2, 3], "world", site=LINE, done=False)
    cluster.post([1], "world", "barrier", shape=None, dtype=None, site=OWN, done=False)

    found = _cause(cluster)

    assert (found.kind, found.diverging_ranks) == ("op_mismatch", (1,))
    assert found.confidence == "likely"


def test_a_line_of_another_communicator_shows_where_its_only_call_too_many_belongs(
    cluster_of: ClusterOf,
) -> None:
    """Rank 0 goes on on both: it is one call ahead on the one, and one behind on the other."""
    cluster = cluster_of(4)

    def load(ranks: list[int], label: str) -> None:
        how = {"shape": (8,), "root": 0, "site": OWN, "done": False, "backend": "nccl"}
        cluster.post(ranks, label, "broadcast", **how)

    for number in range(8):
        load([1, 2, 3], "loader")
        load([0], "trainer" if number == 4 else "loader")
        cluster.post(cluster.everybody, "trainer", site=LINE, done=False, backend="nccl")

    found = _cause(cluster)

    assert (found.kind, found.diverging_ranks) == ("comm_swap", (0,))
    assert found.comm is not None
    assert (found.comm.label, found.seq) == ("trainer", 5)
