"""Sizes that members pass each other: what one sends, the other has to expect."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from ncclscope.engine.verdict import Verdict
from tests.support.cluster import Cluster, agrees

ClusterOf = Callable[[int], Cluster]


def _exchange(cluster: Cluster, sent: list[list[int]], expected: list[list[int]]) -> None:
    """One all_to_all: what each rank sends to each, and what each expects from each."""
    for rank, (out, into) in enumerate(zip(sent, expected, strict=True)):
        shape = (sum(out), 8)
        cluster.post([rank], "ep:0", "all_to_all", shape=shape, sizes=out, out_sizes=into)


def _transposed(sent: list[list[int]]) -> list[list[int]]:
    return [list(column) for column in zip(*sent, strict=True)]


def _named(verdict: Verdict) -> tuple[str, tuple[int, ...], tuple[int, ...], int | None]:
    assert verdict.cause is not None
    cause = verdict.cause
    return cause.kind, cause.diverging_ranks, cause.candidate_ranks, cause.seq


SENT = [[4, 0, 1, 2], [3, 3, 0, 0], [0, 0, 0, 7], [1, 1, 1, 1]]


def test_uneven_splits_that_fit_are_healthy(cluster_of: ClusterOf) -> None:
    cluster = cluster_of(4)
    for _ in range(5):
        _exchange(cluster, SENT, _transposed(SENT))

    assert agrees(cluster.verdict())


def test_a_rank_whose_splits_no_peer_expects_is_named(cluster_of: ClusterOf) -> None:
    cluster = cluster_of(4)
    _exchange(cluster, SENT, _transposed(SENT))
    wrong = [list(row) for row in SENT]
    wrong[1] = [2, 2, 1, 1]
    _exchange(cluster, wrong, _transposed(SENT))

    verdict = cluster.verdict()

    assert _named(verdict) == ("split_mismatch", (1,), (), 2)
    assert verdict.cause is not None
    assert verdict.cause.confidence == "certain"


def test_of_two_that_do_not_fit_either_may_be_wrong(cluster_of: ClusterOf) -> None:
    cluster = cluster_of(4)
    expected = _transposed(SENT)
    expected[3][2] = 6  # rank 2 sends 7 to rank 3
    _exchange(cluster, SENT, expected)

    verdict = cluster.verdict()

    assert _named(verdict) == ("split_mismatch", (), (2, 3), 1)
    assert verdict.cause is not None
    assert verdict.cause.confidence == "ambiguous"


def test_of_many_sizes_that_do_not_fit_eight_are_evidence(cluster_of: ClusterOf) -> None:
    cluster = cluster_of(4)
    _exchange(cluster, SENT, [[size + 1 for size in row] for row in _transposed(SENT)])

    cause = cluster.verdict().cause

    assert cause is not None
    assert sum("which expects" in line for line in cause.evidence) == 8


@pytest.mark.parametrize("op", ["all_gatherv", "reduce_scatterv"])
@pytest.mark.parametrize("wrong", [None, 2])
def test_own_rows_are_the_own_entry_of_the_sizes(
    cluster_of: ClusterOf, op: str, wrong: int | None
) -> None:
    cluster = cluster_of(4)
    sizes = [4, 0, 1, 7]
    for rank in cluster.everybody:
        rows = sizes[rank] + (rank == wrong)
        shapes = [(rows, 8), (sum(sizes), 8)]
        shape, out_shape = shapes if op == "all_gatherv" else shapes[::-1]
        cluster.post([rank], "ep:0", op, shape=shape, out_shape=out_shape, sizes=sizes)

    verdict = cluster.verdict()

    if wrong is None:
        assert agrees(verdict)
    else:
        assert _named(verdict) == ("split_mismatch", (2,), (), 1)


def test_sizes_in_another_unit_prove_nothing(cluster_of: ClusterOf) -> None:
    """Near miss: elements on one side, rows on the other, on all ranks."""
    cluster = cluster_of(4)
    for rank in cluster.everybody:
        cluster.post([rank], "ep:0", "all_gatherv", shape=(rank + 1, 8), sizes=[8, 16, 24, 32])

    assert agrees(cluster.verdict())


def test_a_call_with_its_splits_is_one_cause(cluster_of: ClusterOf) -> None:
    cluster = cluster_of(4)
    _exchange(cluster, SENT, _transposed(SENT))
    wrong = [list(row) for row in SENT]
    wrong[1] = [2, 2, 1, 1]
    for rank, (out, into) in enumerate(zip(wrong, _transposed(SENT), strict=True)):
        more = {"shape": (sum(out), 8), "sizes": out, "out_sizes": into, "done": False}
        cluster.post([rank], "ep:0", "all_to_all", **more)

    verdict = cluster.verdict()

    roles = {(finding.kind, finding.role) for finding in verdict.findings}
    assert roles == {("split_mismatch", "cause"), ("stalled", "consequence")}


def test_sizes_are_in_the_sentence(cluster_of: ClusterOf) -> None:
    """Shapes may differ by right; what differs has to be shown."""
    cluster = cluster_of(4)
    for rank in cluster.everybody:
        sizes = [4, 0, 2, 6] if rank == 1 else [4, 0, 1, 7]
        rows = [4, 0, 1, 7][rank]
        cluster.post([rank], "ep:0", "all_gatherv", shape=(rows, 8), sizes=sizes, done=False)

    cause = cluster.verdict().cause

    assert cause is not None
    assert cause.diverging_ranks == (1,)
    assert "sizes 4,0,2,6" in cause.summary
    assert "sizes 4,0,1,7" in cause.summary
