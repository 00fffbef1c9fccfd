"""A writer runs ahead of its readers in shared memory until one of them pauses for long."""

import mmap
import pathlib
import struct
import sys
import time

import torch
import torch.distributed as dist

faulty = sys.argv[1:] == ["faulty"]  # long, and no mistake
SCALE = 1.0 if faulty else 0.01
SLOTS, MESSAGES = 4, 60
FILE = pathlib.Path("counters.shm")


class Ring:
    """Counters of what has been written, and of what each reader has read."""

    def __init__(self, world: int) -> None:
        with FILE.open("r+b") as file:
            self.memory = mmap.mmap(file.fileno(), 8 * (world + SLOTS))
        self.world = world

    def load(self, place: int) -> int:
        return int(struct.unpack_from("q", self.memory, 8 * place)[0])

    def store(self, place: int, value: int) -> None:
        struct.pack_into("q", self.memory, 8 * place, value)

    def write(self, value: int) -> None:
        count = self.load(0)
        while count - min(map(self.load, range(1, self.world))) >= SLOTS:
            time.sleep(0.01)
        self.store(self.world + count % SLOTS, value)
        self.store(0, count + 1)

    def read(self, reader: int) -> int:
        count = self.load(reader)
        while self.load(0) == count:
            time.sleep(0.01)
        value = self.load(self.world + count % SLOTS)
        self.store(reader, count + 1)
        return value


class Reader:
    def __init__(self, rank: int, ring: Ring) -> None:
        self.rank, self.ring = rank, ring
        self.total = 0

    def compact(self, number: int) -> None:
        """Put what has come so far in order, which one reader does at a time."""
        time.sleep(SCALE * (11 + number % 3))

    def run(self) -> None:
        for number in range(MESSAGES):
            self.total += self.ring.read(self.rank)
            if number % 20 == 10 and number // 20 % 3 + 1 == self.rank:
                self.compact(number // 20)
            if number % 20 == 19:
                dist.all_reduce(torch.tensor([float(self.total)]))


def drive(ring: Ring) -> None:
    for number in range(MESSAGES):
        ring.write(number)
        if number % 20 == 19:
            dist.all_reduce(torch.zeros(1))


def main() -> None:
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    if rank == 0:
        FILE.write_bytes(bytes(8 * (world + SLOTS)))
    dist.barrier()
    ring = Ring(world)
    if rank == 0:
        drive(ring)
    else:
        Reader(rank, ring).run()
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
