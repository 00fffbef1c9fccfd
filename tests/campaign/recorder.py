"""Campaigns against the recorder: kills, file systems that fill up, clocks that jump."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path

from tests.campaign.directory import in_memory
from tests.support.cluster import Cluster

__all__ = ["clock", "full", "kills"]


def kills(count: int, seed: int) -> tuple[int, str]:
    """Kill writers, and compare what they left with what they had acknowledged."""
    os.environ["NCCLSCOPE_TEST_THREADS"] = "8"
    from tests.integration import crash_writer
    from tests.integration.test_crash_kill import check

    acknowledged = lost = 0
    for first in range(0, count, 50):
        with in_memory() as rings, tempfile.TemporaryDirectory() as folder:
            rounds = crash_writer.plan(
                rings, rounds=min(50, count - first), capacity=8192, longest=1200, seed=seed + first
            )
            for life, counters in zip(rounds, crash_writer.run(rounds, Path(folder)), strict=True):
                lost += check(Path(life.directory), life.capacity, counters)
                acknowledged += sum(counters)
    return lost, f"{acknowledged} calls acknowledged, {lost} lost"


def full(count: int, seed: int) -> tuple[int, str]:
    """Fill file systems of random sizes while a program records into them."""
    from tests.integration.test_crash_space import PROGRAM

    draw, failed, kept = random.Random(seed), 0, 0
    for _ in range(count):
        megabytes, after = draw.randint(2, 24), draw.randint(0, 2999)
        program = PROGRAM.replace("number == 10 and", f"number == {after} and")
        with tempfile.TemporaryDirectory() as folder:
            point = Path(folder) / "shm"
            point.mkdir()
            size = f"size={megabytes}m,mode=1777"
            subprocess.run(["mount", "-t", "tmpfs", "-o", size, "none", point], check=True)
            try:
                done = subprocess.run(
                    [sys.executable, "-c", program, point / "rings", "fill later"],
                    env={**os.environ, "NCCLSCOPE_DIR": str(point / "rings"), "TMPDIR": folder},
                    capture_output=True, text=True, check=False,
                )  # fmt: skip
                found = json.loads(done.stdout) if done.returncode == 0 else {}
            finally:
                subprocess.run(["umount", point], check=True)
        if found.get("calls") == 3000:
            kept += 1
        if done.returncode or (found.get("ring") and "calls" not in found):
            failed += 1
            print(f"{megabytes} MB, full after {after} calls: {done.returncode}, {found}")
    return failed, f"{kept} of {count} rings are whole, {failed} programs or rings came to harm"


def _shifted(real: Callable[[], int], off: int) -> int:
    return real() + off


def clock(count: int, seed: int) -> tuple[int, str]:
    """Let a rank's clock jump, with and without a fault, and compare the verdicts."""
    from ncclscope.ring import writer

    os.environ["NCCLSCOPE_NATIVE"] = "0"  # the core has a clock of its own
    draw, wrong, real = random.Random(seed), 0, writer._time_ns
    for _ in range(count):
        faulty, jump, at = draw.random() < 0.5, draw.choice((-3600, 3600)), draw.randrange(1, 30)
        jumping, odd = draw.randrange(4), draw.randrange(4)
        verdict = None
        with in_memory() as rings:
            cluster = Cluster(rings, 4, capacity=1024)
            for number in range(30):
                for rank in cluster.everybody:
                    off = jump * 10**9 if rank == jumping and number >= at else 0
                    writer._time_ns = partial(_shifted, real, off)
                    if not (faulty and (rank, number) == (odd, 20)):
                        cluster.post(
                            [rank], "tp:0", shape=(number + 1, 2), done=number < 20 or not faulty
                        )
            writer._time_ns = real
            verdict = cluster.verdict()
        named = verdict.cause.diverging_ranks if verdict.cause is not None else ()
        if named != ((odd,) if faulty else ()):
            wrong += 1
            print(
                f"rank {jumping} by {jump} s at {at}, fault of {odd if faulty else None}: {named}"
            )
    return wrong, f"{count} jobs, {wrong} verdicts wrong"
