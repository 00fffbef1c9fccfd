"""Programs to examine: untraced ranks on gloo, each at the position that a test wants."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from ncclscope.attach.stacks import PySpy, find_py_spy
from ncclscope.model.snapshot import Stacks
from tests.support.programs import ROOT

PROGRAM = """
import fcntl, os, signal, socket, subprocess, sys, threading, time
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


class Batches(torch.utils.data.Dataset):
    def __len__(self):
        return 100

    def __getitem__(self, index):
        if index == 3 and os.environ["RANK"] == "1":
            load_batch()
        return torch.ones(4)


def train_on_batches():
    for batch in torch.utils.data.DataLoader(Batches(), batch_size=2, num_workers=1):
        reduce_step(batch)


def open_fifo():
    os.mkfifo(f"{store}.fifo")
    open(f"{store}.fifo")


def poll_for_a_file():
    while not os.path.exists(f"{store}.never"):
        time.sleep(0.05)


def ask_a_stopped_server():
    listener = socket.create_server(("127.0.0.1", 0))
    source = "import os, signal; os.kill(os.getpid(), signal.SIGSTOP)"
    server = subprocess.Popen([sys.executable, "-c", source], pass_fds=[listener.fileno()])
    os.waitid(os.P_PID, server.pid, os.WSTOPPED)
    port = listener.getsockname()[1]
    listener.close()
    connection = socket.create_connection(("127.0.0.1", port))
    connection.recv(1)


def enter_a_held_lock():
    lock = threading.Lock()
    lock.acquire()
    with lock:
        pass


def lock_a_locked_file():
    held = [open(f"{store}.lock", "w") for _ in range(2)]
    fcntl.flock(held[0], fcntl.LOCK_EX)
    fcntl.flock(held[1], fcntl.LOCK_EX)


def train(rank):
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 4))
    for _ in range(3 - (rank == 2)):
        model(torch.ones(1, 4)).sum().backward()
    dist.barrier()


def wait_for_different_things(rank, tensor):
    places = [None, open_fifo, poll_for_a_file, ask_a_stopped_server, enter_a_held_lock,
              lock_a_locked_file]
    if rank:
        places[rank]()
    dist.all_reduce(tensor, async_op=True).wait()


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
    if mode == "rest":
        load_batch()
    if mode == "places":
        wait_for_different_things(rank, tensor)
    if mode == "batches":
        train_on_batches()
    if mode == "ddp":
        train(rank)
    if mode == "group" and rank != 1:
        dist.new_group([0, 1, 2])
    while mode == "slow":
        reduce_step(tensor)
        if rank == 1:
            time.sleep(6)
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
        self.folder = folder
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

    def wait_until(self, arrived: Callable[[int, list[str]], bool]) -> None:
        """Wait until each rank is where it should be.

        Args:
            arrived: Called with rank and function names, the innermost first.
        """
        program = find_py_spy()
        assert program is not None
        deadline = time.monotonic() + 100
        while not all(arrived(r, names(s)) for r, s in enumerate(read(program, self.pids))):
            ended = [rank.poll() for rank in self.ranks]
            assert ended == [None] * len(ended), self.output()
            assert time.monotonic() < deadline, read(program, self.pids)
            time.sleep(0.3)

    def output(self) -> str:
        """Return what it printed."""
        self.log.seek(0)
        return self.log.read()

    def end(self) -> None:
        """Kill all ranks, stopped ones too."""
        for rank in self.ranks:
            children = self.children(rank.pid)
            with contextlib.suppress(ProcessLookupError):
                rank.send_signal(signal.SIGKILL)
            rank.wait(30)
            for child in children:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(child, signal.SIGKILL)
        self.log.close()

    def children(self, pid: int) -> list[int]:
        """Processes that a rank has started."""
        try:
            return [
                int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
            ]
        except OSError:
            return []


@contextlib.contextmanager
def job(mode: str, folder: Path, **fields: object) -> Iterator[Job]:
    """Run a job for as long as a test needs it."""
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
