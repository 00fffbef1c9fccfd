"""File systems that are small or full: the program goes on, wherever its ring goes."""

from __future__ import annotations

import json
import resource
import shutil
import stat
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.programs import run_program

pytestmark = pytest.mark.both_writers

# Records 3000 calls as a probe does, and prints what can be read of them afterwards. With
# "fill" the file system is full before the ring is made, with "fill later" after. That file system
# is also the one of shared memory and of the working directory.
PROGRAM = """
import errno, json, os, sys
from pathlib import Path

directory, action = Path(sys.argv[1]), sys.argv[2]

def fill():
    piece = 1 << 16
    with open(directory.parent / "filler", "wb", buffering=0) as file:
        while piece:
            try:
                file.write(bytes(piece))
            except OSError as error:
                assert error.errno == errno.ENOSPC
                piece //= 2

if action == "fill":
    fill()

from ncclscope.ring import place
from ncclscope.tracing import session

place.SHARED_MEMORY = directory.parent
os.chdir(directory.parent)
tracers = set()
for number in range(3000):
    tracer = session.current()
    tracers.add(tracer)
    if tracer is not None:
        comm = tracer.communicator("k", "tp:0", [0])
        tracer.record(comm, "all_reduce", shape=(number,), dtype="float32", redop="sum")
    if number == 10 and action == "fill later":
        fill()
(tracer,) = tracers

from ncclscope import NcclscopeError, open_run

found = {"ring": tracer and tracer.path}
try:
    run = open_run(directory)
    found["untraced"] = [[one.pid == os.getpid(), one.details["untraced"]] for one in run.untraced]
    for process in run.others:
        log = process.logs["k"]
        found.update(calls=log.calls, first=log.first, source=process.source)
        found["shapes"] = [call.shape[0] for call in log.span(log.first, log.calls + 1)]
except NcclscopeError as error:
    found["error"] = str(error)
print(json.dumps(found))
"""

Outcome = tuple[dict[str, Any], str]
Runner = Callable[..., Outcome]


def outcome(completed: subprocess.CompletedProcess[str]) -> Outcome:
    assert completed.returncode == 0, completed.stderr
    return json.loads(completed.stdout), completed.stderr


def mounted(tmp_path: Path) -> Iterator[Runner]:
    """Mount file systems here, as root may."""
    points: list[Path] = []

    def run(size: str, action: str = "", *, records: int = 65_536) -> Outcome:
        point = tmp_path / f"shm{len(points)}"
        point.mkdir()
        mount = ["mount", "-t", "tmpfs", "-o", f"size={size},mode=1777", "none", str(point)]
        completed = subprocess.run(mount, capture_output=True, text=True, check=False)
        if completed.returncode:
            pytest.skip(f"no file system can be mounted here: {completed.stderr.strip()}")
        points.append(point)
        return outcome(
            run_program(
                PROGRAM,
                point / "rings",
                action,
                NCCLSCOPE_DIR=point / "rings",
                NCCLSCOPE_RECORDS=records,
                TMPDIR=point if action == "temporary files there too" else tmp_path,
            )
        )

    yield run
    for point in points:
        subprocess.run(["umount", str(point)], check=True)


def namespaced(tmp_path: Path) -> Iterator[Runner]:
    """Mount them where only the program sees them, as any user may on most machines."""

    def run(size: str, action: str = "", *, records: int = 65_536) -> Outcome:
        point = tmp_path / "shm"
        point.mkdir()
        script = 'mount -t tmpfs -o "size=$1,mode=1777" none "$2" && shift 2 && exec "$@"'
        unshare = ("unshare", "--user", "--map-root-user", "--mount", "sh", "-c")
        if not shutil.which("unshare"):
            pytest.skip("unshare is not installed")
        probe = [*unshare, 'mount -t tmpfs none "$0"', str(point)]
        completed = subprocess.run(probe, capture_output=True, text=True, check=False)
        if completed.returncode:
            pytest.skip(f"no name space can be made here: {completed.stderr.strip()}")
        return outcome(
            run_program(
                PROGRAM,
                point / "rings",
                action,
                prefix=(*unshare, script, "sh", size, str(point)),
                NCCLSCOPE_DIR=point / "rings",
                NCCLSCOPE_RECORDS=records,
                TMPDIR=point if action == "temporary files there too" else tmp_path,
            )
        )

    yield run


@pytest.fixture(params=[mounted, namespaced])
def on_tmpfs(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Runner]:
    """Run the program with its rings on a file system of the given size."""
    yield from request.param(tmp_path)


def test_with_room_the_ring_is_where_it_was_asked_for(on_tmpfs: Runner, tmp_path: Path) -> None:
    found, output = on_tmpfs("200m")

    assert Path(found["ring"]).parent.name == "rings"
    assert not list(tmp_path.glob("ncclscope-*"))
    assert found["shapes"] == list(range(3000))
    assert output == ""


