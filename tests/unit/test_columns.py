"""Calls side by side: what is in one row, and why a place is empty."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ncclscope.engine.case import Case
from ncclscope.engine.sequences.columns import ColumnTable, align_columns, transfer_columns
from tests.support.cluster import Cluster


@pytest.fixture
def cluster(tmp_path: Path) -> Cluster:
    return Cluster(tmp_path / "rings", 4)


def table_of(cluster: Cluster, *, label: str = "tp:0", **options: Any) -> ColumnTable:
    run = cluster.run()
    (key,) = (key for key, comm in run.communicators.items() if comm.label == label)
    column_table = align_columns(run.communicators[key], Case(run).recorded(key), **options)
    assert column_table is not None
    return column_table


def shown(column_table: ColumnTable, column: int) -> list[str]:
    return [
        cell.why if cell.call is None else f"{cell.call.seq} {cell.call.op}"
        for cell in column_table.columns[column].cells
    ]


def test_what_one_rank_left_out_leaves_a_gap_and_the_rest_stays_beside(cluster: Cluster) -> None:
    cluster.history(count=2)
    cluster.post([0, 1, 3], "tp:0", "broadcast", root=0)
    for op in ("all_gather", "barrier", "all_reduce"):
        cluster.post(cluster.everybody, "tp:0", op, done=False)

    column_table = table_of(cluster, seq=3, odd=[2])

    assert [column.ranks for column in column_table.columns] == [(0, 1, 3), (2,)]
    assert shown(column_table, 0)[2:] == [
        "3 broadcast",
        "4 all_gather",
        "5 barrier",
        "6 all_reduce",
    ]
    assert shown(column_table, 1)[2:] == ["gap", "3 all_gather", "4 barrier", "5 all_reduce"]
    assert column_table.first_row == 2


def test_what_one_rank_put_in_has_a_row_of_its_own(cluster: Cluster) -> None:
    cluster.history(count=2)
    cluster.post([1], "tp:0", "barrier")
    for op in ("all_gather", "broadcast", "all_reduce"):
        root = 0 if op == "broadcast" else None
        cluster.post(cluster.everybody, "tp:0", op, root=root, done=False)

    column_table = table_of(cluster, seq=3, odd=[1])

    assert shown(column_table, 0)[2:4] == ["gap", "3 all_gather"]
    assert shown(column_table, 1)[2:4] == ["3 barrier", "4 all_gather"]
    assert column_table.first_row == 2


def test_another_call_is_in_the_same_row(cluster: Cluster) -> None:
    cluster.history(count=2)
    cluster.post([0, 1, 2], "tp:0")
    cluster.post([3], "tp:0", "all_gather")

    column_table = table_of(cluster, seq=3, odd=[3])

    assert (shown(column_table, 0)[2], shown(column_table, 1)[2]) == (
        "3 all_reduce",
        "3 all_gather",
    )


def test_who_has_not_come_so_far_has_not_left_it_out(cluster: Cluster) -> None:
    cluster.history(count=3)
    cluster.post([0, 1, 2], "tp:0", done=False)

    column_table = table_of(cluster, seq=4, odd=[3])

    assert shown(column_table, 0) == [*(f"{n} all_reduce" for n in (1, 2, 3)), "4 all_reduce"]
    assert shown(column_table, 1)[3] == "ahead"
    assert column_table.columns[0].cells[3].states == ("scheduled",)


def test_the_end_is_shown_where_all_agree(cluster: Cluster) -> None:
    cluster.history(count=50)

    column_table = table_of(cluster, seq=None, before=5, after=5)

    assert [column.ranks for column in column_table.columns] == [(0, 1, 2, 3)]
    assert shown(column_table, 0) == [f"{n} all_reduce" for n in range(46, 51)]
    assert column_table.first_row is None


def test_states_of_ranks_in_one_column_are_all_listed(cluster: Cluster) -> None:
    cluster.history(count=2)
    cluster.post([0, 1], "tp:0")
    cluster.post([2, 3], "tp:0", done=False)

    column_table = table_of(cluster, seq=None)

    assert [column.ranks for column in column_table.columns] == [(0, 1, 2, 3)]
    assert column_table.columns[0].cells[-1].states == ("scheduled", "completed")


def test_equal_calls_from_other_lines_differ_on_request(
    cluster: Cluster,
) -> None:
    for number in range(3):
        cluster.post([0, 1, 2], "tp:0", site=f"model.py:{number} f")
        cluster.post([3], "tp:0", site=f"model.py:{number + 1} f")

    assert len(table_of(cluster, seq=1).columns) == 1
    column_table = table_of(cluster, seq=1, odd=[3], by_site=True)
    assert [column.ranks for column in column_table.columns] == [(0, 1, 2), (3,)]
    assert shown(column_table, 1)[0] == "gap"


def test_transfers_are_not_aligned(cluster: Cluster) -> None:
    for _ in range(3):
        cluster.post([0], "tp:0", "send", peer=1)
    cluster.post([1], "tp:0", "recv", peer=0)
    run = cluster.run()
    ((key, comm),) = run.communicators.items()

    column_table = transfer_columns(
        comm, {rank.rank: rank.p2p.get(key, ()) for rank in run.ranks[:2]}
    )

    assert not column_table.aligned
    assert shown(column_table, 0) == ["1 send", "2 send", "3 send"]
    assert shown(column_table, 1) == ["outside", "outside", "1 recv"]
