"""`ncclscope run` under a launcher: its tasks record one job, and one of them explains a hang."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.programs import ROOT

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

JOB = """
import os, time
import torch
import torch.distributed as dist

for name, own in (("RANK", "OMPI_COMM_WORLD_RANK"), ("WORLD_SIZE", "OMPI_COMM_WORLD_SIZE")):
    os.environ.setdefault(name, os.environ.get(own, ""))
store = {} if "MASTER_PORT" in os.environ else {"init_method": "file://" + os.environ["STORE"]}
rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
dist.init_process_group("gloo", rank=rank, world_size=size, **store)
tensor = torch.ones(4)
for _ in range(5):
    dist.all_reduce(tensor)
if rank == 1:
    time.sleep(600)
dist.all_reduce(tensor)
"""
MPIRUN = ("mpirun", "--allow-run-as-root", "--oversubscribe", "-n", "3")
TORCHRUN = (sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "3", "--no-python")
TRACED = (sys.executable, "-m", "ncclscope", "run", "--stall", "3", "--kill-after", "1")

needs_mpi = pytest.mark.skipif(shutil.which("mpirun") is None, reason="needs mpirun of Open MPI")


@pytest.mark.parametrize(
    "command",
    [
        pytest.param((*MPIRUN, *TRACED, "--", sys.executable), marks=needs_mpi, id="mpirun"),
        pytest.param((*TORCHRUN, *TRACED, "--", sys.executable), id="inside torchrun"),
        pytest.param((*TRACED, "--", *TORCHRUN[:-1], "--standalone"), id="around torchrun"),
    ],
)
def test_one_process_of_the_host_explains(command: tuple[str, ...], tmp_path: Path) -> None:
    program = tmp_path / "job.py"
    program.write_text(JOB)
    done = subprocess.run(
        [*command, str(program)],
        cwd=ROOT,
        env={**os.environ, "STORE": str(tmp_path / "store"), "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
        timeout=240,
    )
    said = done.stdout + done.stderr
    directories = set(re.findall(r"rings go to (\S+-\d+)", said))
    for directory in directories:
        shutil.rmtree(directory)
    assert done.returncode != 0
    assert len(directories) == 1, said
    assert said.count("CURRENT COLLECTIVE OF EACH RANK") == 1, said
    assert "3 of 3 ranks read" in said
    assert "Rank 1 (" in said
    assert said.count("ncclscope: killed: ") == 1
