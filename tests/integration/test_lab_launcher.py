"""The laboratory leaves nothing behind, however it ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import ncclscope
from ncclscope.errors import LaboratoryError
from ncclscope.lab.launcher import Laboratory
from ncclscope.lab.plan import Program
from tests.support.laboratories import warm_laboratories

DEADLINE = 30.0

OPENS_A_LABORATORY = """
import sys
from ncclscope.lab.launcher import Laboratory
from ncclscope.lab.plan import Program

program = Program(tp=2, dp=1, layers=1, fault="sleeping_rank", fault_step=1)
with Laboratory(program, sys.argv[1]) as laboratory:
    for progress in laboratory.watch(stall_after=600):
        if progress.ready == 2 and laboratory.pids:
            print(*laboratory.pids, flush=True)
"""


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The directory for temporary files, here and in processes that are started."""
    directory = tmp_path / "temporary"
    directory.mkdir()
    monkeypatch.setenv("TMPDIR", str(directory))
    monkeypatch.setattr(tempfile, "tempdir", None)
    return directory


@pytest.fixture
def warm() -> Iterator[None]:
    """Fork the ranks from the tests' server: what is tested is not the start of the launcher's."""
    with warm_laboratories():
        yield


def program(**changed: Any) -> Program:
    return Program(**{"tp": 2, "dp": 1, "layers": 1, "steps": 2, "fault": "none", **changed})


def gone(pid: int) -> bool:
    """Return whether a process has ended; its parent may not have asked for its status yet."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return True
    return state in "ZX"


def eventually(condition: Callable[[], bool]) -> bool:
    end = time.monotonic() + DEADLINE
    while not condition():
        if time.monotonic() > end:
            return False
        time.sleep(0.02)
    return True


def test_a_finished_run_leaves_only_rings(tmp_path: Path, temporary: Path) -> None:
    with Laboratory(program(), tmp_path / "rings") as laboratory:
        progress = list(laboratory.watch())
    assert laboratory.outcome == "finished"
    assert laboratory.statuses == {0: 0, 1: 0}
    assert [len(rank.logs) for rank in ncclscope.open_run(tmp_path / "rings").ranks] == [2, 2]
    assert {rank.step for rank in progress[-1].ranks} == {2}
    assert progress[-1].calls > 0
    assert all(gone(pid) for pid in laboratory.pids)
    assert list(temporary.iterdir()) == []


@pytest.mark.usefixtures("warm")
def test_killing_ends_the_watch(tmp_path: Path, temporary: Path) -> None:
    sleeping = program(fault="sleeping_rank", fault_step=1)
    with Laboratory(sleeping, tmp_path / "rings") as laboratory:
        for progress in laboratory.watch(stall_after=600):
            if progress.ready == 2 and laboratory.pids:
                laboratory.kill()
                assert all(gone(pid) for pid in laboratory.pids)
        laboratory.kill()
    assert len(laboratory.pids) == 2
    assert laboratory.outcome == "running"
    assert list(temporary.iterdir()) == []


@pytest.mark.usefixtures("warm")
def test_an_exception_inside_leaves_nothing(tmp_path: Path, temporary: Path) -> None:
    sleeping = program(fault="sleeping_rank", fault_step=1)

    def interrupted(laboratory: Laboratory) -> None:
        with laboratory:
            for progress in laboratory.watch(stall_after=600):
                if progress.ready == 2 and laboratory.pids:
                    raise KeyboardInterrupt

    laboratory = Laboratory(sleeping, tmp_path / "rings")
    with pytest.raises(KeyboardInterrupt):
        interrupted(laboratory)
    assert all(gone(pid) for pid in laboratory.pids)
    assert list(temporary.iterdir()) == []


def test_leaving_before_the_ranks_exist_leaves_nothing(tmp_path: Path, temporary: Path) -> None:
    with Laboratory(program(), tmp_path / "rings") as laboratory:
        assert laboratory.progress().ready == 0
    assert not (tmp_path / "rings").exists()
    assert list(temporary.iterdir()) == []


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_the_end_of_whoever_opened_it_is_the_end_of_the_ranks(
    tmp_path: Path, temporary: Path, number: signal.Signals
) -> None:
    root = str(Path(ncclscope.__file__).parents[1])
    opener = subprocess.Popen(
        [sys.executable, "-c", OPENS_A_LABORATORY, str(tmp_path / "rings")],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env={**os.environ, "PYTHONPATH": root},
        start_new_session=True,
    )
    with opener:
        assert opener.stdout is not None
        pids = [int(pid) for pid in opener.stdout.readline().split()]
        assert len(pids) == 2
        os.killpg(opener.pid, number)  # as Ctrl-C does
        assert opener.wait(DEADLINE) != 0
    assert eventually(lambda: all(gone(pid) for pid in pids))
    assert eventually(lambda: not list(temporary.iterdir()))


@pytest.mark.usefixtures("warm")
def test_a_rank_that_cannot_start_says_why(
    tmp_path: Path, temporary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    with (
        pytest.raises(LaboratoryError) as caught,
        Laboratory(program(backend="nccl"), tmp_path / "rings") as laboratory,
    ):
        list(laboratory.watch())
    assert "2 ranks on NCCL need as many GPUs, and this machine has 0" in str(caught.value)
    assert "\n" not in str(caught.value)
    assert all(gone(pid) for pid in laboratory.pids)
    assert list(temporary.iterdir()) == []


def test_a_torch_that_cannot_be_imported_is_named(
    tmp_path: Path, temporary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = tmp_path / "broken"
    broken.mkdir()
    (broken / "torch.py").write_text("raise ImportError('libtorch is damaged')\n")
    monkeypatch.setenv("PYTHONPATH", str(broken))
    with (
        pytest.raises(LaboratoryError, match="libtorch is damaged"),
        Laboratory(program(), tmp_path / "rings") as laboratory,
    ):
        list(laboratory.watch())
    assert list(temporary.iterdir()) == []


def test_the_working_directory_is_not_searched_for_modules(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "torch.py").write_text("raise ImportError('not this one')\n")
    monkeypatch.chdir(tmp_path)
    with Laboratory(program(), "rings") as laboratory:
        list(laboratory.watch())
    assert laboratory.outcome == "finished"
    assert len(ncclscope.open_run(tmp_path / "rings").ranks) == 2
