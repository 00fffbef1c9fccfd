"""A rank that posts another call than its peer, recorded by the probe or read from logs."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

import ncclscope

PROGRAM = """
import sys, torch
from pathlib import Path
from toylib import Group
folder, rank = Path(sys.argv[1]), int(sys.argv[2])
group = Group(folder, rank, 3, log=True)
for step in range(5):
    group.all_reduce(torch.ones(4))
    if rank == 1 and step == 3:
        group.all_gather(torch.ones(2))
    group.all_reduce(torch.ones(8))
"""


@pytest.fixture
def recorded(tmp_path: Path) -> Path:
    """Three ranks until two wait for the third, which waits for them; then all are killed."""
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    group = tmp_path / "group"
    group.mkdir()
    rings = tmp_path / "rings"
    traced = [sys.executable, "-m", "ncclscope", "run", "--dir", rings, "--"]
    ranks = [
        subprocess.Popen(
            [*traced, sys.executable, program, group, str(rank)],
            env={**os.environ, "RANK": str(rank), "WORLD_SIZE": "3"},
            start_new_session=True,
        )
        for rank in range(3)
    ]
    last = [group / f"all_{op}-8-{rank}" for rank, op in enumerate(("reduce", "gather", "reduce"))]
    try:
        while not all(path.exists() for path in last):
            assert [rank.poll() for rank in ranks] == [None] * 3
            time.sleep(0.05)
    finally:
        for rank in ranks:
            subprocess.run(["pkill", "-KILL", "-s", str(rank.pid)], check=False)
            rank.wait()
    return tmp_path


@pytest.mark.parametrize("source", ["rings", "group"])
def test_the_rank_that_posted_another_call_is_named(recorded: Path, source: str) -> None:
    cause = ncclscope.diagnose(ncclscope.open_run(recorded / source)).cause

    assert cause is not None
    assert (cause.diverging_ranks, cause.seq) == ((1,), 8)
    assert cause.comm.label == "group"
    if source == "rings":
        assert "program.py:10" in cause.odd.site


def test_a_damaged_log_takes_no_other_with_it(tmp_path: Path) -> None:
    for rank in range(2):
        (tmp_path / f"rank-{rank}.toylog").write_text("all_reduce 4\n")
    (tmp_path / "rank-1.toylog").write_text("all_reduce x\n")

    run = ncclscope.open_run(tmp_path)

    assert [rank.rank for rank in run.ranks] == [0]
    assert any("line 1 is not a call" in note for note in run.notes)
