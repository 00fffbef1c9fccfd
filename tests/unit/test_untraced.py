"""Processes that cannot be recorded say so, and readers count them among the ranks."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ncclscope import diagnose, open_run
from ncclscope.commands.new_rings import Reports
from ncclscope.errors import RingError
from ncclscope.readers.untraced import read_untraced
from ncclscope.ring import place, tombstone
from ncclscope.tracing import identity
from tests.support.programs import ROOT, run_program
from tests.support.rings import tracer_in

WHY = "there is no room"

# Ranks record a call each; those that are named cannot write files of more than a page.
JOB = """
import os, resource, sys
import ncclscope

directory, untraced, world = sys.argv[1], {*map(int, sys.argv[2].split())}, int(sys.argv[3])
ranks = []
for rank in range(world):
    ranks.append(os.fork())
    if ranks[-1] == 0:
        if rank in untraced:
            resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))
        try:
            tracer = ncclscope.Tracer(directory, rank=rank, world_size=world)
        except (ncclscope.NcclscopeError, OSError):
            os._exit(0)
        comm = tracer.communicator("W", "world", range(world), "gloo")
        tracer.complete(tracer.record(comm, "all_reduce", shape=(4,), dtype="float32"))
        tracer.close()
        os._exit(0)
for pid in ranks:
    assert os.waitpid(pid, 0)[1] == 0
