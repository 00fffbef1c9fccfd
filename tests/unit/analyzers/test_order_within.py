"""Calls of one communicator the other way round, and blocks of calls left out."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest

from ncclscope.model import Finding
from tests.support.cluster import Cluster

ClusterOf = Callable[[int], Cluster]
OPS = {"g": "all_gather", "r": "all_reduce", "s": "reduce_scatter", "b": "all_to_all"}


def _post(cluster: Cluster, majority: str, odd: str, *, rank: int = 2) -> None:
    """Post calls by their letters, each kind with a size of its own; ``rank`` posts others."""
    cluster.history(backend="nccl", done=False)
    for number in cluster.everybody:
        for letter in odd if number == rank else majority:
            shape = (ord(letter), 2)
            op = OPS.get(letter, "all_reduce")
            cluster.post([number], "tp:0", op, shape=shape, done=False, backend="nccl")


def _cause(cluster: Cluster) -> Finding:
    cause = cluster.verdict().cause
    assert cause is not None
    return cause


@pytest.mark.parametrize(
    ("majority", "odd", "extent"),
    [
        ("grxyz", "rgxyz", 2),
        ("grsbxyz", "sbgrxyz", 4),
        ("gr", "rg", 2),  # nothing after it
        ("xxgrxx", "xxrgxx", 2),
    ],
)
def test_calls_in_the_opposite_order_are_named_as_that(
    cluster_of: ClusterOf, majority: str, odd: str, extent: int
) -> None:
    cluster = cluster_of(4)
    _post(cluster, majority, odd)

    cause = _cause(cluster)

    assert (cause.kind, cause.diverging_ranks) == ("op_mismatch", (2,))
    assert cause.seq == 6 + next(n for n in range(len(majority)) if majority[n] != odd[n])
    assert cause.extent == extent
    assert "in the opposite order" in cause.summary
    assert "all_gather" in cause.summary


@pytest.mark.parametrize(
    ("majority", "odd", "kind"),
    [
        ("grxyz", "rxyz", "missing_call"),
        ("grxyz", "bgrxyz", "extra_call"),
        ("grgrgrgrx", "rgrgrgrx", "missing_call"),  # every second is the same, and one is missing
        ("grxyz", "sgrxyz", "extra_call"),  # another one before both
    ],
)
def test_what_only_looks_like_another_order(
    cluster_of: ClusterOf, majority: str, odd: str, kind: str
) -> None:
    cluster = cluster_of(4)
    _post(cluster, majority, odd)

    cause = _cause(cluster)

    assert (cause.kind, cause.diverging_ranks) == (kind, (2,))
    assert "opposite order" not in cause.summary


def test_of_a_pair_neither_order_diverges(cluster_of: ClusterOf) -> None:
    cluster = cluster_of(2)
    _post(cluster, "grxyz", "rgxyz", rank=1)

    cause = _cause(cluster)

    assert (cause.kind, cause.diverging_ranks, cause.confidence) == ("op_mismatch", (), "ambiguous")
    assert cause.candidate_ranks == (0, 1)
    assert "opposite orders" in cause.summary


def test_another_order_inside_a_graph_is_named_in_its_first_replay(cluster_of: ClusterOf) -> None:
    cluster = cluster_of(4)

    def calls(order: Sequence[str]) -> list[tuple[str, dict[str, object]]]:
        return [(op, {"shape": (8, 2), "backend": "nccl"}) for op in order]

    majority, odd = ("all_gather", "all_reduce"), ("all_reduce", "all_gather")
    graphs = [cluster.capture(rank, calls(odd if rank == 2 else majority)) for rank in range(4)]
    for _ in range(3):
        for graph in graphs:
            graph.replay()

    cause = _cause(cluster)

    assert (cause.kind, cause.diverging_ranks) == ("op_mismatch", (2,))
    assert "in the opposite order" in cause.summary


# --- blocks ---------------------------------------------------------------------------------


def test_a_round_that_is_left_out_is_one_omission(cluster_of: ClusterOf) -> None:
    """Four all_reduces and a gather in each round; one round is the gather alone."""
    cluster = cluster_of(4)
    _post(cluster, "rrrrg" * 6, "rrrrg" * 3 + "g" + "rrrrg" * 2)

    cause = _cause(cluster)

    assert (cause.kind, cause.diverging_ranks, cause.seq) == ("missing_call", (2,), 21)
    assert cause.extent == 4
    assert cause.confidence == "likely", "one gather put in would fit, too"


def test_a_block_of_different_calls_that_is_left_out_is_certain(cluster_of: ClusterOf) -> None:
    cluster = cluster_of(4)
    _post(cluster, "tuvwxyzrsbg", "tuzrsbg")

    cause = _cause(cluster)

    assert (cause.kind, cause.diverging_ranks, cause.seq) == ("missing_call", (2,), 8)
    assert (cause.extent, cause.confidence) == (4, "certain")


def test_a_round_is_missed_where_all_stop_at_once(cluster_of: ClusterOf) -> None:
    """Nothing follows, but the gather has come after four all_reduces each time."""
    cluster = cluster_of(4)
    for _ in range(3):
        for _ in range(4):
            cluster.post(cluster.everybody, "tp:0")
        cluster.post(cluster.everybody, "tp:0", "all_gather")
    cluster.post([0, 1, 3], "tp:0", done=False)
    cluster.post([2], "tp:0", "all_gather", done=False)

    cause = _cause(cluster)

    assert (cause.kind, cause.diverging_ranks, cause.seq) == ("missing_call", (2,), 16)
    assert (cause.extent, cause.confidence) == (4, "likely")


def test_an_operation_from_another_line_is_no_round_missed(cluster_of: ClusterOf) -> None:
    """Near miss: the same history, but the gather comes from a line that is new."""
    cluster = cluster_of(4)
    for _ in range(3):
        for _ in range(4):
            cluster.post(cluster.everybody, "tp:0")
        cluster.post(cluster.everybody, "tp:0", "all_gather")
    cluster.post([0, 1, 3], "tp:0", done=False)
    cluster.post([2], "tp:0", "all_gather", done=False, site="debug.py:3 dump")

    assert _cause(cluster).kind == "op_mismatch"


# --- two communicators taken for each other ---------------------------------------------------


def test_two_communicators_taken_for_each_other_are_a_swap(cluster_of: ClusterOf) -> None:
    cluster = cluster_of(4)
    for step in range(6):
        for rank in cluster.everybody:
            tp, dp = ("dp:0", "tp:0") if (rank, step) == (3, 4) else ("tp:0", "dp:0")
            cluster.post([rank], tp, shape=(8, 2), done=False, backend="nccl")
            cluster.post([rank], dp, "all_gather", shape=(4, 2), done=False, backend="nccl")

    verdict = cluster.verdict()

    causes = [finding for finding in verdict.findings if finding.role == "cause"]
    assert [(cause.kind, cause.diverging_ranks) for cause in causes] == [("comm_swap", (3,))]
    assert causes[0].seq == 5


def test_two_wrong_operations_are_no_swap(cluster_of: ClusterOf) -> None:
    """Near miss: neither is what belongs on the other communicator."""
    cluster = cluster_of(4)
    for step in range(6):
        for rank in cluster.everybody:
            odd = (rank, step) == (3, 4)
            for label, op in (("tp:0", "all_reduce"), ("dp:0", "all_gather")):
                posted = "reduce_scatter" if odd else op
                cluster.post([rank], label, posted, shape=(8, 2), done=False, backend="nccl")

    assert "comm_swap" not in {finding.kind for finding in cluster.verdict().findings}
