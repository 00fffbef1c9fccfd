"""Whose calls a column shows: the ranks that recorded them, and no others."""

from __future__ import annotations

from pathlib import Path

from ncclscope.render.console.sides import aligned_sides
from tests.support.cluster import Cluster


def _sides(cluster: Cluster) -> tuple[tuple[int, ...], tuple[int, ...]] | None:
    verdict = cluster.verdict()
    assert verdict.cause is not None
    assert verdict.neighbourhood is not None
    return aligned_sides(verdict.neighbourhood, verdict.cause)


def test_a_column_names_the_ranks_that_recorded_its_calls(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path, 4)
    cluster.history()
    cluster.post([0, 1, 3], "tp:0", done=False)
    cluster.post([2], "tp:0", "all_gather", done=False)

    assert _sides(cluster) == ((0, 1, 3), (2,))


def test_a_rank_that_has_not_come_so_far_is_in_no_column(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path, 5)
    cluster.history()
    cluster.post([0, 1, 3], "tp:0", done=False)
    cluster.post([2], "tp:0", "all_gather", done=False)

    assert _sides(cluster) == ((0, 1, 3), (2,)), "rank 4 posted neither"


def test_a_rank_that_posted_something_else_again_is_in_no_column(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path, 6)
    cluster.history()
    cluster.post([0, 1, 3, 5], "tp:0", done=False)
    cluster.post([2], "tp:0", "all_gather", done=False)
    cluster.post([4], "tp:0", "broadcast", root=0, done=False)

    sides = _sides(cluster)

    assert sides is not None
    assert sides[0] == (0, 1, 3, 5)
    assert sides[1] in ((2,), (4,))
