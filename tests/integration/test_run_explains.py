"""`ncclscope run`: a hang is explained in the job's own log, once."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from ncclscope import diagnose, open_run
from ncclscope.errors import NothingFoundError
from ncclscope.ring.place import fallbacks_of
from tests.support.programs import ROOT

RUN = (sys.executable, "-m", "ncclscope", "run")

JOB = """
import os, signal, sys, time
import ncclscope

fault, ending = sys.argv[1:]
ranks = []
for rank in range(3):
    pid = os.fork()
    if not pid:
        tracer = ncclscope.Tracer(os.environ["NCCLSCOPE_DIR"], rank=rank, world_size=3)
        world = tracer.communicator("world", "world", [0, 1, 2], "gloo")
        for step in range(6):
            if (rank, step, fault) == (1, 4, "late"):
                time.sleep(7)
            if (rank, step) != (1, 4) or fault != "skip":
                last = tracer.record(world, "all_reduce", shape=(step + 1,), dtype="float32")
                if step < 4 or fault == "none":
                    tracer.complete(last)
        if fault == "late":
            time.sleep(0 if rank == 1 else 8)
            tracer.complete(last)
            time.sleep(2)
        if ending == "wait":
            signal.pause()
        elif ending == "slow":
            time.sleep(5)
        tracer.close()
        os._exit(3 if ending == "fail" else 0)
    ranks.append(pid)
statuses = [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in ranks]
sys.exit(5 if any(statuses) else 0)
"""


ABSENT = """
import os, signal
import ncclscope

tracer = ncclscope.Tracer(os.environ["NCCLSCOPE_DIR"], rank=0, world_size=2)
tracer.activity("init_process_group").begin("gloo at train.py:3", 300)
signal.pause()
"""
"""Rank 1 leaves no record, so that none of its processes is killed."""


GIVES_UP = """
import os, signal, time
import ncclscope

for rank in range(3):
    if not os.fork():
        tracer = ncclscope.Tracer(os.environ["NCCLSCOPE_DIR"], rank=rank, world_size=3)
        world = tracer.communicator("world", "world", [0, 1, 2], "gloo")
        tracer.complete(tracer.record(world, "all_reduce", shape=(4,), dtype="float32"))
        if rank != 1:
            tracer.record(world, "all_reduce", shape=(4,), dtype="float32")
            time.sleep(5)  # as a timeout of gloo
            tracer.close()
            time.sleep(3)  # as an interpreter that is being shut down
            os._exit(1)
        signal.pause()
for _ in range(3):
    os.wait()
"""


RESTARTS = """
import os, signal, time
import ncclscope

def start(generation, rank):
    pid = os.fork()
    if pid:
        return pid
    tracer = ncclscope.Tracer(os.environ["NCCLSCOPE_DIR"], rank=rank, world_size=2)
    world = tracer.communicator(f"world {generation}", "world", [0, 1], "gloo")
    for step in range(6 if generation else 2):
        tracer.complete(tracer.record(world, "all_reduce", shape=(4,), dtype="float32"))
        time.sleep(0.5)
    if generation == 0 and rank == 0:
        tracer.record(world, "all_reduce", shape=(4,), dtype="float32")
        signal.pause()
    tracer.close()
    os._exit(0)

for generation in range(2):
    ranks = [start(generation, rank) for rank in range(2)]
    if generation == 0:
        time.sleep(6)
        os.kill(ranks[0], signal.SIGKILL)
    for pid in ranks:
        os.waitpid(pid, 0)
