"""`ncclscope run` of ranks that cannot be recorded: they are counted, and nobody is killed."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.support.programs import ROOT

NCCLSCOPE = (sys.executable, "-m", "ncclscope")

# The ranks that are named cannot write files of more than so many bytes. All others post a call;
# it completes when standard input ends, so that a test decides how long they wait in it.
JOB = """
import os, resource, sys
import ncclscope

limit, named, world = int(sys.argv[1]), {*map(int, sys.argv[2].split())}, 4
ranks = []
for rank in range(world):
    ranks.append(os.fork())
    if ranks[-1] == 0:
        if rank in named:
            resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
        try:
            tracer = ncclscope.Tracer(os.environ["NCCLSCOPE_DIR"], rank=rank, world_size=world)
        except (ncclscope.NcclscopeError, OSError):
            sys.stdin.read()
            os._exit(0)
        comm = tracer.communicator("W", "world", range(world), "gloo")
        for step in range(4):
            call = tracer.record(comm, "all_reduce", shape=(4,), dtype="float32")
            if step < 3:
                tracer.complete(call)
        sys.stdin.read()
        tracer.complete(call)
        tracer.close()
        os._exit(0)
sys.exit(any([os.waitpid(pid, 0)[1] for pid in ranks]))
"""


def ended(command: Sequence[object]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*map(str, command)],
        cwd=ROOT,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )


def verdict_on(directory: Path) -> dict[str, Any]:
    return json.loads(ended([*NCCLSCOPE, "diagnose", directory, "--json"]).stdout)


@pytest.mark.parametrize("limit", [4096, 0], ids=["a page each", "no file at all"])
def test_ranks_that_cannot_be_recorded_are_known(rings: Path, limit: int) -> None:
    job = [sys.executable, "-c", JOB, limit, "1 2"]
    done = ended([*NCCLSCOPE, "run", "--dir", rings, "--", *job])

    assert done.returncode == 0, done.stderr
    assert "2 rings written" in done.stderr
    assert "2 processes could not be recorded: no ring can be created in" in done.stderr
    found = verdict_on(rings)
    assert found["status"] == "incomplete"
    assert (found["ranks"]["expected"], found["ranks"]["read"]) == (4, 2)
    assert [one["rank"] for one in found["ranks"]["untraced"]] == [1, 2]
    assert all("file too large" in one["why"] for one in found["ranks"]["untraced"])


@pytest.mark.parametrize("named", ["1 2 3", "3"])
def test_nobody_is_killed_for_a_rank_that_is_not_recorded(rings: Path, named: str) -> None:
    with subprocess.Popen(
        [
            *(*NCCLSCOPE, "run", "--dir", str(rings), "--stall", "1", "--kill-after", "0"),
            *("--", sys.executable, "-c", JOB, "4096", named),
        ],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as job:
        assert job.stdin is not None
        assert job.stderr is not None
        lines = []
        for line in job.stderr:  # ends with the job, at the latest at the limit of the test
            lines.append(line)
            if "no process is killed" in line:
                job.stdin.close()
        assert job.wait(60) == 0, "".join(lines)
    text = "".join(lines)
    assert text.count("--kill-after: no process is killed: the verdict names rank") == 1
    assert "of which no record was read" in text
    assert "dead" not in text.lower()
    assert "killed:" not in text.replace("no process is killed:", "")


UNSHARE = ("unshare", "--mount", "--propagation", "private", "sh", "-c")


def in_container(mount: str, then: str, *, stall: str = "1") -> subprocess.CompletedProcess[str]:
    """Run the job where the root directory is read-only, as in many containers.

    Args:
        mount: Options of the mount of /dev/shm.
        then: Shell commands that follow the job, whose stderr is the standard output.
        stall: Seconds until a hang.
    """
    shm = f"mount -t tmpfs -o {mount} tmpfs /dev/shm && mount -o remount,ro,bind /"
    if os.geteuid() or not shutil.which("unshare"):
        pytest.skip("only root can make a root directory read-only")
    if ended([*UNSHARE, shm]).returncode:
        pytest.skip("no file system can be mounted here")
    job = [sys.executable, "-c", JOB, 1 << 40, ""]
    command = [*NCCLSCOPE, "run", "--kill-after", "0", "--stall", stall, "--", *job]
    script = f'{shm}; export TMPDIR= HOME=/nonexistent; "$@" 2>&1; echo "status $?"; {then}'
    return ended([*UNSHARE, script, "sh", *command])


def test_all_ranks_of_a_small_container_are_counted() -> None:
    diagnose = f"{sys.executable} -m ncclscope diagnose /dev/shm --json"

    done = in_container("size=256k", diagnose)

    assert "status 0\n" in done.stdout, done.stdout + done.stderr
    head, _, document = done.stdout.partition("{")
    assert "4 processes could not be recorded: no ring can be created in /dev/shm" in head
    found = json.loads("{" + document)
    assert found["status"] == "unknown"
    assert [one["rank"] for one in found["ranks"]["untraced"]] == [0, 1, 2, 3]


def test_without_any_place_the_job_runs_and_its_launcher_knows() -> None:
    done = in_container("ro", "true")

    assert "status 0\n" in done.stdout, done.stdout + done.stderr
    assert "nothing may be recorded: no directory can be made in /dev/shm" in done.stdout
    assert "4 processes could not be recorded: no ring can be created in" in done.stdout
    assert "no ring was written" not in done.stdout
    assert "ncclscope diagnose" not in done.stdout
