"""Rank 0 hands plans and adapters to its workers through a ring of slots in shared memory."""

import json
import mmap
import pathlib
import sys
import time
from typing import Any

import torch
import torch.distributed as dist

faulty = sys.argv[1:] == ["faulty"]
SLOTS, ROOM, STEPS, WIDTH = 6, 512, 40, 8
FILE = pathlib.Path("ring.shm")


class Ring:
    """Each slot has a byte that it is written, and one of each reader that it is free again."""

    def __init__(self, readers: int) -> None:
        self.readers = readers
        self.size = 1 + readers + ROOM
        with FILE.open("r+b") as file:
            self.memory = mmap.mmap(file.fileno(), SLOTS * self.size)
        self.turn = 0

    def slot(self) -> int:
        start = self.turn % SLOTS * self.size
        self.turn += 1
        return start

    def write(self, message: dict[str, Any]) -> None:
        start, memory = self.slot(), self.memory
        flags = slice(start + 1, start + 1 + self.readers)
        while memory[start] and memory[flags] != b"\1" * self.readers:
            time.sleep(0.002)
        memory[start] = 0
        text = json.dumps(message).encode().ljust(ROOM)
        memory[flags.stop : flags.stop + ROOM] = text
        memory[flags] = b"\0" * self.readers
        memory[start] = 1

    def read(self, reader: int) -> tuple[int, memoryview]:
        start, memory = self.slot(), self.memory
        while not memory[start] or memory[start + 1 + reader]:
            time.sleep(0.002)
        payload = start + 1 + self.readers
        return start, memoryview(memory)[payload : payload + ROOM]

    def release(self, start: int, reader: int) -> None:
        self.memory[start + 1 + reader] = 1


class Worker:
    def __init__(self, ring: Ring, rank: int, spare: int) -> None:
        self.ring, self.reader, self.spare = ring, rank - 1, spare
        self.adapters: dict[str, bytes | memoryview] = {}
        self.slots: dict[str, int] = {}

    def load(self, name: str, view: memoryview, slot: int) -> None:
        if self.spare < len(view):  # no room for a copy: it stays where it is until it is used
            self.adapters[name], self.slots[name] = view, slot
            return
        self.spare -= len(view)
        self.adapters[name] = bytes(view)
        self.ring.release(slot, self.reader)

    def use(self, name: str) -> None:
        self.adapters[name] = bytes(self.adapters[name])
        if name in self.slots:
            self.ring.release(self.slots.pop(name), self.reader)

    def run(self) -> None:
        while True:
            slot, view = self.ring.read(self.reader)
            message = json.loads(bytes(view))
            if message["do"] == "load":
                self.load(message["name"], view, slot)
                continue
            self.ring.release(slot, self.reader)
            if message["do"] == "stop":
                return
            if message.get("adapter"):
                self.use(message["adapter"])
            dist.all_reduce(torch.rand(WIDTH))


def drive(ring: Ring) -> None:
    for step in range(STEPS):
        if step % 10 == 5:
            ring.write({"do": "load", "name": f"adapter-{step // 10}"})
        used = f"adapter-{step // 10}" if step in (7, 17, 37) else ""
        ring.write({"do": "step", "adapter": used})
        dist.all_reduce(torch.rand(WIDTH))
    ring.write({"do": "stop"})


def main() -> None:
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    if rank == 0:
        FILE.write_bytes(bytes(SLOTS * (world + ROOM)))
    dist.barrier()
    ring = Ring(readers=world - 1)
    small = faulty and rank == 2
    if rank == 0:
        drive(ring)
    else:
        Worker(ring, rank, spare=2 * ROOM if small else 64 * ROOM).run()
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