def test_a_small_one_is_left_to_the_job_and_the_ring_is_found_on_disk(
    on_tmpfs: Runner, tmp_path: Path
) -> None:
    found, output = on_tmpfs("300k")

    (folder,) = tmp_path.glob("ncclscope-*/rings")
    assert Path(found["ring"]).parent == folder
    assert found["source"] == found["ring"]
    assert found["shapes"] == list(range(3000))
    assert_says_where(found, output)
    ring = Path(found["ring"])
    assert stat.S_IMODE(ring.stat().st_mode) == 0o600
    assert stat.S_IMODE(ring.parent.stat().st_mode) == 0o700
    assert stat.S_IMODE(ring.parent.parent.stat().st_mode) == 0o700


def test_a_full_one_sends_the_ring_to_disk_and_says_so(on_tmpfs: Runner) -> None:
    found, output = on_tmpfs("8m", "fill")

    # The pointer to where it went is empty; its name is enough.
    assert found["source"] == found["ring"]
    assert found["shapes"] == list(range(3000))
    assert Path(found["ring"]).parent.parent.name.startswith("ncclscope-")
    assert_says_where(found, output)


def test_one_that_fills_up_later_does_not_kill_the_program(on_tmpfs: Runner) -> None:
    # A store into a map without space behind it would be a SIGBUS. The ring finds no room for more
    # than its first 1024 slots, and uses these again and again.
    found, output = on_tmpfs("8m", "fill later", records=2048)

    assert Path(found["ring"]).parent.name == "rings"
    assert (found["calls"], found["first"]) == (3000, 3000 - 1024 + 1)
    assert found["shapes"] == list(range(3000 - 1024, 3000))
    assert output == ""


def test_without_room_anywhere_there_is_one_warning_and_the_program_goes_on(
    on_tmpfs: Runner, tmp_path: Path
) -> None:
    found, output = on_tmpfs("300k", "temporary files there too")

    assert found["ring"] is None
    assert not list(tmp_path.glob("ncclscope-*"))
    assert_one_warning(output)
    assert_untraced(found, "not enough free space")


def test_a_limit_on_the_size_of_files_ends_in_one_warning_too(tmp_path: Path) -> None:
    # What any user can meet anywhere: reserving the space fails, with a signal on top.
    limit = 100_000
    source = f"""
    import resource
    resource.setrlimit(resource.RLIMIT_FSIZE, ({limit}, resource.RLIM_INFINITY))
    """

    completed = run_program(
        "\n".join(line.strip() for line in source.splitlines()) + PROGRAM,
        tmp_path / "rings",
        "",
        NCCLSCOPE_DIR=tmp_path / "rings",
        TMPDIR=tmp_path,
    )

    found, output = outcome(completed)
    assert found["ring"] is None
    assert_one_warning(output)
    assert "file too large" in output
    assert_untraced(found, "file too large")
    assert [path.suffix for path in tmp_path.rglob("*") if path.is_file()] == [".untraced"]
    assert resource.getrlimit(resource.RLIMIT_FSIZE)[0] != limit


def test_too_little_memory_for_the_map_leaves_no_file_behind(tmp_path: Path) -> None:
    source = """
import mmap, resource
import ncclscope.tracing.session, ncclscope.tracing.tracer, ncclscope.readers
held = int(open("/proc/self/statm").read().split()[0]) * mmap.PAGESIZE
resource.setrlimit(resource.RLIMIT_AS, (held + (4 << 20), resource.RLIM_INFINITY))
"""
    completed = run_program(
        source + PROGRAM,
        tmp_path / "rings",
        "",
        NCCLSCOPE_DIR=tmp_path / "rings",
        TMPDIR=tmp_path / "tmp",
    )

    found, output = outcome(completed)
    assert found["ring"] is None
    assert_one_warning(output)
    assert_untraced(found, "cannot allocate memory")
    assert [path.suffix for path in tmp_path.rglob("*") if path.is_file()] == [".untraced"]


def assert_says_where(found: dict[str, Any], output: str) -> None:
    assert output.count("\n") == 1
    assert f"rings are in {Path(found['ring']).parent}, not " in output
    assert "not enough free space" in output


def assert_untraced(found: dict[str, Any], why: str) -> None:
    ((is_own, said),) = found["untraced"]
    assert is_own
    assert why in said


def assert_one_warning(output: str) -> None:
    assert output.count("\n") == 1
    assert output.startswith("ncclscope: tracing is off in this process: ")
    assert "set NCCLSCOPE_DIR to a directory with" in output or "memory" in output
