"""What `attach` and `doctor` say where a job has no GPU, or where the kernel refuses to show it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from tests.support.programs import ROOT

RANKS = 3
WORKER = """
import mmap, sys, time
held = [mmap.mmap(open(name, "rb").fileno(), 0, prot=mmap.PROT_READ) for name in sys.argv[1:]]
print(flush=True)
time.sleep(1000)
"""
WITHOUT_PTRACE = ("setpriv", "--bounding-set=-sys_ptrace", "--inh-caps=-sys_ptrace")
AS_ROOT = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give up a capability")


def workers(*mapped: Path) -> Iterator[list[int]]:
    """Yield the pids of processes that look like ranks and have mapped some files."""
    running = [
        subprocess.Popen(
            [sys.executable, "-c", WORKER, *map(str, mapped)],
            env={**os.environ, "RANK": str(rank), "WORLD_SIZE": str(RANKS)},
            stdout=subprocess.PIPE,
        )
        for rank in range(RANKS)
    ]
    try:
        for process in running:
            assert process.stdout is not None
            process.stdout.readline()
        yield [process.pid for process in running]
    finally:
        for process in running:
            process.kill()
            process.communicate()


@pytest.fixture
def on_cpus() -> Iterator[list[int]]:
    yield from workers()


@pytest.fixture
def on_gpus(tmp_path: Path) -> Iterator[list[int]]:
    driver = tmp_path / "libcuda.so.1"
    driver.write_bytes(b"\0" * 4096)
    yield from workers(driver)


def ncclscope(
    *arguments: object, prefix: Sequence[str] = (), **environment: str
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*prefix, sys.executable, "-m", "ncclscope", *map(str, arguments)],
        cwd=ROOT,
        env={**os.environ, "NCCL_RAS_ADDR": "127.0.0.1:1", "COLUMNS": "80", **environment},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )


def sources(done: subprocess.CompletedProcess[str]) -> set[str]:
    return {one["name"] for one in json.loads(done.stdout)["witnesses"]}


def test_sources_of_gpus_do_not_appear_for_a_job_without_gpus(on_cpus: list[int]) -> None:
    named = sources(ncclscope("attach", "--gap", "0", "--json", *on_cpus))
    assert named >= {"stacks", "proc", "rings"}
    assert not named & {"gpu", "ras", "flight_recorder", "native"}
    assert "pip install" not in ncclscope("attach", "--gap", "0", *on_cpus).stdout


def test_they_do_for_one_that_has_loaded_the_driver(on_gpus: list[int]) -> None:
    named = sources(ncclscope("attach", "--gap", "0", "--json", *on_gpus))
    assert named >= {"stacks", "proc", "gpu", "ras", "flight_recorder"}
    assert "native" not in named


def test_what_a_redacted_bundle_advises_can_be_typed(on_gpus: list[int], tmp_path: Path) -> None:
    bundle = tmp_path / "bundle"
    done = ncclscope("attach", "--gap", "0", "-o", bundle, "--redact", *on_gpus)
    assert done.returncode in (0, 3), done.stderr
    for name in ("verdict.json", "verdict.txt", "attach.json"):
        text = (bundle / name).read_text("utf-8")
        assert "TORCH_NCCL_DEBUG_INFO_PIPE_FILE=/tmp/fr_" in text, name
        assert str(tmp_path) not in text


@AS_ROOT
def test_what_proc_shows_is_kept_where_stacks_are_refused(
    on_cpus: list[int], tmp_path: Path
) -> None:
    bundle = tmp_path / "bundle"
    arguments = ("attach", "--gap", "0", "-o", bundle, *on_cpus)
    done = ncclscope(*arguments, prefix=WITHOUT_PTRACE)
    assert done.returncode == 3, done.stderr
    assert "unread (S)" in done.stdout
    assert "no permission to read its memory" in done.stdout
    assert all(str(pid) in done.stdout for pid in on_cpus)
    again = ncclscope("diagnose", bundle)
    assert again.returncode == 3
    assert "unread (S)" in again.stdout


@AS_ROOT
@pytest.mark.usefixtures("on_cpus")
def test_doctor_tries_permission_on_real_processes() -> None:
    done = ncclscope("doctor", "--json", prefix=WITHOUT_PTRACE)
    checks = {check["name"]: check for check in json.loads(done.stdout)["checks"]}
    # A process that another suite starts in the same way can be read.
    assert checks["permission"]["status"] in ("bad", "warn")
    assert "Python processes of this user cannot be read" in checks["permission"]["state"]
    assert checks["permission"]["enable"]
