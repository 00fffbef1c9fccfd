"""Directories that fsspec reaches, as source and as target."""

from __future__ import annotations

import io
import json
import zipfile
from collections.abc import Iterator
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


@pytest.fixture(scope="module")
def s3() -> Iterator[dict[str, str]]:
    """A real server of S3's protocol, and the variables that lead there."""
    from moto.server import ThreadedMotoServer

    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    yield {
        "AWS_ENDPOINT_URL": f"http://{host}:{port}",
        "AWS_ACCESS_KEY_ID": "key",
        "AWS_SECRET_ACCESS_KEY": "secret",
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_EC2_METADATA_DISABLED": "true",
    }
    server.stop()


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_to_s3_and_from_there(
    job: Path, tmp_path: Path, s3: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in s3.items():
        monkeypatch.setenv(name, value)
    store = fsspec.filesystem("s3", skip_instance_cache=True)
    store.mkdir("bucket")
    for path in job.iterdir():
        store.put_file(str(path), f"bucket/rings/{path.name}")

    done = ncclscope("collect", "s3://bucket/rings", "-o", "s3://bucket/hang", "--json")
    assert done.returncode == 0, done.stderr
    (node,) = json.loads(done.stdout)["nodes"]
    assert node["files"] == 4  # with node.json
    assert {path.rpartition("/")[2] for path in store.find("bucket/hang")} > {"collect.json"}
    again = ncclscope("collect", "s3://bucket/rings", "-o", "s3://bucket/hang")
    assert (again.returncode, again.stdout) == (2, "")
    assert (
        again.stderr == "ncclscope: s3://bucket/hang is not empty; name a new directory with -o\n"
    )

    there = ncclscope("diagnose", "s3://bucket/hang", "--json")
    assert there.returncode == 1, there.stderr
    document = json.loads(there.stdout)
    assert document["verdict"]["diverging_ranks"] == [1]
    assert document["verdict"]["seq"] == 6
    assert document["ranks"] == {"expected": 3, "read": 3, "missing": []}

    done = ncclscope("collect", "s3://bucket/hang", "-o", tmp_path / "back")
    assert done.returncode == 0, done.stderr
    check(tmp_path / "back")


def test_an_object_store_without_the_bucket_is_one_line(s3: dict[str, str]) -> None:
    done = ncclscope("diagnose", "s3://nowhere/rings", **s3)
    assert (done.returncode, done.stdout) == (2, "")
    (line,) = done.stderr.splitlines()
    assert line.startswith("ncclscope: s3://nowhere/rings")


def test_a_url_is_diagnosed_like_its_files(job: Path) -> None:
    here = json.loads(ncclscope("diagnose", job, "--json").stdout)
    there = json.loads(ncclscope("diagnose", f"file://{job}", "--json").stdout)
    assert here["verdict"] == there["verdict"]
    assert here["ranks"] == there["ranks"]
    screen = ncclscope("diagnose", f"file://{job}")
    assert screen.returncode == 1
    assert f"file://{job}" in screen.stdout.replace("\n", "")  # long paths are wrapped


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