"""


def untraced(directory: Path, **about: Any) -> Path:
    """Leave the file of a process that cannot be recorded."""
    described = {**identity.describe_process(), "rank": 1, "world_size": 2, **about}
    with pytest.raises(RingError), tombstone.until_recorded(directory, described):
        raise RingError(WHY, "help")
    (path,) = (path for path in directory.iterdir() if path.suffix == ".untraced")
    return path


def verdict_on(directory: Path) -> dict[str, Any]:
    return diagnose(open_run(directory)).to_dict()


@pytest.mark.parametrize(
    ("ranks", "status"), [("1", "incomplete"), ("1 2 3", "incomplete"), ("0 1 2 3", "unknown")]
)
def test_they_are_ranks_of_the_job_and_never_dead(rings: Path, ranks: str, status: str) -> None:
    completed = run_program(JOB, rings, ranks, 4)
    assert completed.returncode == 0, completed.stderr

    found = verdict_on(rings)
    numbers = [*map(int, ranks.split())]

    assert found["status"] == status
    assert found["verdict"] is None
    assert found["ranks"]["expected"] == 4
    assert found["ranks"]["read"] == 4 - len(numbers)
    assert found["ranks"]["missing"] == numbers
    assert [one["rank"] for one in found["ranks"]["untraced"]] == numbers
    assert all("file too large" in one["why"] for one in found["ranks"]["untraced"])
    (unseen,) = found["coverage"]["unseen"]
    assert "could not be recorded: no ring can be created in" in unseen
    assert "left no record" not in found["summary"]


def test_the_file_is_one_private_page_and_goes_when_the_ring_is_made(rings: Path) -> None:
    with tombstone.until_recorded(rings, {"pid": os.getpid()}):
        (path,) = rings.iterdir()
        status = path.stat()
        assert status.st_size == tombstone.PAGE
        assert status.st_blocks * 512 >= tombstone.PAGE
        assert status.st_mode & 0o777 == 0o600
    assert not rings.exists() or [*rings.iterdir()] == []


def test_directories_that_take_nothing_are_not_left_behind(rings: Path, tmp_path: Path) -> None:
    completed = run_program(JOB, rings, "0 1", 2, TMPDIR=tmp_path)
    assert completed.returncode == 0, completed.stderr

    assert len([*rings.iterdir()]) == 2
    assert not any(map(os.path.exists, place.fallbacks_of(rings)))
    assert not [*tmp_path.rglob(rings.name)]


def test_a_long_reason_fits_into_the_page(rings: Path) -> None:
    about = {
        "run": "ä" * 5000,
        "host": "\U0001f600" * 5000,
        "ancestors": [*range(10**6, 10**6 + 32)],
    }
    page = tombstone.page_of({**about, "pid": 7, "rank": 3}, "\U0001f600" * 10_000)

    assert len(page) == tombstone.PAGE
    found = json.loads(page)
    assert (found["pid"], found["rank"]) == (7, 3)


@pytest.mark.parametrize("state", ["making", "killed"])
def test_a_process_that_is_making_its_ring_is_not_given_up(rings: Path, state: str) -> None:
    source = """
    import os, signal, sys
    from ncclscope.ring import tombstone
    from ncclscope.tracing import identity
    about = {**identity.describe_process(), "rank": 1, "world_size": 2}
    with tombstone.until_recorded(sys.argv[1], about):
        print("ready", flush=True)
        sys.stdin.read()
        os.kill(os.getpid(), signal.SIGKILL)
    """
    tracer_in(rings, rank=0, world_size=2).close()
    with subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(source), str(rings)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=ROOT,
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        if state == "making":
            assert open_run(rings).untraced == ()
        assert process.stdin is not None
        process.stdin.close()
        process.wait(30)
    if state == "killed":
        (one,) = open_run(rings).untraced
        assert one.details["untraced"] == tombstone.UNFINISHED


def test_a_process_that_made_a_ring_after_all_is_recorded(rings: Path) -> None:
    untraced(rings, rank=0, world_size=1)
    tracer_in(rings).close()

    run = open_run(rings)

    assert [rank.rank for rank in run.ranks] == [0]
    assert run.untraced == ()


def test_a_process_of_an_earlier_run_does_not_count(rings: Path) -> None:
    untraced(rings, rank=1, run="earlier", start_ticks=1, started_ns=1)
    tracer_in(rings, world_size=1, details={"run": "later"}).close()

    run = open_run(rings)

    assert (run.expected, run.untraced) == (1, ())


def test_nothing_is_said_of_the_ranks_of_an_earlier_run_when_none_is_recorded(rings: Path) -> None:
    tracer_in(rings, world_size=1, details={"run": "earlier", "started_ns": 1}).close()
    untraced(rings, rank=1, run="later")

    run = open_run(rings)

    assert (run.ranks, [one.rank for one in run.untraced]) == ((), [1])


def test_the_file_is_found_where_the_directory_takes_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(place, "SHARED_MEMORY", tmp_path / "absent")
    monkeypatch.setenv("TMPDIR", str(tmp_path / "tmp"))
    (tmp_path / "tmp").mkdir()
    (tmp_path / "rings").mkdir()
    real = place.make_in

    def make_in(directory: Path, *arguments: Any, **options: Any) -> tuple[Path, int]:
        if directory == tmp_path / "rings":
            raise OSError(28, "No space left on device")
        return real(directory, *arguments, **options)

    monkeypatch.setattr(tombstone, "make_in", make_in)
    with pytest.raises(RingError), tombstone.until_recorded(tmp_path / "rings", {"rank": 1}):
        raise RingError(WHY)

    (one,) = open_run(tmp_path / "rings").untraced
    assert Path(one.source).is_relative_to(tmp_path / "tmp")
    with tombstone.until_recorded(tmp_path / "rings", {"rank": 1}):
        pass
    assert len([path for path in tmp_path.rglob("*") if path.is_file()]) == 2  # of the first


HOSTILE: dict[str, bytes] = {
    "empty": b"",
    "no object": b"[1, 2]",
    "of another kind": b'{"rank": 3}',
    "deep": b"[" * 4000,
    "no text": bytes(4096),
    "of a later version": b'{"ncclscope_untraced": 99}',
}
ODD: list[dict[str, Any]] = [
    {"rank": -5, "world_size": -1, "pid": -7},
    {"rank": 1 << 70, "world_size": 1 << 70, "pid": 1 << 70},
    {"rank": "3", "world_size": [8], "pid": {}},
    {"rank": True, "host": ["x"], "boot_id": {}, "run": [[]], "attempt": "x"},
    {"why": {"a": 1}, "started_ns": "x", "time_ns": [], "ancestors": {"a": 1}},
    {"why": "\x1b[2J\u202e::error", "host": "\x1b[2J\n"},
]


@pytest.mark.parametrize("name", HOSTILE)
def test_a_file_that_is_none_is_a_note(rings: Path, name: str) -> None:
    tracer_in(rings, world_size=1).close()
    (rings / "x.untraced").write_bytes(HOSTILE[name])

    run = open_run(rings)

    assert run.untraced == ()
    assert len(run.notes) == 1
    assert run.notes[0].isprintable()


@pytest.mark.parametrize("odd", ODD)
def test_what_a_file_says_may_be_anything(rings: Path, odd: dict[str, Any]) -> None:
    tracer_in(rings, world_size=1).close()
    page = {"ncclscope_untraced": 1, "final": True, "time_ns": time.time_ns(), **odd}
    (rings / "x.untraced").write_text(json.dumps(page))

    found = diagnose(open_run(rings))

    assert found.status in ("incomplete", "unknown", "ok")
    assert all(text.isprintable() for text in (found.summary, *found.coverage.unseen))
    json.dumps(found.to_dict())


@pytest.mark.parametrize("kind", ["fifo", "link", "directory", "gigantic"])
def test_only_files_are_read_and_only_one_page(rings: Path, tmp_path: Path, kind: str) -> None:
    path = rings / "x.untraced"
    tracer_in(rings, world_size=1).close()
    match kind:
        case "fifo":
            os.mkfifo(path)
        case "link":
            path.symlink_to(untraced(tmp_path / "elsewhere"))
        case "directory":
            path.mkdir()
        case "gigantic":
            path.write_bytes(b'{"ncclscope_untraced": 1}')
            os.truncate(path, 1 << 40)

    assert open_run(rings).untraced == ()


def test_a_ring_cannot_claim_to_be_of_an_untraced_process(rings: Path) -> None:
    tracer_in(rings, world_size=1, details={"untraced": "no"}).close()

    assert open_run(rings).untraced == ()
    assert len(open_run(rings).ranks) == 1


# --- the launcher's socket -------------------------------------------------------------------


@pytest.fixture
def reports(rings: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Reports]:
    """A launcher that listens, as the environment of its processes says."""
    with contextlib.closing(Reports(rings)) as found:
        monkeypatch.setenv("NCCLSCOPE_REPORTS", found.name)
        yield found


@pytest.fixture
def _no_file(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let no process leave a file."""

    def refuse(*_: object, **__: object) -> None:
        raise OSError(30, "Read-only file system")

    monkeypatch.setattr(tombstone, "make_in", refuse)


