"""Jobs that torchrun ends because one rank failed between two calls, while no peer waits for it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.programs import ROOT

pytest.importorskip("torch")

pytestmark = pytest.mark.timeout(200)

JOB = """
import os, signal, sys
import torch
import torch.distributed as dist

how, marks = sys.argv[1:]
dist.init_process_group("gloo")
rank = dist.get_rank()
for _ in range(3):
    dist.all_reduce(torch.ones(4))
if how == "late":
    dist.barrier()
    dist.destroy_process_group()  # without it, gloo may crash while the process ends
    sys.exit(5 if rank == 1 else 0)
if rank == 1:
    while len(os.listdir(marks)) < 2:
        pass
    if how == "exit":
        dist.destroy_process_group()
        sys.exit(3)
    os.kill(os.getpid(), signal.SIGKILL) if how == "kill" else os._exit(4)
else:
    os.mkdir(f"{marks}/{rank}")  # it has returned from its last call
    signal.pause()
"""


@pytest.mark.parametrize(
    ("how", "status", "kind", "says"),
    [
        ("kill", 1, "dead_rank", "ended with SIGKILL, as its launcher recorded"),
        pytest.param("_exit", 1, "dead_rank", "exit status 4", marks=pytest.mark.slow),
        ("exit", 3, None, "Rank 1 ended with exit status 3."),
        pytest.param("late", 3, None, "Rank 1 ended with exit status 5.", marks=pytest.mark.slow),
    ],
)
def test_the_rank_that_failed_is_named(
    rings: Path, tmp_path: Path, how: str, status: int, kind: str | None, says: str
) -> None:
    program, marks = tmp_path / "job.py", tmp_path / "marks"
    program.write_text(JOB)
    marks.mkdir()
    ncclscope = [sys.executable, "-m", "ncclscope"]
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    run = [*ncclscope, "run", "--dir", str(rings), "--", *torchrun, "3", str(program)]
    done = subprocess.run(
        [*run, how, str(marks)], env=environment, capture_output=True, text=True, timeout=150
    )
    assert done.returncode == 1, done.stderr

    found = subprocess.run(
        [*ncclscope, "diagnose", "--json", str(rings)],
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
    )
    document = json.loads(found.stdout)
    assert found.returncode == status, document["summary"]
    assert says in document["summary"]
    verdict = document["verdict"]
    named = None if verdict is None else (verdict["kind"], verdict["diverging_ranks"])
    assert named == (None if kind is None else (kind, [1]))
