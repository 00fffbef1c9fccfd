"""`ncclscope export` as a user types it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.cluster import Cluster
from tests.support.export_runs import prepare
from tests.support.snapshots import DATA


def run(*arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "ncclscope", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)


@pytest.fixture
def diverged(tmp_path: Path) -> Cluster:
    return prepare(tmp_path / "rings", "wrong_op")


def test_what_is_exported_is_diagnosed_alike(diverged: Cluster, tmp_path: Path) -> None:
    done = run("export", diverged.directory, "--format", "jsonl", "-o", tmp_path / "trace")

    assert (done.returncode, done.stdout) == (0, "")
    assert done.stderr == f"ncclscope: 4 ranks, 24 records, see {tmp_path / 'trace'}\n"
    found = run("diagnose", tmp_path / "trace", "--json")
    assert found.returncode == 1
    assert (
        json.loads(found.stdout)["verdict"]
        == json.loads(run("diagnose", diverged.directory, "--json").stdout)["verdict"]
    )


def test_a_part_is_exported(diverged: Cluster, tmp_path: Path) -> None:
    options = ["--ranks", "0,3", "--comm", "tp:0", "--around", "6:1"]
    done = run("export", diverged.directory, "--format", "jsonl", *options, "-o", tmp_path / "t")

    assert done.returncode == 0
    assert sorted(path.name for path in (tmp_path / "t").iterdir()) == [
        "rank-0.jsonl",
        "rank-3.jsonl",
    ]
    lines = [json.loads(line) for line in (tmp_path / "t/rank-3.jsonl").read_text().splitlines()]
    assert [(line["call"], line["seq"]) for line in lines if "call" in line] == [
        ("all_reduce", 5),
        ("all_gather", 6),
    ]


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        (["--format", "jsonl", "-o", "-"], "name a directory"),
        (["--format", "jsonl", "-o", "{taken}"], "is not empty"),
        (["--format", "jsonl", "-o", "{file}"], "exists"),
        (["--format", "jsonl", "-o", "{new}", "--ranks", "9"], "names no rank"),
        (["--format", "jsonl", "-o", "{new}", "--ranks", "two"], "is not a list of ranks"),
        (["--format", "jsonl", "-o", "{new}", "--comm", "pp:0"], "it has tp:0"),
        (["--format", "jsonl", "-o", "{new}", "--around", "0"], "is not a call number"),
        (["--format", "jsonl", "-o", "{new}", "--last", "1.5"], "2.5s"),
        (["--format", "svg", "-o", "{new}"], "invalid choice"),
        (["--format", "jsonl"], "-o"),
    ],
)
def test_one_line_says_what_is_wrong(
    diverged: Cluster, tmp_path: Path, options: list[str], complaint: str
) -> None:
    (tmp_path / "taken").mkdir()
    for path in (tmp_path / "taken/x", tmp_path / "file"):
        path.write_text("evidence")
    names = {name: tmp_path / name for name in ("taken", "file", "new")}

    done = run("export", diverged.directory, *(option.format(**names) for option in options))

    assert done.returncode == 2
    assert done.stdout == ""
    assert len(done.stderr.splitlines()) == 1
    assert complaint in done.stderr
    assert (tmp_path / "file").read_text() == "evidence"
    assert not (tmp_path / "new").exists()


def test_stacks_alone_have_no_export(tmp_path: Path) -> None:
    done = run("export", DATA / "h200_mismatch.json", "--format", "jsonl", "-o", tmp_path / "x")

    assert done.returncode == 2
    assert "stacks cannot be exported" in done.stderr
