"""What several files of tests against vLLM need; imported only where it is asked for."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.nccl_programs import Built, build


@pytest.fixture(scope="session")
def single(tmp_path_factory: pytest.TempPathFactory) -> list[list[int]]:
    """What one worker answers to the prompts of moe_serving.py, without any patch.

    A server takes long to start, so that the processes of a run ask one between them.
    """
    from tests.integration.moe_serving import answers_of_one

    shared = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        shared = shared.parent
    kept = shared / "single.json"
    with (shared / "single.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not kept.exists():
            kept.write_text(json.dumps(answers_of_one(tmp_path_factory.mktemp("single"))))
    answers: list[list[int]] = json.loads(kept.read_text())
    return answers


@pytest.fixture
def directory(tmp_path: Path) -> Iterator[Path]:
    """A directory that does not outlive the test: checkpoints and rings are large."""
    yield tmp_path
    shutil.rmtree(tmp_path)


@pytest.fixture(scope="session")
def nccl(tmp_path_factory: pytest.TempPathFactory) -> Built:
    """The profiler plugin, and a stand-in for libnccl that calls it."""
    return build(tmp_path_factory.mktemp("nccl"))


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Path]:
    """A file system of 8 MB."""
    point = tmp_path / "shm"
    point.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=8m,mode=1777", "none", str(point)]
    done = subprocess.run(mount, capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"no file system can be mounted here: {done.stderr.strip()}")
    yield point
    subprocess.run(["umount", str(point)], check=True)
