"""First steps of a new user on the command line."""

from __future__ import annotations

import gzip
import json
import os
import pty
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest

import ncclscope
from tests.support import fork_server
from tests.support.emulator import Emulator
from tests.support.programs import ROOT, run_program

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

COMMAND = (sys.executable, "-m", "ncclscope")


def run(*arguments: object, **variables: str) -> subprocess.CompletedProcess[str]:
    # The encoding of the streams is chosen where an interpreter starts.
    run = subprocess.run if "PYTHONIOENCODING" in variables else fork_server.run
    return run(
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


def test_a_directory_without_rings_is_not_for_attach(tmp_path: Path) -> None:
    done = run("attach", tmp_path)
    assert done.returncode == 2
    assert f"for the verdict on records: ncclscope diagnose {tmp_path}" in done.stderr


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
    assert done.returncode == 127
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


def test_a_truncated_ring_is_called_truncated(skipped: Path) -> None:
    ring = min(skipped.iterdir())
    os.truncate(ring, 20_000)
    done = run("diagnose", ring)
    assert done.returncode == 2
    assert f"{ring} is truncated: its header names " in done.stderr
    assert "20000" in done.stderr


def test_watching_an_empty_directory_points_to_attach(tmp_path: Path) -> None:
    done = run("watch", "--once", tmp_path)
    assert done.returncode == 2
    assert "ncclscope attach" in done.stderr


def test_a_fault_that_was_probably_meant_is_said() -> None:
    done = run("demo", "--fault", "skiped_call")
    assert (done.returncode, done.stdout) == (2, "")
    assert "did you mean skipped_call?" in done.stderr


@pytest.mark.parametrize("columns", [60, 80])
@pytest.mark.parametrize("command", ["", "attach", "demo", "export", "report", "watch"])
def test_the_help_fits_the_terminal(command: str, columns: int) -> None:
    said = run(*command.split(), "--help", COLUMNS=str(columns)).stdout
    wide = [line for line in said.splitlines() if len(line) > columns]
    assert [line for line in wide if not line.startswith("  $ ncclscope")] == []
    assert said.endswith("\n")


def test_the_help_explains_the_marks_of_the_live_view() -> None:
    from ncclscope.render.tui.marks import MARKS

    shown = run("watch", "--help", COLUMNS="80").stdout
    for mark, (meaning, _) in MARKS.items():
        assert not mark or f"  {mark}  {meaning}\n" in shown


DOCUMENTS = {
    "diagnose": ("diagnose", "RINGS", "--json"),
    "watch": ("watch", "--once", "RINGS", "--json"),
    "check": ("check", "RINGS", "--json"),
    "diff": ("diff", "RINGS#0", "RINGS#1", "--json"),
    "report": ("report", "RINGS", "-o", "NEW/a.html", "--json"),
    "export": ("export", "RINGS", "--format", "chrome", "-o", "NEW/a.json", "--json"),
    "doctor": ("doctor", "--json"),
}


@pytest.mark.parametrize("command", DOCUMENTS)
def test_each_document_says_version_and_time(skipped: Path, tmp_path: Path, command: str) -> None:
    before = time.time_ns()
    words = [
        word.replace("RINGS", str(skipped)).replace("NEW", str(tmp_path))
        for word in DOCUMENTS[command]
    ]
    document = json.loads(run(*words, NCCL_RAS_ADDR="127.0.0.1:1").stdout)
    assert document["version"] == ncclscope.__version__
    assert before <= document["time_ns"] <= time.time_ns()


def test_unknown_operations_and_element_types_are_pointed_out(rings: Path) -> None:
    program = """
        import sys, ncclscope
        with ncclscope.Tracer(sys.argv[1], rank=0, world_size=1) as tracer:
            world = tracer.communicator("world", "world", [0], "gloo")
            for _ in range(2):
                tracer.record(world, "AllReduce", shape=(4,), dtype="torch.bfloat16")
                tracer.record(world, "all_redcue", shape=(4,), dtype="flaot32")
    """
    done = run_program(program, rings)
    assert done.stderr.splitlines() == [
        "ncclscope: 'all_redcue' is no operation of NCCL or torch; did you mean all_reduce?",
        "ncclscope: 'flaot32' is no element type of NCCL or torch; did you mean float32?",
    ]
    (rank,) = ncclscope.open_run(rings).ranks
    assert rank.records == 4


def without_torch(*arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run a command as where torch is not installed."""
    program = "import sys; sys.modules['torch'] = None; from ncclscope.__main__ import main; "
    program += "sys.exit(main(sys.argv[1:]))"
    return subprocess.run(
        [sys.executable, "-c", program, *arguments],
        cwd=ROOT,
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
        check=False,
    )


def test_the_demonstration_needs_no_torch() -> None:
    done = without_torch("demo", "--json")
    assert done.returncode == 0, done.stderr
    assert "torch is not installed: this is the recording of an earlier run" in done.stderr
    document = json.loads(done.stdout)
    assert document["recorded"] is document["agrees"] is True
    assert document["verdict"]["kind"] == document["planted"]["kind"] == "comm_swap"
    assert document["verdict"]["diverging_ranks"] == [3]


def test_another_one_says_what_it_needs() -> None:
    done = without_torch("demo", "--fault", "skipped_call")
    assert done.returncode == 2
    assert "pip install torch" in done.stderr


def test_the_recording_names_no_folder_of_its_machine() -> None:
    traces = sorted((ROOT / "ncclscope" / "lab" / "recording").iterdir())
    assert len(traces) == 8
    for trace in traces:
        text = gzip.decompress(trace.read_bytes()).decode()
        assert '"/' not in text
        assert '"site":"ncclscope/lab/engine.py:' in text


SCREENS = {
    "diagnose": ("diagnose", "RINGS"),
    "diff": ("diff", "RINGS#0", "RINGS#1"),
    "check": ("check", "RINGS"),
    "demo": ("demo",),
    "doctor": ("doctor",),
    "watch": ("watch", "RINGS", "--plain", "--until-divergence"),
}


@pytest.mark.parametrize(
    "command",
    [pytest.param(one, marks=pytest.mark.slow if one == "watch" else ()) for one in SCREENS],
)
def test_the_poorest_terminal_shows_each_screen(skipped: Path, command: str) -> None:
    words = [word.replace("RINGS", str(skipped)) for word in SCREENS[command]]
    done = without_torch(
        *words,
        NCCL_RAS_ADDR="127.0.0.1:1",
        PYTHONIOENCODING="ascii",
        LANG="C",
        NO_COLOR="1",
        COLUMNS="60",
    )
    assert done.returncode in (0, 1), done.stderr
    assert done.stdout
    for text in (done.stdout, done.stderr):
        assert text.isascii()
        assert "\x1b" not in text
        assert "Error" not in text
    if command != "watch":  # a line for a log
        assert max(map(len, done.stdout.splitlines())) <= 60


@pytest.mark.parametrize(("columns", "lines"), [(80, 24), (60, 24), (200, 50)])
def test_a_real_terminal_shows_the_answer_when_the_command_has_ended(
    skipped: Path, columns: int, lines: int
) -> None:
    command = [*COMMAND, "diagnose", skipped]
    with Emulator(command, columns, lines, NO_COLOR="1") as terminal:
        assert terminal.end() == 1
        shown = " ".join(terminal.screen.split())
    assert "DIVERGED" in shown
    assert "skipped 1 call on world" in shown


def test_what_hints_install_is_what_the_extras_name() -> None:
    """A hint holds for a checkout, a wheel and an index alike: it names packages of others."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    extras = project["optional-dependencies"].values()
    named = [*project["dependencies"], *(one for extra in extras for one in extra)]
    packages = {re.split(r"[<>=;\[ ]", one)[0] for one in named}
    hints = []
    for room in ("ncclscope", "analyzers", "patches"):
        for path in (ROOT / room).rglob("*.py"):
            found = re.findall(
                r"pip install ['\"]?(\w[\w.-]*(?: [\w-]+)*)", path.read_text("utf-8")
            )
            hints += [(path.name, word) for words in found for word in words.split()]
    assert len(hints) >= 8
    assert not [(name, word) for name, word in hints if word not in packages]