def fail(directory: Path, rank: int) -> None:
    about = {**identity.describe_process(), "rank": rank, "world_size": 40}
    with pytest.raises(RingError), tombstone.until_recorded(directory, about):
        raise RingError(WHY)


@pytest.mark.usefixtures("_no_file")
def test_a_process_without_any_place_tells_its_launcher(rings: Path, reports: Reports) -> None:
    for rank in range(40):  # nobody takes them meanwhile, and nobody waits for that
        fail(rings, rank)

    reports.take()

    files = sorted(rings.glob("*.untraced"))
    found = [read_untraced(path) for path in files]
    assert sorted(one.rank for one in found if one is not None) == [*range(40)]
    assert {one.details["untraced"] for one in found if one is not None} == {WHY}


@pytest.mark.usefixtures("_no_file")
@pytest.mark.parametrize("name", ["", "ncclscope-nobody-listens"])
def test_without_a_launcher_the_process_just_goes_on(
    rings: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setenv("NCCLSCOPE_REPORTS", name)
    fail(rings, 0)
    assert not rings.exists() or not [*rings.iterdir()]


def test_a_launcher_keeps_no_report_that_is_none(rings: Path, reports: Reports) -> None:
    for page in (b"", b"x", b"{}", b"\xff" * 10_000, b'{"ncclscope_untraced": 2}'):
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as end:
            end.connect(b"\0" + reports.name.encode())
            if page:
                end.send(page)

    reports.take()

    assert not rings.exists() or not [*rings.iterdir()]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_a_launcher_keeps_no_report_of_another_user(rings: Path, reports: Reports) -> None:
    source = """
import os, socket, sys
os.setuid(12345)
end = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
end.connect(b"\\0" + sys.argv[1].encode())
end.send(sys.argv[2].encode())
"""
    page = tombstone.page_of({"rank": 1}, WHY).decode()
    done = run_program(source, reports.name, page)
    assert done.returncode == 0, done.stderr

    reports.take()

    assert not rings.exists() or not [*rings.iterdir()]
