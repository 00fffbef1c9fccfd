"""Directories that fsspec reaches, as source and as target."""

from __future__ import annotations

import io
import json
import zipfile
from pathlib import Path

import pytest

from ncclscope import Tracer, diagnose, open_run
from ncclscope.collect.archive import UnpackedArchive, unpack
from ncclscope.collect.node import Wanted, write_node
from tests.support.nodes import ncclscope

fsspec = pytest.importorskip("fsspec")


@pytest.fixture
def job(tmp_path: Path) -> Path:
    directory = tmp_path / "job"
    for rank in range(3):
        tracer = Tracer(directory, rank=rank, world_size=3, capacity=1024, heartbeat=False)
        comm = tracer.communicator("K", "tp:0", range(3), "nccl")
        for step in range(10):
            op = "all_gather" if (rank, step) == (1, 5) else "all_reduce"
            tracer.record(comm, op, shape=(4,), dtype="float32")
        tracer.close()
    return directory


def check(directory: Path) -> None:
    verdict = diagnose(open_run(directory))
    assert verdict.cause is not None
    assert (verdict.cause.diverging_ranks, verdict.cause.seq) == ((1,), 6)
    assert len(verdict.run.ranks) == 3


def test_memory(job: Path, tmp_path: Path) -> None:
    memory = fsspec.filesystem("memory")
    for path in job.iterdir():
        memory.pipe_file(f"/bucket/rings/{path.name}", path.read_bytes())
    stream = io.BytesIO()
    assert write_node(stream, Wanted(("memory://bucket/rings",), stacks=False)) == 3
    target = tmp_path / "out"
    target.mkdir()
    unpack(io.BytesIO(stream.getvalue()).read, target, UnpackedArchive())
    check(target)
    memory.rm("/bucket", recursive=True)


def test_from_files_to_files(job: Path, tmp_path: Path) -> None:
    target = tmp_path / "there" / "hang"
    done = ncclscope("collect", f"file://{job}", "-o", f"file://{target}", "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["directory"] == f"file://{target}"
    check(target)
    again = ncclscope("collect", f"file://{job}", "-o", f"file://{target}")
    assert (again.returncode, again.stdout) == (2, "")
    assert "is not empty" in again.stderr


def test_from_an_archive(job: Path, tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "hang.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        for path in job.iterdir():
            archive.write(path, f"rings/{path.name}")
    done = ncclscope("collect", f"zip://rings::file://{tmp_path}/hang.zip", "-o", tmp_path / "out")
    assert done.returncode == 0, done.stderr
    check(tmp_path / "out")


def test_a_hostile_archive_writes_nowhere_else(job: Path, tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "evil.zip", "w") as archive:
        archive.writestr("../../../evil", "evil")
        for path in job.iterdir():
            archive.write(path, path.name)
    target = tmp_path / "a" / "b" / "out"
    done = ncclscope("collect", f"zip://::file://{tmp_path}/evil.zip", "-o", target)
    assert not list(tmp_path.rglob("evil"))
    assert done.returncode == 0
    check(target)


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("file:///nowhere/at/all", "no file found"),
        ("nosuchkind://x", "cannot be opened"),
        ("zip://::file:///nowhere.zip", "cannot be opened"),
    ],
)
def test_what_cannot_be_read_says_so(tmp_path: Path, url: str, message: str) -> None:
    done = ncclscope("collect", url, "-o", tmp_path / "out")
    assert done.returncode == 2
    assert message in done.stdout
    assert "Traceback" not in done.stderr