"""


@pytest.fixture
def command(rings: Path, tmp_path: Path) -> list[str]:
    """`run` with a directory for bundles, up to its options."""
    return [*RUN, "--dir", str(rings), "--stall", "2", "--bundle", str(tmp_path / "kept")]


def ended(command: list[str], fault: str, ending: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*command, "--", sys.executable, "-c", JOB, fault, ending],
        cwd=ROOT,
        env={**os.environ, "COLUMNS": "100"},
        capture_output=True,
        text=True,
        timeout=100,
    )


def test_a_hang_is_explained_once_and_kept(command: list[str], tmp_path: Path) -> None:
    done = ended([*command, "--kill-after", "2"], "skip", "wait")
    assert done.returncode == 5
    assert done.stdout == ""
    assert done.stderr.count("Rank 1 (") == 1
    assert "DIVERGED" in done.stderr
    (bundle,) = (tmp_path / "kept").iterdir()
    assert f"ncclscope: bundle: {bundle}\n" in done.stderr
    assert json.loads((bundle / "verdict.json").read_text())["verdict"]["diverging_ranks"] == [1]
    assert "ncclscope: killed: " in done.stderr


@pytest.fixture(params=[64, 3], ids=["empty pointers", "no pointers"])
def full(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Path]:
    """A full file system, on which empty files may still be made, or not even these."""
    point = tmp_path / "full"
    point.mkdir()
    options = f"size=200k,nr_inodes={request.param}"
    mount = ["mount", "-t", "tmpfs", "-o", options, "none", str(point)]
    done = subprocess.run(mount, capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"no file system can be mounted here: {done.stderr.strip()}")
    with (point / "filler").open("wb", buffering=0) as file, contextlib.suppress(OSError):
        while file.write(bytes(4096)):
            pass
    yield point
    subprocess.run(["umount", str(point)], check=True)
    for place in fallbacks_of(point / tmp_path.name):
        shutil.rmtree(place, ignore_errors=True)


@pytest.mark.slow
def test_a_hang_is_explained_although_the_rings_directory_is_full(
    full: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    bundle = ("--bundle", str(tmp_path / "kept"))
    command = [
        *RUN,
        "--dir",
        str(full / tmp_path.name),
        "--stall",
        "2",
        *bundle,
        "--kill-after",
        "2",
    ]
    done = ended(command, "skip", "wait")

    assert done.stderr.count("DIVERGED") == 1
    assert "3 rings written" in done.stderr
    (advice,) = (line for line in done.stderr.splitlines() if "ncclscope diagnose" in line)
    place = advice.rpartition(" ")[2]
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    assert diagnose(open_run(place)).status == "diverged"
    if os.statvfs(full).f_files > 3:
        assert place == str(full / tmp_path.name)
    else:
        with pytest.raises(NothingFoundError) as error:
            open_run(full / tmp_path.name)
        assert str(error.value).endswith(f"had no room are in {place}")


@pytest.mark.slow
def test_a_job_that_never_gets_to_its_first_call_is_explained(command: list[str]) -> None:
    with subprocess.Popen(
        [*command, "--kill-after", "1", "--", sys.executable, "-c", ABSENT],
        cwd=ROOT,
        env={**os.environ, "COLUMNS": "100"},
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as job:
        try:
            assert job.stderr is not None
            said = ""
            for line in job.stderr:
                said += line
                if "--kill-after" in line:
                    break
            assert job.poll() is None
        finally:
            os.killpg(job.pid, signal.SIGKILL)
    assert said.count("HUNG · init stalled · rank 1") == 1
    assert "has not come to init_process_group (gloo at train.py:3)" in said
    assert "no process is killed: the verdict names rank 1, of which no record was read" in said


@pytest.mark.slow
def test_a_rank_that_outlives_those_that_gave_it_up_is_explained(command: list[str]) -> None:
    command = [
        *command,
        "--stall",
        "300",
        "--kill-after",
        "0",
        "--",
        sys.executable,
        "-c",
        GIVES_UP,
    ]
    with subprocess.Popen(
        command, cwd=ROOT, stderr=subprocess.PIPE, text=True, start_new_session=True
    ) as job:
        try:
            said = job.communicate(timeout=60)[1]
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(job.pid, signal.SIGKILL)
    assert "HUNG · not joined · rank 1" in said


def test_the_job_is_left_alone(command: list[str], tmp_path: Path) -> None:
    received = tmp_path / "received.json"
    with subprocess.Popen(
        [
            *command,
            "--on-hang",
            f"cat > {received}",
            "--",
            sys.executable,
            "-c",
            JOB,
            "skip",
            "wait",
        ],
        cwd=ROOT,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as job:
        try:
            end = time.monotonic() + 60
            while not (received.exists() and received.stat().st_size):
                assert job.poll() is None
                assert time.monotonic() < end
                time.sleep(0.05)
            assert job.poll() is None
            assert json.loads(received.read_text())["status"] == "diverged"
        finally:
            os.killpg(job.pid, signal.SIGKILL)


@pytest.mark.parametrize("options", [[], pytest.param(["--no-explain"], marks=pytest.mark.slow)])
def test_nothing_is_printed_for_a_healthy_job_or_with_no_explain(
    command: list[str], tmp_path: Path, options: list[str]
) -> None:
    fault = "skip" if options else "none"
    done = ended([*command, *options], fault, "slow")
    assert done.returncode == 0
    assert all(line.startswith("ncclscope: ") for line in done.stderr.splitlines()), done.stderr
    assert "Rank" not in done.stderr
    assert not (tmp_path / "kept").exists() or not [*(tmp_path / "kept").iterdir()]


@pytest.mark.slow
def test_a_rank_that_was_only_late_is_reported_as_arrived(command: list[str]) -> None:
    done = ended(command, "late", "exit")
    assert done.returncode == 0
    assert done.stderr.count("HUNG") == 1
    assert done.stderr.count("ncclscope: the job moves on: who was waited for was late\n") == 1


@pytest.mark.slow
def test_a_restarted_job_was_not_late(command: list[str]) -> None:
    done = subprocess.run(
        [*command, "--", sys.executable, "-c", RESTARTS],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("HUNG") == 1
    assert "late" not in done.stderr
    restarted = "the job was restarted: new processes replace those of this verdict"
    assert done.stderr.count(f"ncclscope: {restarted}\n") == 1


def test_a_job_that_failed_before_the_first_poll_is_explained_at_its_end(
    command: list[str],
) -> None:
    done = ended(command, "skip", "fail")
    assert done.returncode == 5
    assert done.stderr.count("Rank 1 (") == 1


def test_one_of_several_runs_in_a_directory_explains(command: list[str]) -> None:
    command = [*command, "--kill-after", "2", "--", sys.executable, "-c"]
    # The second has no ranks of its own, as a task of another kind in the same Slurm step.
    programs = [[JOB, "skip", "wait"], ["import signal; signal.pause()"]]
    runs = [
        subprocess.Popen(
            [*command, *program],
            cwd=ROOT,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        for program in programs
    ]
    try:
        output = runs[0].communicate(timeout=60)[1]
    finally:
        for run in runs:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(run.pid, signal.SIGTERM)
    output += runs[1].communicate(timeout=30)[1]
    assert output.count("DIVERGED") == 1, output


@pytest.mark.parametrize("option", ["--stall", "--kill-after"])
def test_a_time_that_is_none_is_one_clear_line(option: str) -> None:
    done = subprocess.run(
        [*RUN, option, "-3", "--", "true"], cwd=ROOT, capture_output=True, text=True
    )
    assert done.returncode == 2
    assert done.stderr.count("\n") <= 2
    assert f"{option} takes seconds from 0 to 86400" in done.stderr
