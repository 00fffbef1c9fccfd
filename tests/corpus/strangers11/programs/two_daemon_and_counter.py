"""Two groups of three: checkpoints go through a daemon of each rank, counters through a file."""

import mmap
import pathlib
import struct
import subprocess
import sys
import time

import torch
import torch.distributed as dist

faulty = sys.argv[1:] == ["faulty"]
STEPS, EACH, WIDTH = 12, 3, 8

DAEMON = """
import sys

for line in sys.stdin:
    if line.strip() == "fill":
        sys.exit(1)  # no room on the disk
    sys.stdout.write("ok\\n")
    sys.stdout.flush()
"""
COUNTER = """
import mmap, os, struct, sys

with open(sys.argv[1], "r+b") as file:
    shared = mmap.mmap(file.fileno(), 16)
for step, _ in enumerate(sys.stdin, start=1):
    shared[:8] = struct.pack("q", 2 * step - 1)  # odd: under way
    if step == int(sys.argv[2]):
        os.kill(os.getpid(), 9)
    shared[8:] = struct.pack("d", 0.5 * step)
    shared[:8] = struct.pack("q", 2 * step)
"""


def start(source: str, *arguments: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-S", "-c", source, *arguments]
    pipe = subprocess.PIPE
    return subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True)


def say(child: subprocess.Popen[str], line: str) -> None:
    assert child.stdin is not None
    child.stdin.write(line + "\n")
    child.stdin.flush()


class Saver:
    """Starts its daemon with the first checkpoint, by an address of all of the group."""

    def __init__(self, rank: int, group: dist.ProcessGroup) -> None:
        self.rank, self.group = rank, group
        self.daemon: subprocess.Popen[str] | None = None

    def running(self) -> subprocess.Popen[str]:
        if self.daemon is None or self.daemon.poll() is not None:
            port = torch.tensor([29000 + self.rank])
            dist.broadcast(port, group=self.group, group_src=0)
            self.daemon = start(DAEMON, str(port.item()))
        return self.daemon

    def save(self, step: int) -> None:
        daemon = self.running()
        assert daemon.stdout is not None
        full = faulty and self.rank == 4 and step == 5
        say(daemon, "fill" if full else f"step-{step}")
        daemon.stdout.readline()
        if full:
            daemon.wait()


class Counter:
    """A value that a child writes and this process reads, with a number that is odd meanwhile."""

    def __init__(self, rank: int) -> None:
        path = pathlib.Path(f"counter-{rank}")
        path.write_bytes(bytes(16))
        with path.open("r+b") as file:
            self.shared = mmap.mmap(file.fileno(), 16)
        self.child = start(COUNTER, str(path), "10" if faulty and rank == 0 else "0")
        self.last = 0

    def next(self) -> float:
        say(self.child, "next")
        while True:
            (before,) = struct.unpack("q", self.shared[:8])
            (value,) = struct.unpack("d", self.shared[8:])
            (after,) = struct.unpack("q", self.shared[:8])
            if before == after > self.last and before % 2 == 0:
                self.last = after
                return float(value)
            time.sleep(0.002)


def main() -> None:
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    groups = [dist.new_group(list(range(at, at + EACH))) for at in range(0, world, EACH)]
    mine = groups[rank // EACH]
    saver, counter = Saver(rank, mine), Counter(rank)
    for step in range(STEPS):
        gradient = torch.full((WIDTH,), counter.next())
        dist.all_reduce(gradient, group=mine)
        if step % 3 == 2:
            saver.save(step)
            sizes = [torch.empty(1) for _ in range(EACH)]
            dist.all_gather(sizes, torch.tensor([float(step)]), group=mine)
    dist.barrier()
    for child in (saver.daemon, counter.child):
        if child is not None:
            child.kill()
            child.wait()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
