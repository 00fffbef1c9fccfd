"""First steps of a new user on the command line."""

from __future__ import annotations

import os
import pty
import re
import subprocess
import sys
from pathlib import Path

import pytest

import ncclscope
from tests.support.programs import ROOT

COMMAND = (sys.executable, "-m", "ncclscope")


def run(*arguments: object, **variables: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*COMMAND, *map(str, arguments)],
        cwd=ROOT,
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.fixture
def skipped(rings: Path) -> Path:
    """Rings of eight ranks; rank 1 has left out a call."""
    for rank in range(8):
        with ncclscope.Tracer(rings, rank=rank, world_size=8) as tracer:
            world = tracer.communicator("world", "world", range(8), "gloo")
            for step in range(6):
                if (rank, step) != (1, 4):
                    tracer.record(world, "all_reduce", shape=(step + 1,), dtype="float32")
    return rings


def on_terminal(*command: object, lines: int) -> str:
    """Return what a command shows on a terminal of 80 columns."""
    controller, terminal = pty.openpty()
    with subprocess.Popen(
        [*COMMAND, *map(str, command)],
        cwd=ROOT,
        env={**os.environ, "COLUMNS": "80", "LINES": str(lines), "TERM": "xterm", "NO_COLOR": "1"},
        stdin=terminal,
        stdout=terminal,
        stderr=terminal,
    ) as process:
        os.close(terminal)
        shown = b""
        while True:
            try:
                part = os.read(controller, 65536)
            except OSError:  # the other end is closed
                break
            shown += part
        process.wait()
    os.close(controller)
    return re.sub(r"\x1b\[[0-9;]*m|\r", "", shown.decode())


def test_a_verdict_that_scrolls_away_is_repeated_in_the_end(skipped: Path) -> None:
    shown = on_terminal("diagnose", skipped, lines=24)
    last = " ".join(shown.rpartition("\n\n")[2].split())
    assert "DIVERGED: Rank 1 (" in last
    assert last.endswith("is all_reduce [6] float32 there.")


def test_one_that_fits_is_not(skipped: Path) -> None:
    assert on_terminal("diagnose", skipped, lines=100).count("DIVERGED") == 1


@pytest.mark.parametrize("language", ["ascii", "latin-1"])
def test_a_terminal_without_unicode_shows_the_verdict(skipped: Path, language: str) -> None:
    done = run("diagnose", skipped, PYTHONIOENCODING=language)
    assert done.returncode == 1, done.stderr
    assert done.stdout.isascii()
    assert "DIVERGED - missing call - rank 1" in done.stdout
    assert "(-1)" in done.stdout


def test_a_verdict_prints_as_a_sentence(skipped: Path) -> None:
    verdict = ncclscope.diagnose(ncclscope.open_run(skipped))
    assert str(verdict) == f"diverged: {verdict.summary}"
    assert repr(verdict) == "<Verdict diverged, missing_call: 8 ranks>"


def test_a_report_says_that_it_replaces_one(skipped: Path, tmp_path: Path) -> None:
    first, second = (run("report", skipped, "-o", tmp_path / "a.html") for _ in range(2))
    assert "replaces a report" not in first.stderr
    assert "replaces a report" in second.stderr


@pytest.mark.parametrize(
    ("mistyped", "meant"),
    [(["diagnos", "x"], "diagnose"), (["diagnose", "x", "--jsno"], "--json")],
)
def test_a_mistyped_command_gets_a_suggestion(mistyped: list[str], meant: str) -> None:
    done = run(*mistyped)
    assert done.returncode == 2
    assert f"; did you mean {meant}?; see " in done.stderr
    assert done.stderr.count("\n") == 1


def test_a_directory_is_not_for_attach(skipped: Path) -> None:
    done = run("attach", skipped)
    assert done.returncode == 2
    assert f"ncclscope diagnose {skipped} reads one" in done.stderr


def test_an_empty_directory_points_to_attach(tmp_path: Path) -> None:
    done = run("diagnose", tmp_path)
    assert done.returncode == 2
    assert "for a job that runs now: ncclscope attach" in done.stderr


def test_run_refuses_a_directory_that_cannot_be_written_to(tmp_path: Path) -> None:
    done = run("run", "--dir", "/proc/rings", "--", sys.executable, "-c", "print('ran')")
    assert (done.returncode, done.stdout) == (2, "")
    assert "rings cannot be written to /proc/rings: " in done.stderr


def test_run_of_a_program_that_does_not_exist_leaves_nothing_behind(rings: Path) -> None:
    done = run("run", "--dir", rings / "new", "--", "no-such-program-anywhere")
    assert done.returncode == 2
    assert not (rings / "new").exists()


def test_the_help_explains_each_fault() -> None:
    from ncclscope.lab.faults import FAULTS

    shown = run("demo", "--help", COLUMNS="80").stdout
    listed = shown.partition("faults:\n")[2]
    explained = dict(re.findall(r"^  (\w+) +(\S.*)$", listed, re.MULTILINE))
    assert explained.keys() >= FAULTS.keys()
    assert max(map(len, listed.splitlines())) <= 80


def test_a_shell_completes_commands_options_and_files(tmp_path: Path) -> None:
    script = tmp_path / "ncclscope.bash"
    script.write_text(run("--print-completion", "bash").stdout)
    (tmp_path / "rings").mkdir()
    program = """
        source ncclscope.bash
        complete_for() {
            COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); COMPREPLY=()
            _shtab_ncclscope; echo "${COMPREPLY[*]}"
        }
        complete_for ncclscope dia
        complete_for ncclscope watch --until
        complete_for ncclscope diagnose rin
    """
    shown = subprocess.run(
        ["bash", "-c", program], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert shown.stdout.split("\n")[:3] == ["diagnose", "--until-divergence", "rings"]
