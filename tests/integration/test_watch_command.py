"""`ncclscope watch`: as a program, beside real processes, and on a real terminal."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from ncclscope.lab.launcher import Laboratory
from ncclscope.lab.plan import Program
from tests.support import fork_server
from tests.support.emulator import Emulator
from tests.support.laboratories import warm_laboratories
from tests.support.programs import ROOT
from tests.support.rings import tracer_in

pytestmark = pytest.mark.timeout(180)

NCCLSCOPE = [sys.executable, "-m", "ncclscope"]


@contextmanager
def watching(*arguments: object) -> Iterator[subprocess.Popen[str]]:
    watch = subprocess.Popen(
        [*NCCLSCOPE, "watch", *map(str, arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=ROOT,
    )
    try:
        yield watch
    finally:
        watch.kill()
        watch.communicate()


def wait_for_ok(watch: subprocess.Popen[str]) -> None:
    """Wait for the status that follows while the ranks are made, or have posted nothing yet."""
    assert watch.stdout is not None
    statuses = []
    while "ok" not in statuses and (line := watch.stdout.readline()):
        statuses.append(json.loads(line)["status"])
    assert set(statuses) <= {"incomplete", "unknown", "ok"}
    assert watch.poll() is None


def run_watch(*arguments: object) -> subprocess.CompletedProcess[str]:
    command = [*NCCLSCOPE, "watch", *map(str, arguments)]
    return fork_server.run(
        command, capture_output=True, text=True, cwd=ROOT, timeout=60, check=False
    )


def pair(directory: Path, *, diverged: bool) -> None:
    """Two ranks that live as long as this test."""
    for rank in (0, 1):
        tracer = tracer_in(directory, rank=rank, world_size=2)
        comm = tracer.communicator("k", "tp:0", [0, 1], "gloo")
        for number in range(3):
            shape = (number + (rank if diverged and number == 1 else 0), 4)
            position = tracer.record(comm, "all_reduce", shape=shape, dtype="int8", site="f.py:1 f")
            tracer.complete(position)


@contextmanager
def moving(directory: Path) -> Iterator[None]:
    """Two ranks that post the same calls, until this is left: they rest for no second."""
    ranks = []
    for rank in (0, 1):
        tracer = tracer_in(directory, rank=rank, world_size=2)
        ranks.append((tracer, tracer.communicator("k", "tp:0", [0, 1], "gloo")))
    over = threading.Event()

    def post_one() -> None:
        for tracer, comm in ranks:
            tracer.complete(tracer.record(comm, "all_reduce", shape=(4,), dtype="int8"))

    def post() -> None:
        while not over.wait(0.05):
            post_one()

    post_one()  # a watch that starts at once would find ranks that have posted nothing
    thread = threading.Thread(target=post)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


@pytest.mark.parametrize(("fault", "status"), [("wrong_op", "diverged"), ("sleeping_rank", "hung")])
def test_a_fault_is_reported_while_the_ranks_live(rings: Path, fault: str, status: str) -> None:
    program = Program(tp=4, dp=1, fault=fault, seed=1)
    with (
        watching(rings, "--until-divergence", "--json", "--stall", 2) as watch,
        warm_laboratories(),
        Laboratory(program, rings) as laboratory,
    ):
        for _ in laboratory.watch(stall_after=60):
            if watch.poll() is not None:
                break
        message, complained = watch.communicate(timeout=20)
        assert laboratory.outcome == "running"
        assert not laboratory.statuses

    assert (watch.returncode, complained) == (1, "")
    documents: list[dict[str, Any]] = [json.loads(line) for line in message.splitlines()]
    assert {document["status"] for document in documents[:-1]} <= {"ok", "incomplete", "unknown"}
    last = documents[-1]
    planted = program.planted()
    assert last["status"] == status
    assert last["verdict"]["kind"] == planted["kind"]
    assert last["verdict"]["diverging_ranks"] == planted["diverging_ranks"]
    assert {row["pid"] for row in last["table"]} == set(laboratory.pids)


def test_once_is_one_verdict(rings: Path) -> None:
    pair(rings, diverged=True)

    done = run_watch(rings, "--once", "--json", "--textfile", rings / "job.prom")

    assert (done.returncode, done.stderr) == (1, "")
    document = json.loads(done.stdout)
    assert {"schema", "status", "ranks", "verdict", "findings", "table"} <= document.keys()
    assert document["verdict"]["kind"] == "size_mismatch"
    assert 'ncclscope_status{status="diverged"' in (rings / "job.prom").read_text()
    text = run_watch(rings, "--once")
    assert (text.returncode, text.stderr) == (1, "")
    assert "DIVERGED" in text.stdout


def test_once_on_ranks_that_agree(rings: Path) -> None:
    with moving(rings):
        done = run_watch(rings, "--once", "--json")

    assert (done.returncode, json.loads(done.stdout)["status"]) == (0, "ok")


GONE = """
import os, sys
from pathlib import Path
from tests.integration.test_watch_command import pair
pair(Path(sys.argv[1]), diverged=True)
os._exit(0)
"""


def test_once_on_what_a_dead_job_left(rings: Path) -> None:
    subprocess.run([sys.executable, "-c", GONE, str(rings)], cwd=ROOT, check=True)

    done = run_watch(rings, "--once", "--json")

    assert (done.returncode, json.loads(done.stdout)["status"]) == (1, "diverged")


def test_what_a_dead_job_left_ends_no_watch(rings: Path) -> None:
    subprocess.run([sys.executable, "-c", GONE, str(rings)], cwd=ROOT, check=True)
    with watching(rings, "--until-divergence", "--json") as watch, moving(rings):
        wait_for_ok(watch)
        watch.terminate()
        assert watch.wait(20) == 128 + signal.SIGTERM


def test_in_a_log_it_is_a_line(rings: Path) -> None:
    pair(rings, diverged=True)

    done = run_watch(rings, "--until-divergence")

    assert (done.returncode, done.stderr) == (1, "")
    (line,) = done.stdout.splitlines()
    assert re.match(r"\d\d:\d\d:\d\d diverged: .* call 2 ", line)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "no directory to watch; name one, or set NCCLSCOPE_DIR"),
        (["/dev/null"], "/dev/null is not a directory"),
        (["/nowhere/at/all", "--once"], "/nowhere/at/all is not a directory"),
        (["{}", "--once"], "no ring found"),
        (["{}", "--stall", "-1"], "--stall must be from 0"),
        (["{}", "--stall", "nan"], "--stall must be from 0"),
        (["{}", "--interval", "0"], "--interval must be from 0.001"),
        (["{}", "--textfile", "/nowhere/x.prom"], "/nowhere is not a directory"),
        (["{}", "--bundle", "/dev/null/x"], "bundles cannot be written to /dev/null/x"),
        (["--ray", "--once"], "ncclscope diagnose --ray"),
        (["--ray", "--kill"], "ncclscope collect --ray"),
    ],
)
def test_a_mistake_is_one_line(tmp_path: Path, arguments: list[str], message: str) -> None:
    done = run_watch(*(argument.format(tmp_path) for argument in arguments))

    assert (done.returncode, done.stdout) == (2, "")
    (line,) = done.stderr.splitlines()
    assert message in line


def test_rings_that_went_elsewhere_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    (tmp_path / "rings").mkdir()
    tracer_in(place := tmp_path / f"ncclscope-{os.getuid()}" / "rings")
    named = f"rings for which a directory of this name had no room are in {place}"

    once = run_watch(tmp_path / "rings", "--once")
    assert once.stderr == f"ncclscope: {tmp_path / 'rings'}: no ring found; {named}\n"
    with watching(tmp_path / "rings") as watch:
        assert watch.stderr is not None
        assert watch.stderr.readline() == f"ncclscope: {named}\n"


LIVING = GONE.replace("os._exit(0)", "print('ready', flush=True); sys.stdin.read()")

MOVING = """
import sys
from pathlib import Path
from tests.integration.test_watch_command import moving
with moving(Path(sys.argv[1])):
    print("ready", flush=True)
    sys.stdin.read()
