"""A healthy job under guard and watch, slow at times: both must stay silent."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path

import psutil

from ncclscope import diagnose, open_run
from tests.campaign.directory import in_memory

__all__ = ["watched"]

NCCLSCOPE = [sys.executable, "-m", "ncclscope"]
JOB = """
import random, sys, time
import torch, torch.distributed as dist

calls, seed = int(sys.argv[1]), int(sys.argv[2])
dist.init_process_group("gloo")
draw = random.Random(seed + dist.get_rank())
tensor = torch.ones(8)
for number in range(calls):
    if draw.random() < 0.0005:
        time.sleep(draw.random() * 0.2)
    if number == calls // 2:
        time.sleep(60.0)
    if number % 3:
        dist.all_reduce(tensor)
    else:
        dist.broadcast(tensor, number % dist.get_world_size())
dist.barrier()
dist.destroy_process_group()
"""


def watched(count: int, seed: int) -> tuple[int, str]:
    """Run a healthy job that is slow at times; whoever watches it must stay silent."""
    draw, size = random.Random(seed), 8
    with in_memory() as rings, tempfile.TemporaryDirectory() as folder:
        program = Path(folder) / "job.py"
        program.write_text(JOB)
        output, seen = Path(folder) / "output.txt", Path(folder) / "seen.jsonl"
        launch = ["torch.distributed.run", "--nproc-per-node", str(size), str(program)]
        launch += [str(count // size), str(seed)]
        with output.open("w") as errors, seen.open("w") as samples:
            job = subprocess.Popen(
                [*NCCLSCOPE, "run", "--dir", rings, "--", sys.executable, "-m", *launch],
                env={**os.environ, "NCCLSCOPE_GUARD": "warn", "OMP_NUM_THREADS": "1"},
                stderr=errors,
            )
            watch = subprocess.Popen(
                [*NCCLSCOPE, "watch", rings, "--until-divergence", "--json"], stdout=samples
            )
            stops = 0
            try:
                while job.poll() is None:
                    time.sleep(draw.uniform(1.0, 5.0))
                    ranks = _ranks_of(job.pid, program)
                    if len(ranks) == size:
                        rank = draw.choice(ranks)
                        with suppress(psutil.NoSuchProcess):
                            rank.suspend()
                            time.sleep(draw.uniform(0.1, 4.0))
                            rank.resume()
                            stops += 1
                watched_to_the_end = watch.wait(60)
            finally:
                for each in (job, watch):
                    each.kill()
        polls = [json.loads(line)["status"] for line in seen.read_text().splitlines()]
        alarms = sum(status in ("diverged", "hung") for status in polls)
        warnings = [line for line in output.read_text().splitlines() if _is_warning(line)]
        print("".join(f"{line}\n" for line in warnings), end="")
        warned = len(warnings)
        status = diagnose(open_run(rings)).status
    failed = alarms + warned + (status != "ok") + (job.returncode != 0) + (watched_to_the_end != 0)
    return failed, (
        f"{count // size * size} calls of {size} ranks, {stops} stops, {len(polls)} polls, "
        f"{alarms} alarms, {warned} warnings, in the end {status}"
    )


def _is_warning(line: str) -> bool:
    usual = "rings go to", "rings written", "rings removed", "ncclscope diagnose"
    return line.startswith("ncclscope: ") and not any(text in line for text in usual)


def _ranks_of(pid: int, program: Path) -> list[psutil.Process]:
    with suppress(psutil.NoSuchProcess):
        found = psutil.Process(pid).children(recursive=True)
        return [
            one
            for one in found
            if "torch.distributed.run" not in (words := one.cmdline()) and str(program) in words
        ]
    return []
