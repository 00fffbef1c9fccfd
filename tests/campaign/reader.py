"""Campaigns against readers: many old rings, many processes."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from ncclscope import Tracer, diagnose, open_run
from ncclscope.ring import layout
from tests.campaign.directory import in_memory
from tests.support.cluster import Cluster
from tests.support.rings import set_word

__all__ = ["old_rings", "processes"]


def old_rings(count: int, seed: int) -> tuple[int, str]:
    """Read a directory in which the rings of many jobs lie that are over."""
    with in_memory() as rings:
        seeds = []
        for number in range(50):
            cluster = Cluster(rings / f"job-{number}", 2, capacity=1024)
            cluster.history(count=20)
            for tracer in cluster.tracers:
                tracer.close()
            seeds += [_of_yesterday(Path(tracer.path).read_bytes()) for tracer in cluster.tracers]
        everything = rings / "all"
        everything.mkdir()
        for number in range(count):
            _copy(seeds[number % len(seeds)], everything / f"old-{number}.ring")
        hanging = Cluster(everything, 4, capacity=1024)
        hanging.history(count=20)
        hanging.post([0, 1, 3], "tp:0", done=False)
        took, failed = {}, 0
        for name, words in (("diagnose", ["diagnose"]), ("watch", ["watch", "--once"])):
            began = time.monotonic()
            done = subprocess.run(
                [sys.executable, "-m", "ncclscope", *words, everything],
                capture_output=True,
                text=True,
                check=False,
            )
            took[name] = time.monotonic() - began
            failed += done.returncode not in (0, 1, 3)
            print(f"{name}: status {done.returncode}: {(done.stdout or done.stderr)[:300]}")
    output = ", ".join(f"{name} {seconds:.1f} s" for name, seconds in took.items())
    return failed, f"{count} old rings: {output}"


def _of_yesterday(ring: bytes) -> bytes:
    """Return a ring whose process wrote its last heartbeat a day earlier."""
    older = bytearray(ring)
    heartbeat = int.from_bytes(ring[layout.HEADER_HEARTBEAT :][:8], "little")
    set_word(older, layout.HEADER_HEARTBEAT, heartbeat - 86_400 * 10**9)
    return bytes(older)


def _copy(ring: bytes, target: Path) -> None:
    """Write a ring without the pages that are empty, which take no memory."""
    page = 4096
    with target.open("wb") as file:
        file.truncate(len(ring))
        for start in range(0, len(ring), page):
            if any(ring[start : start + page]):
                file.seek(start)
                file.write(ring[start : start + page])


def processes(count: int, seed: int) -> tuple[int, str]:
    """Record in as many processes, one of which leaves out a call, and find it."""
    odd = random.Random(seed).randrange(count)
    with in_memory() as rings:
        began = time.monotonic()
        for first in range(0, count, 50):
            ranks = range(first, min(first + 50, count))
            children = [_in_child(partial(_record, rings, rank, count, odd)) for rank in ranks]
            failed = sum(os.waitpid(child, 0)[1] != 0 for child in children)
        recorded = time.monotonic() - began
        began = time.monotonic()
        cause = diagnose(open_run(rings)).cause
        took = time.monotonic() - began
        right = cause is not None and cause.diverging_ranks == (odd,)
    return failed + (not right), (
        f"{count} processes in {recorded:.0f} s, verdict in {took:.1f} s, "
        f"{'right' if right else f'wrong: {cause}'}"
    )


def _record(rings: Path, rank: int, size: int, odd: int) -> None:
    tracer = Tracer(rings, rank=rank, world_size=size, capacity=1024)
    comm = tracer.communicator("world", "world", range(size), "gloo")
    for number in range(20):
        if (rank, number) != (odd, 11):
            shape = (number + 1,)
            place = tracer.record(comm, "all_reduce", shape=shape, dtype="float32", redop="sum")
            if number < 11:
                tracer.complete(place)


def _in_child(work: Callable[[], None]) -> int:
    child = os.fork()
    if child == 0:
        try:
            work()
            os._exit(0)
        except BaseException as error:
            print(error, file=sys.stderr)
            os._exit(1)
    return child
