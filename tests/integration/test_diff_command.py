"""`ncclscope diff` as a user types it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from ncclscope import open_run
from tests.support import fork_server
from tests.support.cluster import Cluster

LAYERS = 61


def ncclscope(*arguments: object, columns: int = 80) -> subprocess.CompletedProcess[str]:
    return fork_server.run(
        [sys.executable, "-m", "ncclscope", *map(str, arguments)],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
        env={**os.environ, "COLUMNS": str(columns)},
    )


def program(directory: Path, *, strayed: bool = False, rows: int = 15) -> Path:
    """Two replicas of two ranks; in a later layer rank 3 may gather on the wrong communicator."""
    cluster = Cluster(directory, 4)
    cluster.post(cluster.everybody, "world", "broadcast", shape=(4,), root=0)
    for layer in range(LAYERS):
        for pair in ((0, 1), (2, 3)):
            cluster.post(pair, "tp:0", members=pair, shape=(rows, 2048))
        for members in ((0, 2), (1, 3)):
            astray = {3} if strayed and layer == 30 else set()
            faithful = set(members) - astray
            cluster.post(faithful, "dp:0", "all_gather", members=members, shape=(rows, 256))
            for rank in astray & set(members):
                cluster.post([rank], "tp:0", "all_gather", members=(2, 3), shape=(rows, 256))
    return cluster.directory


@pytest.fixture
def healthy(tmp_path: Path) -> Path:
    return program(tmp_path / "healthy")


@pytest.fixture
def strayed(tmp_path: Path) -> Path:
    return program(tmp_path / "strayed", strayed=True)


def document(*arguments: object, status: int) -> Any:
    done = ncclscope("diff", *arguments, "--json")
    assert (done.returncode, done.stderr) == (status, "")
    return json.loads(done.stdout)


def squeezed(text: str) -> list[str]:
    return [" ".join(line.split()) for line in text.splitlines()]


def test_a_run_is_the_same_as_itself(healthy: Path) -> None:
    done = ncclscope("diff", healthy, healthy)

    assert done.returncode == 0
    assert "ranks 0-3: the same calls" in done.stdout
    assert done.stderr == ""


def test_counterparts_of_two_replicas_are_paired_by_role(healthy: Path) -> None:
    done = ncclscope("diff", f"{healthy}#0", f"{healthy}#3")

    assert done.returncode == 0
    assert "tp: tp:0 of ranks 0 1 and tp:0 of ranks 2 3, 61 calls, the same" in done.stdout


@pytest.mark.parametrize("columns", [80, 160])
def test_two_ranks_that_diverged(strayed: Path, columns: int) -> None:
    done = ncclscope("diff", f"{strayed}#2", f"{strayed}#3", columns=columns)

    lines = squeezed(done.stdout)
    site = "at model.py:10 all_gather"
    beside, below = (f" {site}", []) if columns == 160 else ("", [site])
    assert done.returncode == 1
    assert max(map(len, done.stdout.splitlines())) <= columns
    place = lines.index(f"+ #32 all_gather [15,256] float32{beside}")
    assert lines[place - 1] == "#1-31 #1-31 all_reduce sum [15,2048] float32 × 31"
    assert lines[place + 1 : place + 2 + len(below)] == [
        *below,
        "#32-61 #33-62 all_reduce sum [15,2048] float32 × 30",
    ]
    assert f"- #61 all_gather [15,256] float32{beside}" in lines


def test_a_call_that_changed_in_a_loop_says_where_it_is_made(tmp_path: Path) -> None:
    done = ncclscope("diff", program(tmp_path / "a"), program(tmp_path / "b", rows=16))

    lines = squeezed(done.stdout)
    place = lines.index("+ #2-123 61 ×")
    assert lines[place + 1 : place + 5] == [
        "+ tp all_reduce sum [16,2048] float32",
        "at model.py:10 all_reduce",
        "+ dp all_gather [16,256] float32",
        "at model.py:10 all_gather",
    ]


def test_calls_between_show_which_of_many_equal_calls_is_missing(strayed: Path) -> None:
    done = ncclscope("diff", f"{strayed}#2", f"{strayed}#3")

    lines = squeezed(done.stdout)
    # The broadcast, 30 layers of two calls, the 31st layer's first call.
    place = lines.index("- #63 dp all_gather [15,256] float32")
    assert lines[place + 1 : place + 3] == [
        "at model.py:10 all_gather",
        "+ #63 tp all_gather [15,256] float32",
    ]


def test_two_runs_rank_by_rank(healthy: Path, strayed: Path) -> None:
    done = ncclscope("diff", healthy, strayed)

    lines = squeezed(done.stdout)
    assert done.returncode == 1
    assert "rank 3" in lines
    assert "ranks 0-2: the same calls" in lines
    assert lines[-1] == "Different: 1 of 4 ranks on tp, dp"


def test_json(healthy: Path, strayed: Path) -> None:
    found = document(healthy, strayed, status=1)

    assert (found["schema"], found["same"]) == (1, False)
    assert [rank["same"] for rank in found["ranks"]] == [True, True, True, False]
    tp = next(comm for comm in found["ranks"][3]["comms"] if comm["role"] == "tp")
    assert (tp["same"], tp["deleted"], tp["inserted"]) == (False, 0, 1)
    (hunk,) = tp["hunks"]
    assert (hunk["a"]["seq"], hunk["a"]["count"], hunk["b"]["seq"], hunk["b"]["count"]) == (
        *(32, 0),
        *(32, 1),
    )
    assert hunk["b"]["calls"] == ["all_gather [15,256] float32"]
    assert hunk["b"]["first"]["op"] == "all_gather"


def test_json_of_two_runs_that_agree(healthy: Path) -> None:
    found = document(healthy, healthy, status=0)

    assert found["same"] is True
    assert all(not comm["hunks"] for rank in found["ranks"] for comm in rank["comms"])


def test_sizes_count_unless_they_are_to_be_ignored(tmp_path: Path, healthy: Path) -> None:
    larger = program(tmp_path / "larger", rows=16)

    assert ncclscope("diff", healthy, larger).returncode == 1
    assert ncclscope("diff", healthy, larger, "--ignore-shapes").returncode == 0


def test_another_order_across_communicators_is_a_difference(tmp_path: Path) -> None:
    runs = []
    for name, order in (("one", ("tp:0", "dp:0")), ("other", ("dp:0", "tp:0"))):
        cluster = Cluster(tmp_path / name, 2)
        cluster.post(cluster.everybody, "world")
        for label in order:
            cluster.post(cluster.everybody, label)
        runs.append(cluster.directory)

    found = document(*runs, status=1)

    assert [comm["role"] for comm in found["ranks"][0]["comms"] if not comm["same"]] == [
        "all communicators"
    ]


def test_a_rank_that_is_only_on_one_side(tmp_path: Path, healthy: Path) -> None:
    few = tmp_path / "few"
    few.mkdir()
    ring = document(f"{healthy}#1", f"{healthy}#1", status=0)["ranks"][0]["a"]["source"]
    (few / "one.ring").write_bytes(Path(ring).read_bytes())

    done = ncclscope("diff", healthy, few)

    assert done.returncode == 1
    assert "ranks 0 2 3: only in ---" in done.stdout


def test_overwritten_beginnings_are_compared_by_their_hash(tmp_path: Path) -> None:
    runs = []
    for name, first in (("one", 1), ("same", 1), ("other", 2)):
        cluster = Cluster(tmp_path / name, 2, capacity=1024)
        cluster.post(cluster.everybody, "tp:0", shape=(first,))
        cluster.history(count=1, label="tp:0")
        for _ in range(1500):
            cluster.post(cluster.everybody, "tp:0")
        runs.append(cluster.directory)

    same = ncclscope("diff", runs[0], runs[1])
    other = ncclscope("diff", f"{runs[0]}#0", f"{runs[2]}#0")

    assert same.returncode == 0
    assert other.returncode == 1
    assert "their running hashes differ" in " ".join(other.stdout.split())


def test_sizes_that_were_overwritten_are_compared_by_their_hash(tmp_path: Path) -> None:
    runs = []
    for name, first in (("one", 1), ("same", 1), ("other", 2)):
        cluster = Cluster(tmp_path / name, 1)
        for number in (first, *range(1000, 4000)):
            sizes = (number, *[1] * 63)
            cluster.post([0], "ep:0", "all_gatherv", shape=(1, 4), sizes=sizes)
        runs.append(cluster.directory)
    log = open_run(runs[0]).ranks[0].logs["ep:0/0"]
    assert (log.first, log.call(1).sizes) == (1, None)

    one, same, other = (f"{run}#0" for run in runs)
    shown = ncclscope("diff", one, other)

    assert ncclscope("diff", one, same).returncode == 0
    assert shown.returncode == 1
    assert "their running hashes differ" in " ".join(shown.stdout.split())
    assert ncclscope("diff", one, other, "--ignore-shapes").returncode == 0


def test_sends_and_receives_count_between_runs_but_not_between_ranks(tmp_path: Path) -> None:
    runs = []
    for name, rows in (("one", 4), ("other", 5)):
        cluster = Cluster(tmp_path / name, 2)
        cluster.history()
        cluster.post([0], "tp:0", "send", shape=(rows,), peer=1)
        cluster.post([1], "tp:0", "recv", shape=(rows,), peer=0)
        runs.append(cluster.directory)

    assert ncclscope("diff", f"{runs[0]}#0", f"{runs[0]}#1").returncode == 0
    found = document(*runs, status=1)
    assert [comm["role"] for comm in found["ranks"][0]["comms"] if not comm["same"]] == [
        "tp send/recv"
    ]


@pytest.mark.parametrize(
    ("a", "b", "complaint"),
    [
        ("{run}", "{run}#1", "is one rank and"),
        ("{run}#9", "{run}#1", "has no rank 9; it has: 0 1 2 3"),
        ("{run}#x", "{run}#1", "names no rank"),
        ("", "{run}", "a path is empty"),
        ("{run}/nothing", "{run}", "does not exist"),
        ("{run}/nothing#1", "{run}#1", "does not exist"),
    ],
)
def test_trouble_is_one_line_and_2(healthy: Path, a: str, b: str, complaint: str) -> None:
    done = ncclscope("diff", a.format(run=healthy), b.format(run=healthy))

    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.count("\n") == 1
    assert complaint in done.stderr
