"""The wait-for graph, drawn: who is taken together, and what an arrow says."""

from __future__ import annotations

from pathlib import Path

import pytest

from ncclscope.engine.case import Case
from ncclscope.engine.verdict import diagnose
from ncclscope.engine.waits.wait_groups import MOST_PLACES, WaitPicture, draw_waits
from ncclscope.render.html.graph import draw_graph
from tests.support.cluster import Cluster


def picture_of(cluster: Cluster) -> WaitPicture:
    run = cluster.run()
    return draw_waits(run, Case(run).waits, diagnose(run).cause)


def arrows(picture: WaitPicture) -> set[tuple[tuple[int, ...], tuple[int, ...], str]]:
    places = picture.places
    return {(places[a.source].ranks, places[a.target].ranks, a.kind) for a in picture.links}


@pytest.fixture
def cluster(tmp_path: Path) -> Cluster:
    return Cluster(tmp_path / "rings", 4)


def test_those_who_wait_for_one_are_one_box(cluster: Cluster) -> None:
    cluster.history()
    cluster.post([0, 1, 2], "tp:0", done=False)

    picture = picture_of(cluster)

    assert arrows(picture) == {((0, 1, 2), (3,), "absent")}
    assert picture.places[0].ranks == (3,)
    assert picture.places[0].odd
    assert picture.places[1].call is not None
    assert picture.places[1].call.seq == 6


def test_a_call_in_place_of_another_makes_both_sides_wait(cluster: Cluster) -> None:
    cluster.history()
    cluster.post([0, 1, 2], "tp:0", done=False)
    cluster.post([3], "tp:0", "all_gather", done=False)

    assert arrows(picture_of(cluster)) == {((0, 1, 2), (3,), "unlike")}


def test_a_deadlock_cycle_is_one_group(cluster: Cluster) -> None:
    cluster.history("tp:0")
    cluster.history("dp:0")
    cluster.post([0, 1, 2], "tp:0", done=False)
    cluster.post([0, 1, 2], "dp:0", done=False)
    cluster.post([3], "dp:0", done=False)
    cluster.post([3], "tp:0", done=False)

    picture = picture_of(cluster)

    assert len(picture.cycle) == 2
    assert {((0, 1, 2), (3,), "queued"), ((3,), (0, 1, 2), "queued")} <= arrows(picture)
    assert all(place.depth is None for place in picture.places)


def test_nobody_waits_where_all_is_well(cluster: Cluster) -> None:
    cluster.history()

    picture = picture_of(cluster)

    assert picture.links == ()
    assert draw_graph(picture) is None


def test_a_large_job_stays_a_picture(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path / "rings", 60)
    pairs = [(rank, rank + 1) for rank in range(0, 60, 2)]
    for pair in pairs:
        cluster.history("tp:0", count=3, members=pair)
        cluster.post(pair[:1], "tp:0", members=pair, done=False)

    picture = picture_of(cluster)
    graph = draw_graph(picture)

    assert len(picture.places) <= MOST_PLACES
    assert sorted(rank for place in picture.places for rank in place.ranks) == list(range(60))
    assert graph is not None
    assert graph["width"] < 1200


def test_boxes_do_not_overlap(cluster: Cluster) -> None:
    cluster.history()
    cluster.post([0, 1], "tp:0", done=False)
    cluster.post([2], "tp:0", "barrier", done=False)

    graph = draw_graph(picture_of(cluster))

    assert graph is not None
    corners = [(box["x"], box["y"]) for box in graph["boxes"]]
    for number, (x, y) in enumerate(corners):
        for other_x, other_y in corners[:number]:
            assert abs(x - other_x) >= 212 or abs(y - other_y) >= 66
        assert 0 <= x <= graph["width"] - 212
        assert 0 <= y <= graph["height"] - 66
