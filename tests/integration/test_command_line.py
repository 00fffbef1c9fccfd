"""`ncclscope` as a user types it: exit status, streams, and one line for what is wrong."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from ncclscope.__main__ import command_parsers, main
from tests.support import fork_server
from tests.support.cluster import Cluster
from tests.support.programs import ROOT

NCCLSCOPE = [sys.executable, "-m", "ncclscope"]


def ncclscope(*arguments: object) -> subprocess.CompletedProcess[str]:
    command = [*NCCLSCOPE, *map(str, arguments)]
    return fork_server.run(command, capture_output=True, text=True, check=False, timeout=60)


@pytest.fixture
def rings(tmp_path: Path) -> Path:
    cluster = Cluster(tmp_path / "rings", 4)
    cluster.history()
    return cluster.directory


@pytest.fixture
def diverged(tmp_path: Path) -> Path:
    cluster = Cluster(tmp_path / "diverged", 4)
    cluster.history()
    cluster.post([0, 1, 2], "tp:0", done=False)
    cluster.post([3], "tp:0", "all_gather", done=False)
    return cluster.directory


def test_ranks_that_agree_end_with_0(rings: Path) -> None:
    done = ncclscope("diagnose", rings)

    assert done.returncode == 0
    assert "All ranks agree" in done.stdout
    assert done.stderr == ""


def test_a_divergence_ends_with_1(diverged: Path) -> None:
    done = ncclscope("diagnose", diverged)

    assert done.returncode == 1
    assert "op mismatch" in done.stdout
    assert done.stderr == ""


def test_json_is_one_document_of_the_contract(diverged: Path) -> None:
    done = ncclscope("diagnose", diverged, "--json")
    document = json.loads(done.stdout)

    assert done.returncode == 1
    assert document["schema"] == 2
    assert document["status"] == "diverged"
    assert document["ranks"] == {"expected": 4, "read": 4, "missing": []}
    verdict = document["verdict"]
    assert verdict["kind"] == "op_mismatch"
    assert verdict["diverging_ranks"] == [3]
    assert verdict["candidate_ranks"] == []
    assert verdict["comm"]["label"] == "tp:0"
    assert verdict["comm"]["ranks"] == [0, 1, 2, 3]
    assert verdict["seq"] == 6
    assert verdict["odd"]["op"] == "all_gather"
    assert set(verdict["odd"]) >= {"op", "shape", "dtype", "redop", "root", "site"}
    assert verdict["confidence"] == "certain"
    (finding,) = document["findings"]
    assert (finding["role"], finding["analyzer"]) == ("cause", "op_mismatch")
    row = document["table"][3]
    assert set(row) >= {"rank", "host", "pid", "lost", "window", "comms"}
    assert row["comms"]["tp:0"] == {
        "calls": 6,
        "delta": 0,
        "last_op": "all_gather",
        "last_redop": None,
        "last_shape": [4, 2],
        "last_state": "scheduled",
        "key": verdict["comm"]["key"],
    }


@pytest.mark.parametrize("name", ["nothing-here", "empty", "text.ring", "text.jsonl"])
def test_unreadable_input_is_one_line_and_2(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    if name == "empty":
        path.mkdir()
    elif name != "nothing-here":
        path.write_text("not a trace\n")

    done = ncclscope("diagnose", path)

    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.startswith("ncclscope: ")
    assert done.stderr.count("\n") == 1
    assert str(path) in done.stderr


def test_one_bad_file_among_good_ones_is_noted(rings: Path) -> None:
    (rings / "bad.ring").write_bytes(b"ncclring" + b"\xff" * 5000)

    done = ncclscope("diagnose", rings, "--json")

    document = json.loads(done.stdout)
    assert done.returncode == 0
    assert document["ranks"]["read"] == 4
    assert any("bad.ring" in note for note in document["notes"])


@pytest.mark.parametrize(
    "arguments",
    [["diagnose"], ["nonsense"], ["demo", "--tp", "0"], ["demo", "--fault", "nonsense"]],
)
def test_wrong_usage_ends_with_2(arguments: list[str]) -> None:
    done = ncclscope(*arguments)

    assert done.returncode == 2
    assert done.stdout == ""
    assert "Traceback" not in done.stderr


def test_a_reader_that_has_seen_enough_is_no_trouble(diverged: Path) -> None:
    command = f"{sys.executable} -m ncclscope diagnose {diverged} | head -n 1"
    done = subprocess.run(
        ["bash", "-c", command], capture_output=True, text=True, check=False, timeout=60
    )

    assert done.stderr == ""


def test_help_lists_the_commands() -> None:
    done = ncclscope("--help")

    assert done.returncode == 0
    for command in ("demo", "run", "diagnose"):
        assert f"  {command}" in done.stdout


def test_help_of_each_command_and_the_contract_have_its_exit_statuses() -> None:
    page = (ROOT / "docs" / "json.md").read_text(encoding="utf-8")
    statuses = page.partition("## Exit status")[2].partition("\n## ")[0]
    commands = command_parsers()[1]
    assert [name for name in commands if "exit status: " not in str(commands[name].epilog)] == []
    assert [name for name in commands if f"`{name}`" not in statuses] == []


def test_the_command_line_needs_no_torch(rings: Path) -> None:
    """`diagnose` must work on a laptop: neither torch nor pandas are imported on the way."""
    program = (
        "import sys, ncclscope.__main__ as m; m.main(sys.argv[1:]);"
        "sys.exit(sum(name in sys.modules for name in ('torch', 'pandas', 'vllm')))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, "diagnose", str(rings)],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )

    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    "words", [["diagnose"], ["diagnose", "--frob", "x"], ["frob"], ["check", "x", "--baseline"]]
)
def test_a_usage_error_is_one_line_that_names_the_help(words: list[str]) -> None:
    done = subprocess.run([*NCCLSCOPE, *words], capture_output=True, text=True, check=False)

    assert (done.returncode, done.stdout) == (2, "")
    (line,) = done.stderr.splitlines()
    assert line.endswith("--help")


@pytest.mark.parametrize("words", [["--help"], ["--version"], ["diff", "--help"]])
def test_a_result_that_cannot_be_written_is_trouble_and_no_finding(words: list[str]) -> None:
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [*NCCLSCOPE, *words], stdout=full, stderr=subprocess.PIPE, text=True, check=False
        )

    assert done.returncode == 2
    assert done.stderr == "ncclscope: the result cannot be written: No space left on device\n"


def test_a_zero_byte_in_an_argument_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", "nowhere", "-o", "a\0b"]) == 2
    assert capsys.readouterr().err == "ncclscope: an argument holds a zero byte\n"
