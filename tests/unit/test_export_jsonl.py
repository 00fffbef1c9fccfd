"""Ring -> trace JSONL -> the same verdict."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

from ncclscope.engine.verdict import diagnose
from ncclscope.export.jsonl import write_jsonl
from ncclscope.model import Run
from ncclscope.readers import open_run
from tests.support.cluster import Cluster
from tests.support.dumps import Job, history
from tests.support.export_runs import SCENARIOS, prepare


def again(run: Run, directory: Path) -> Run:
    directory.mkdir()
    write_jsonl(run, directory)
    return open_run(directory)


def summary_of(run: Run) -> dict[str, Any]:
    """Return the whole document, but for what names the input."""
    return {name: part for name, part in diagnose(run).to_dict().items() if name != "notes"}


@pytest.mark.parametrize("name", SCENARIOS)
def test_rings_say_the_same_as_the_trace_made_of_them(tmp_path: Path, name: str) -> None:
    run = prepare(tmp_path / "rings", name).run()

    found = summary_of(again(run, tmp_path / "trace"))

    assert found == summary_of(run)
    assert (found["verdict"] is None) == (name == "calm")


def test_the_trace_keeps_threads(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path / "rings", 2)
    for label in ("world", "save", "world"):
        post = threading.Thread(target=cluster.post, args=(cluster.everybody, label))
        (post.run if label == "world" else post.start)()
        if label == "save":
            post.join()
    run = cluster.run()

    back = again(run, tmp_path / "trace")

    for rank, old in zip(back.ranks, run.ranks, strict=True):
        found = {log.communicator.label: {*log.threads(1, 3)} for log in rank.logs.values()}
        assert found == {log.communicator.label: {*log.threads(1, 3)} for log in old.logs.values()}
        assert 0 not in found["world"] | found["save"]
        assert found["world"].isdisjoint(found["save"])


def test_the_trace_lists_the_graphs(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path / "rings", 4)
    graphs = [
        [
            cluster.capture(rank, [("all_reduce", {"shape": (rows, n)}) for n in range(1, 20)])
            for rows in (8, 16)
        ]
        for rank in range(4)
    ]
    for rank, own in enumerate(graphs):
        own[0].replay()
        own[rank == 2].replay()
    run = cluster.run()

    back = again(run, tmp_path / "trace")

    assert [dict(rank.graphs) for rank in back.ranks] == [dict(rank.graphs) for rank in run.ranks]
    assert summary_of(back) == summary_of(run)
    assert summary_of(back)["verdict"]["kind"] == "capture_mismatch"


@pytest.mark.parametrize("timed_out", [False, True])
def test_dumps_say_the_same_as_the_trace_made_of_them(tmp_path: Path, timed_out: bool) -> None:
    job = Job(4)
    history(job)
    end = {"time_discovered_completed_ns": None, "timeout_ms": 1 if timed_out else 600_000}
    job.post([0, 1, 3], state="started", retired=timed_out, **end)
    run = open_run(job.write(tmp_path / "dumps"))

    assert summary_of(again(run, tmp_path / "trace")) == summary_of(run)


def test_how_far_a_rank_has_come_survives_where_none_of_its_calls_is_kept(tmp_path: Path) -> None:
    job = Job(4, {"1": ("tp", [0, 1])})
    history(job)
    job.post([0], group="1")
    for _ in range(4):
        job.post([1], state="completed")
    run = open_run(job.write(tmp_path / "dumps", keep=4))
    logs = [{key: (log.first, log.calls) for key, log in rank.logs.items()} for rank in run.ranks]

    back = again(run, tmp_path / "trace")

    assert any(first > calls for own in logs for first, calls in own.values())
    assert logs == [
        {key: (log.first, log.calls) for key, log in rank.logs.items()} for rank in back.ranks
    ]


def test_a_window_stays_a_window(tmp_path: Path) -> None:
    (tmp_path / "one").mkdir()
    for rank in prepare(tmp_path / "rings", "wrong_op").run().ranks:
        from ncclscope.readers.jsonl import write_trace

        write_trace(rank, tmp_path / "one" / f"{rank.rank}.jsonl", last=3)
    run = open_run(tmp_path / "one")
    assert run.window

    back = again(run, tmp_path / "two")

    assert back.window
    assert summary_of(back) == summary_of(run)


@pytest.mark.parametrize(
    "metadata",
    [
        {"tells": 1, "dumped": "yes", "overdue": [["k", True]], "timed_out": -1},
        {"overdue": [[1, 2, 3], ["k", False, "x"], "k"], "ended_with": ["x"]},
        [],
        "tells",
    ],
)
def test_what_a_foreign_trace_says_of_itself_is_taken_with_care(
    tmp_path: Path, metadata: object
) -> None:
    import json

    header = {"ncclscope_trace": 1, "rank": 0, "world_size": 1, "summary_of": metadata}
    comm = {"comm": "k", "ranks": [0], "calls": -5}
    (tmp_path / "0.jsonl").write_text(f"{json.dumps(header)}\n{json.dumps(comm)}\n")

    (rank,) = open_run(tmp_path).ranks

    assert rank.logs["k"].calls == 0
    assert "tells" not in rank.details
    assert not rank.details.get("timed_out")
    diagnose(open_run(tmp_path))
