"""Whose calls a column shows: the ranks that recorded them, and no others."""

from __future__ import annotations

from pathlib import Path

from rich.console import Console

from ncclscope.engine.case import Case
from ncclscope.engine.sequences.columns import align_columns
from ncclscope.engine.verdict import diagnose
from ncclscope.render.console.sides import aligned_sides, shown_groups
from ncclscope.render.console.verdict import render_verdict
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


def test_a_rank_that_posted_another_call_later_is_in_no_column(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path, 4)
    cluster.history()
    cluster.post([0, 1, 3], "tp:0", done=False)
    cluster.post([2], "tp:0", "all_gather", done=False)
    cluster.post([0, 3], "tp:0", "barrier", done=False)
    cluster.post([1], "tp:0", "broadcast", root=0, done=False)

    sides = _sides(cluster)

    assert sides is not None
    assert 1 not in sides[0] or {0, 3}.isdisjoint(sides[0])


def test_calls_that_not_all_ranks_of_a_column_made_name_their_ranks(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path, 4)
    cluster.history()
    cluster.post([0, 1, 3], "tp:0", done=False)
    cluster.post([2], "tp:0", "all_gather", done=False)
    cluster.post([0, 3], "tp:0", "barrier", done=False)

    console = Console(width=120)
    with console.capture() as capture:
        console.print(render_verdict(cluster.verdict(), 120))

    assert ", ranks 0 3 only" in capture.get()


def test_ranks_whose_splits_differ_share_no_column(tmp_path: Path) -> None:
    """Rank 1 drops one of the rows that it has for rank 2."""
    cluster = Cluster(tmp_path, 5)
    cluster.history("world")
    for rank in cluster.everybody:
        sizes = [6, 6, 5 if rank == 1 else 6, 6, 6]
        shape, into = (sum(sizes), 8), [6] * 5
        cluster.post([rank], "world", "all_to_all", shape=shape, sizes=sizes, out_sizes=into)
    run = cluster.run()
    verdict = diagnose(run)
    assert verdict.cause is not None
    assert verdict.neighbourhood is not None

    (key,) = run.communicators
    table = align_columns(
        run.communicators[key], Case(run).recorded(key), seq=6, by_shape=True, before=0
    )

    assert shown_groups(verdict.neighbourhood, verdict.cause, 2) == ([[0, 2, 3, 4], [1]], [])
    assert table is not None
    assert [column.ranks for column in table.columns] == [(0, 2, 3, 4), (1,)]
