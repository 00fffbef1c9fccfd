"""Programs to look at: ranks on gloo that stand where a test wants them, and were never traced."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from ncclscope.capture import Stacks
from ncclscope.live.stacks import PySpy, find_py_spy
from tests.programs import ROOT

PROGRAM = """
import os, sys, time
import torch
import torch.distributed as dist

mode, store = sys.argv[1:]


def reduce_step(tensor):
    dist.all_reduce(tensor)


def gather_step(tensor):
    parts = [torch.empty_like(tensor) for _ in range(dist.get_world_size())]
    dist.all_gather(parts, tensor)


def load_batch():
    time.sleep(10_000)


def main():
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=size)
    tensor = torch.ones(4)
    for _ in range(5):
        reduce_step(tensor)
    while mode == "healthy":
        reduce_step(tensor)
        gather_step(tensor)
    if mode == "other" and rank == 2:
        gather_step(tensor)
    if mode == "halves" and rank > 1:
        gather_step(tensor)
    if mode == "asleep" and rank == 1:
        load_batch()
    reduce_step(tensor)
    reduce_step(tensor)


main()
"""


class Job:
    """Some ranks of one program.

    Args:
        mode: What the program does.
        folder: For its files.
        size: World size.
        **environment: Variables on top of the test's own.
    """

    def __init__(
        self,
        mode: str,
        folder: Path,
        size: int = 4,
        **environment: str,
    ) -> None:
        source = folder / "job.py"
        source.write_text(PROGRAM)
        path = os.pathsep.join(str(ROOT / part) for part in ("", "analyzers", "patches"))
        self.log = (folder / "log").open("w+")
        self.ranks = [
            subprocess.Popen(
                [sys.executable, str(source), mode, str(folder / "store")],
                env={
                    **os.environ,
                    "PYTHONPATH": path,
                    "OMP_NUM_THREADS": "1",
                    "RANK": str(rank),
                    "LOCAL_RANK": str(rank),
                    "WORLD_SIZE": str(size),
                    **environment,
                },
                stdout=self.log,
                stderr=subprocess.STDOUT,
            )
            for rank in range(size)
        ]

    @property
    def pids(self) -> list[int]:
        """By rank."""
        return [rank.pid for rank in self.ranks]

    def wait_until(self, stands: Callable[[int, list[str]], bool]) -> None:
        """Waits until each rank stands where it should.

        Args:
            stands: Told rank and function names, the innermost first.
        """
        program = find_py_spy()
        assert program is not None
        deadline = time.monotonic() + 100
        while not all(stands(r, names(s)) for r, s in enumerate(read(program, self.pids))):
            ended = [rank.poll() for rank in self.ranks]
            assert ended == [None] * len(ended), self.said()
            assert time.monotonic() < deadline, read(program, self.pids)
            time.sleep(0.1)

    def said(self) -> str:
        """What it printed."""
        self.log.seek(0)
        return self.log.read()

    def end(self) -> None:
        """Kills all ranks, stopped ones too."""
        for rank in self.ranks:
            with contextlib.suppress(ProcessLookupError):
                rank.send_signal(signal.SIGKILL)
            rank.wait(30)
        self.log.close()


@contextlib.contextmanager
def job(mode: str, folder: Path, **fields: object) -> Iterator[Job]:
    """Runs a job for as long as a test needs it."""
    running = Job(mode, folder, **fields)  # type: ignore[arg-type]
    try:
        yield running
    finally:
        running.end()


def read(program: str, pids: list[int]) -> list[Stacks]:
    found = PySpy(program).read(pids)
    return [found[pid] for pid in pids]


def names(stacks: Stacks) -> list[str]:
    """Function names of the main thread, the innermost first."""
    main = [thread for thread in stacks.threads if thread.name == "MainThread"]
    return [frame.name for frame in reversed(main[0].frames)] if main else []
