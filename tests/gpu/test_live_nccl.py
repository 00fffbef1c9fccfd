"""Hangs of four processes on four GPUs, examined while they last: `pytest -m gpu tests/gpu`.

What NCCL's RAS and torch's Flight Recorder say of the same hang is kept beside it. With
NCCLSCOPE_TRANSCRIPTS set to a directory, all output is kept there, and
``python -m tests.gpu.hangs`` makes a table of it. Without any GPU the same is played on gloo.
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ncclscope import open_run
from ncclscope.lab.launcher import Laboratory
from ncclscope.lab.plan import Program
from ncclscope.launch.processes import run_ranks
from tests.gpu.hang_programs import DIVERGING, swap
from tests.gpu.hangs import Hang, evidence, examine, watching
from tests.gpu.host import SEATS
from tests.gpu.progress_programs import outside

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.timeout(240),
    pytest.mark.skipif(0 < SEATS < 4, reason="needs room for four ranks, or no GPU"),
]

BACKEND = "nccl" if SEATS else "gloo"
DIVERGED = [
    *("wrong_op", "wrong_size", "wrong_dtype", "skipped_call", "divergent_dispatch", "killed_rank"),
]
STUCK = ["order_swap", "sleeping_rank"]
"""Here all calls agree, and only time distinguishes a hang from a rank that is busy."""
UNFIT = ["wrong_size", "wrong_dtype"]
"""NCCL may carry these out and return what nobody asked for."""

PATIENCE = 32.0
"""Seconds after which living ranks that wait are called stuck, and two more."""


@pytest.fixture
def environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """Set the job up for RAS and Flight Recorder dumps."""
    directory = tmp_path / "dumps"
    directory.mkdir()
    found = evidence(directory)
    for name, value in found.items():
        monkeypatch.setenv(name, value)
    return found


@pytest.mark.parametrize("fault", [*DIVERGED, *STUCK])
def test_a_hang_on_nccl_is_named_while_it_lasts(
    rings: Path, tmp_path: Path, environment: dict[str, str], fault: str
) -> None:
    # Of a pair nothing singles out the one that posted another size.
    tp = 4 if fault in UNFIT else 2
    program = Program(tp=tp, dp=4 // tp, backend=BACKEND, fault=fault)
    planted = program.planted()
    with Laboratory(program, rings) as laboratory, watching(rings) as watch:
        for _ in laboratory.watch(stall_after=PATIENCE if fault in STUCK else 5.0):
            pass
        ended = len(laboratory.statuses) == program.world_size
        living = [
            pid for rank, pid in enumerate(laboratory.pids) if rank not in laboratory.statuses
        ]
        found = examine(
            Hang(
                fault,
                planted["summary"] + (" (the job went on to its end)" if ended else ""),
                planted["kind"],
                planted["diverging_ranks"],
                rings,
                living,
                environment,
                laboratory.kill,
            ),
            watch,
            tmp_path,
        )

    assert watch.returncode == 1
    check(found, len(living))
    if fault in DIVERGED and fault != "killed_rank":
        quiet = found["watch"]["quiet"]
        assert quiet is None or quiet < 1.0, "found by what was posted, and not by waiting"
    if fault == "order_swap" and BACKEND == "nccl":
        # Each rank has launched as much as its peers, in another order.
        assert "no problem" in found["ras"]
    if fault not in UNFIT:
        assert not ended


@pytest.mark.parametrize("captured", [False, True], ids=["eager", "captured"])
def test_an_order_swap_that_no_rank_waits_in_is_named(
    rings: Path, tmp_path: Path, environment: dict[str, str], captured: bool
) -> None:
    """The host posts everything, and waits in `cuda.synchronize` only."""
    if captured and BACKEND != "nccl":
        pytest.skip("needs GPUs")
    text = "rank 3 posts an all_reduce on its pair before that on the world, its peers after it"
    with watching(rings) as watch, hanging(rings, swap, captured) as pids:
        deadline = time.monotonic() + 120
        while watch.poll() is None:
            assert time.monotonic() < deadline, "watch printed nothing"
            time.sleep(0.2)
        time.sleep(PATIENCE - 5)  # until living ranks that wait are called stuck
        found = examine(
            Hang(
                "order_swap_captured" if captured else "order_swap_posted",
                text + (", in a CUDA graph" if captured else ""),
                "order_cycle",
                (DIVERGING,),
                rings,
                pids,
                environment,
                lambda: [os.kill(pid, signal.SIGKILL) for pid in pids],
            ),
            watch,
            tmp_path,
        )

    assert watch.returncode == 1
    check(found, len(pids))


@pytest.mark.skipif(BACKEND != "nccl", reason="needs GPUs")
def test_a_device_without_progress_is_no_ranks_fault(
    rings: Path, tmp_path: Path, environment: dict[str, str]
) -> None:
    pytest.importorskip("pynvml", reason="only the load of GPUs shows it")
    with watching(rings) as watch, hanging(rings, outside) as pids:
        found = examine(
            Hang(
                "stalled",
                "all ranks post the same all_reduce, rank 1 behind a kernel that takes minutes",
                "stalled",
                (),
                rings,
                pids,
                environment,
                lambda: [os.kill(pid, signal.SIGKILL) for pid in pids],
                from_bundle=True,  # once all have ended, it is indistinguishable from rest
            ),
            watch,
            tmp_path,
        )

    check(found, len(pids))
    assert found["watch"]["kind"] == found["attach"]["kind"] == "stalled"


@contextlib.contextmanager
def hanging(rings: Path, *program: Any) -> Iterator[list[int]]:
    """Run a program, given with its arguments, and yield its processes while they hang."""
    ranks = threading.Thread(
        target=run_ranks,
        args=program,
        kwargs={"ranks": 4, "rings": rings, "backend": BACKEND, "stall_after": 120.0},
        daemon=True,
    )
    ranks.start()
    pids: list[int] = []
    try:
        while len(pids) < 4:
            assert ranks.is_alive(), "the ranks ended"
            time.sleep(0.2)
            with contextlib.suppress(Exception):
                pids[:] = [rank.pid for rank in open_run(rings).ranks if rank.pid]
        yield pids
    finally:
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        ranks.join(30)


def check(found: dict[str, Any], living: int) -> None:
    """Every tool of ours names the same, and nobody else."""
    kind, ranks = found["expected"]
    assert (found["diagnose"]["kind"], found["diagnose"]["ranks"]) == (kind, ranks)
    assert found["watch"]["ranks"] == ranks
    if living:
        assert found["attach"]["ranks"] == ranks
