"""Runs and verdicts as tables: for pandas, and in notebooks."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from ncclscope.model import Run
from tests.support.cluster import Cluster

SIZE = 4


@pytest.fixture
def cluster(tmp_path: Path) -> Cluster:
    """Return a job in which rank 2 left out a call."""
    cluster = Cluster(tmp_path, SIZE)
    cluster.history("world", 3)
    cluster.post([0, 1, 3], "world", shape=(8,), dtype="bfloat16", site="/src/train.py:31 step")
    cluster.post(range(SIZE), "world", "broadcast", root=0, shape=())
    return cluster


def test_a_frame_has_one_row_for_each_call(cluster: Cluster) -> None:
    frame = cluster.run().to_frame()

    assert frame.groupby("rank").size().to_dict() == {0: 5, 1: 5, 2: 4, 3: 5}
    fourth = frame[(frame["rank"] == 0) & (frame["seq"] == 4)].iloc[0]
    assert (fourth["comm"], fourth["op"], fourth["shape"]) == ("world", "all_reduce", (8,))
    assert (fourth["bytes"], fourth["line"]) == (16, 31)
    assert fourth["file"].endswith("train.py")
    assert fourth["state"] == "completed"
    assert fourth["time"].tz is not None
    assert frame["time"].is_monotonic_increasing or set(frame["rank"]) == set(range(SIZE))
    assert not frame["p2p"].any()
    scalar = frame[frame["op"] == "broadcast"].iloc[0]
    assert scalar["bytes"] == 4


def test_the_rank_that_diverged_is_found_by_hand(cluster: Cluster) -> None:
    frame = cluster.run().to_frame()
    world = frame[frame["comm"] == "world"].pivot(index="seq", columns="rank", values="op")

    differing = world[world.nunique(axis=1, dropna=False) > 1]

    assert differing.index[0] == 4
    assert differing.loc[4].to_dict() == {
        0: "all_reduce",
        1: "all_reduce",
        2: "broadcast",
        3: "all_reduce",
    }


def test_findings_are_rows(cluster: Cluster) -> None:
    frame = cluster.verdict().to_frame()

    assert (frame["kind"][0], frame["ranks"][0], frame["comm"][0]) == (
        "missing_call",
        (2,),
        "world",
    )


def test_a_run_without_calls_is_an_empty_frame() -> None:
    run = Run(ranks=(), communicators={}, expected=0)

    assert list(run.to_frame()["bytes"]) == []
    assert run._repr_html_().startswith("<table>")


def test_notebooks_show_texts_of_the_job_as_texts(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path, SIZE)
    label = "<img src=x>"
    cluster.history(label, 3)
    cluster.post([0, 1, 3], label)
    cluster.history(label, 1, site=f"{label}.py:1 f")

    for text in (cluster.run()._repr_html_(), cluster.verdict()._repr_html_()):
        assert "<img" not in text
        assert "&lt;img" in text
    assert "<b>diverged</b>" in cluster.verdict()._repr_html_()


def test_pandas_is_imported_only_for_a_frame() -> None:
    program = (
        "import sys, ncclscope.engine.verdict, ncclscope.readers; print('pandas' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )

    assert done.stdout == "False\n"
