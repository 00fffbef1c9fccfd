"""`ncclscope check` as a build server runs it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import Any

import pytest

from tests.support import fork_server
from tests.support.cluster import Cluster

LAYERS = 61


def ncclscope(*arguments: object) -> subprocess.CompletedProcess[str]:
    return fork_server.run(
        [sys.executable, "-m", "ncclscope", *map(str, arguments)],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
        env={**os.environ, "COLUMNS": "80"},
    )


def program(directory: Path, *, rows: int = 15, layers: int = LAYERS, size: int = 4) -> Path:
    cluster = Cluster(directory, size)
    for _ in range(layers):
        cluster.post(cluster.everybody, "tp:0", shape=(rows, 2048))
        cluster.post(cluster.everybody, "tp:0", "all_gather", shape=(rows, 256))
    return cluster.directory


@pytest.fixture
def healthy(tmp_path: Path) -> Path:
    return program(tmp_path / "healthy")


@pytest.fixture
def baseline(tmp_path: Path, healthy: Path) -> Path:
    path = tmp_path / "calls.lock"
    assert ncclscope("check", healthy, "--baseline", path, "--update").returncode == 0
    return path


@pytest.fixture
def diverged(tmp_path: Path) -> Path:
    cluster = Cluster(tmp_path / "diverged", 4)
    cluster.history()
    cluster.post([0, 1, 2], "tp:0", done=False)
    cluster.post([3], "tp:0", "all_gather", done=False)
    return cluster.directory


def document(*arguments: object, status: int) -> Any:
    done = ncclscope("check", *arguments, "--json")
    assert (done.returncode, done.stderr) == (status, "")
    return json.loads(done.stdout)


def test_the_same_calls_end_with_0(healthy: Path, baseline: Path) -> None:
    done = ncclscope("check", healthy, "--baseline", baseline)

    assert done.returncode == 0
    assert "4 ranks agree" in done.stdout
    assert "the same calls" in done.stdout


def test_calls_that_were_overwritten_are_counted(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path / "long", 2, capacity=1024)
    for _ in range(1500):
        cluster.post(cluster.everybody, "tp:0")
    done = ncclscope("check", cluster.directory)

    assert done.returncode == 0
    kept = sum(rank.records for rank in cluster.run().ranks)
    assert kept < 3000
    assert f"2 ranks agree, 3000 calls, {3000 - kept} of them overwritten" in done.stdout


def test_a_baseline_holds_for_another_number_of_ranks(tmp_path: Path, baseline: Path) -> None:
    assert (
        ncclscope("check", program(tmp_path / "8", size=8), "--baseline", baseline).returncode == 0
    )


def test_a_baseline_that_is_not_there_ends_with_2(tmp_path: Path, healthy: Path) -> None:
    done = ncclscope("check", healthy, "--baseline", tmp_path / "none.lock")

    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.count("\n") == 1
    assert "does not exist; write it with: check --update" in done.stderr


def test_a_changed_program_ends_with_1_and_a_diff(tmp_path: Path, baseline: Path) -> None:
    done = ncclscope("check", program(tmp_path / "new", rows=16), "--baseline", baseline)

    lines = [" ".join(line.split()) for line in done.stdout.splitlines()]
    assert done.returncode == 1
    # Not 61 times each.
    place = lines.index("- 61 ×")
    assert lines[place + 1 : place + 6] == [
        "- tp all_reduce sum [15,2048] float32",
        "- tp all_gather [15,256] float32",
        "+ 61 ×",
        "+ tp all_reduce sum [16,2048] float32",
        "+ tp all_gather [16,256] float32",
    ]


def test_sizes_can_be_ignored(tmp_path: Path, baseline: Path) -> None:
    larger = program(tmp_path / "new", rows=16)

    assert ncclscope("check", larger, "--baseline", baseline, "--ignore-shapes").returncode == 0


def test_a_baseline_without_sizes_says_so_itself(tmp_path: Path, healthy: Path) -> None:
    path = tmp_path / "any.lock"
    larger = program(tmp_path / "new", rows=16)
    ncclscope("check", healthy, "--baseline", path, "--update", "--ignore-shapes")

    assert "tp all_reduce sum [*,*] float32" in path.read_text()
    assert ncclscope("check", larger, "--baseline", path).returncode == 0


def test_update_leaves_a_file_alone_that_says_the_same(healthy: Path, baseline: Path) -> None:
    edited = baseline.read_text() + "# a remark\n"
    baseline.write_text(edited)

    done = ncclscope("check", healthy, "--baseline", baseline, "--update")

    assert done.returncode == 0
    assert "not written, nothing has changed" in done.stdout
    assert baseline.read_text() == edited


def test_update_replaces_what_is_no_baseline(healthy: Path, baseline: Path) -> None:
    good = baseline.read_text()
    baseline.write_text("<<<<<<< conflict\n")

    assert ncclscope("check", healthy, "--baseline", baseline).returncode == 2
    assert ncclscope("check", healthy, "--baseline", baseline, "--update").returncode == 0
    assert baseline.read_text() == good


def test_ranks_that_disagree_end_with_1_and_nothing_is_written(
    diverged: Path, baseline: Path
) -> None:
    before = baseline.read_text()

    done = ncclscope("check", diverged, "--baseline", baseline, "--update")

    assert done.returncode == 1
    assert "op mismatch" in done.stdout
    assert "not compared" in done.stdout
    assert baseline.read_text() == before


def test_without_a_baseline_the_ranks_are_compared(healthy: Path, diverged: Path) -> None:
    assert ncclscope("check", healthy).returncode == 0
    assert ncclscope("check", diverged).returncode == 1


def test_a_missing_rank_is_not_passed_over(healthy: Path) -> None:
    next(healthy.glob("*.ring")).unlink()

    found = document(healthy, status=3)

    assert found["status"] == "incomplete"
    assert len(found["ranks"]["missing"]) == 1


def test_json_has_the_verdict_and_the_baseline(
    tmp_path: Path, diverged: Path, baseline: Path
) -> None:
    found = document(diverged, "--baseline", baseline, status=1)
    assert found["schema"] == 2
    assert found["status"] == "diverged"
    assert found["verdict"]["kind"] == "op_mismatch"
    assert found["verdict"]["diverging_ranks"] == [3]
    assert found["baseline"]["status"] == "skipped"

    changed = document(program(tmp_path / "n", layers=60), "--baseline", baseline, status=1)
    assert changed["status"] == "ok"
    assert changed["verdict"] is None
    assert changed["baseline"]["status"] == "differs"
    (difference,) = changed["baseline"]["differences"]
    assert difference["ranks"] == [0, 1, 2, 3]
    assert [hunk["stored"]["count"] for hunk in difference["hunks"]] == [2]


def test_github_annotations_point_into_the_baseline(
    tmp_path: Path, diverged: Path, baseline: Path
) -> None:
    changed = ncclscope(
        "check", program(tmp_path / "n", rows=16), "--baseline", baseline, "--format", "github"
    )
    line = baseline.read_text().splitlines().index("    tp all_reduce sum [15,2048] float32") + 1
    assert changed.stdout.startswith(f"::error file={baseline},line={line},title=ncclscope%3A ")
    assert changed.stdout.splitlines()[0].endswith(
        ". First change, call 1: tp all_reduce sum [15,2048] float32 is stored, "
        "tp all_reduce sum [16,2048] float32 is posted"
    )

    diverged = ncclscope("check", diverged, "--format", "github")
    assert diverged.stdout.startswith("::error title=ncclscope%3A op mismatch::Rank 3 ")
    assert diverged.stdout.count("::error") == 1


def test_junit_is_xml_with_two_cases(healthy: Path, diverged: Path, baseline: Path) -> None:
    good = ElementTree.fromstring(
        ncclscope("check", healthy, "--baseline", baseline, "--format", "junit").stdout
    )
    bad = ElementTree.fromstring(
        ncclscope("check", diverged, "--baseline", baseline, "--format", "junit").stdout
    )

    assert [suite.attrib["failures"] for suite in (good[0], bad[0])] == ["0", "1"]
    assert good[0].attrib["tests"] == "2"
    failure = bad.find("testsuite/testcase[@name='ranks agree']/failure")
    assert failure is not None
    assert "DIVERGED" in (failure.text or "")
    assert len(bad.findall("testsuite/testcase/skipped")) == 1


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["--stall-after", "nan"], "'nan' is not a number of seconds"),
        (["--stall-after", "-1"], "'-1' is not a number of seconds"),
        (["--json", "--format", "junit"], "not allowed with argument --json"),
    ],
)
def test_options_that_mean_nothing_are_refused(
    healthy: Path, arguments: list[str], complaint: str
) -> None:
    done = ncclscope("check", healthy, *arguments)

    assert (done.returncode, done.stdout) == (2, "")
    assert complaint in " ".join(done.stderr.split())


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["{run}", "--update"], "--update needs a file"),
        (["{run}/nothing"], "does not exist"),
        (["{run}", "--baseline", "{run}"], "regular file"),
    ],
)
def test_trouble_is_one_line_and_2(healthy: Path, arguments: list[str], complaint: str) -> None:
    done = ncclscope("check", *(argument.format(run=healthy) for argument in arguments))

    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.count("\n") == 1
    assert complaint in done.stderr


@pytest.mark.parametrize("value", ["-3", "nan", "inf", "soon"])
@pytest.mark.parametrize("option", ["--stall-after", "--live-stall-after"])
def test_no_number_of_seconds_is_refused_in_one_line(
    healthy: Path, option: str, value: str
) -> None:
    done = ncclscope("diagnose", healthy, option, value)

    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert f"{value!r} is not a number of seconds" in done.stderr