"""


def test_on_a_hang_it_takes_the_requested_actions(rings: Path, tmp_path: Path) -> None:
    marker, bundles, metrics = tmp_path / "marker", tmp_path / "bundles", tmp_path / "job.prom"
    command = [sys.executable, "-c", LIVING, str(rings)]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT
    ) as job:
        assert job.stdout is not None
        assert job.stdout.readline() == "ready\n"
        done = run_watch(
            *(rings, "--until-divergence", "--json", "--bundle", bundles, "--kill"),
            *("--on-hang", f"echo loud; echo $NCCLSCOPE_BUNDLE $NCCLSCOPE_KIND > {marker}"),
            *("--textfile", metrics),
        )
        assert job.wait(10) == -signal.SIGKILL

    assert done.returncode == 1
    assert json.loads(done.stdout.splitlines()[-1])["status"] == "diverged"
    (bundle,) = bundles.iterdir()
    assert marker.read_text() == f"{bundle} size_mismatch\n"
    # What the command prints is talk, and never among the results.
    message = ["loud", f"ncclscope: bundle: {bundle}", f"ncclscope: killed: {job.pid}"]
    assert done.stderr.splitlines() == message
    assert len(list(bundle.glob("rings/*.ring.gz"))) == 2
    (worker,) = json.loads((bundle / "attach.json").read_text())["workers"]
    assert worker["pid"] == job.pid, "it was sampled before it was killed"
    assert 'ncclscope_verdict{kind="size_mismatch"' in metrics.read_text()


@pytest.mark.parametrize("columns", [80, 160])
def test_what_is_left_on_a_terminal(rings: Path, columns: int) -> None:
    pair(rings, diverged=True)

    with Emulator([*NCCLSCOPE, "watch", rings], columns, 40) as terminal:
        terminal.wait_for("DIVERGED", "q quit")
        terminal.press("\x03")
        assert terminal.end() == 130
        screen = terminal.screen

    lines = screen.splitlines()
    assert max(map(len, lines)) <= columns
    assert "DIVERGED 2 of 2 ranks" in screen
    assert "size mismatch" in screen
    assert re.search(r"^ +0 +\d+ .*3 +all_reduce \[2,4\]", screen, re.M)
    assert f"ncclscope diagnose {rings}" in screen
    assert screen.rstrip().endswith("interrupted")


@pytest.mark.parametrize(
    ("diverged", "status", "message"),
    [(False, 0, "ok: 2 ranks, over"), (True, 1, "diverged: .* call 2 ")],
)
def test_until_divergence_ends_when_nothing_runs_any_more(
    rings: Path, diverged: bool, status: int, message: str
) -> None:
    leave(rings, diverged=diverged)

    done = run_watch(rings, "--until-divergence", "--stall", 0.5)

    assert done.returncode == status
    (line,) = done.stdout.splitlines()
    assert re.match(rf"\d\d:\d\d:\d\d {message}", line)
    words = "the ranks differ" if diverged else "the ranks agree"
    assert done.stderr == f"ncclscope: nothing runs any more: 2 processes have ended; {words}\n"


def test_its_last_document_is_that_of_what_was_left(rings: Path) -> None:
    leave(rings, diverged=True)

    done = run_watch(rings, "--until-divergence", "--json", "--stall", 0.1)

    (document,) = map(json.loads, done.stdout.splitlines())
    assert (done.returncode, document["status"], document["activity"]) == (1, "diverged", "over")
    assert document["verdict"]["kind"] == "size_mismatch"


def test_until_divergence_ends_with_the_job_that_it_has_seen(rings: Path) -> None:
    command = [sys.executable, "-c", MOVING, str(rings)]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT
    ) as job:
        assert job.stdout is not None
        assert job.stdout.readline() == "ready\n"
        with watching(rings, "--until-divergence", "--json", "--stall", 0.5) as watch:
            wait_for_ok(watch)
            job.kill()
            message, complained = watch.communicate(timeout=60)

    assert (watch.returncode, message) == (0, "")
    assert "2 processes have ended; the ranks agree" in complained


def leave(rings: Path, *, diverged: bool) -> None:
    """Leave the rings of two ranks that have ended."""
    source = GONE.replace("diverged=True", f"diverged={diverged}")
    subprocess.run([sys.executable, "-c", source, str(rings)], cwd=ROOT, check=True)
