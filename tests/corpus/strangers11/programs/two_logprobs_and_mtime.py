"""Ranks 0 to 3 decode together, ranks 4 to 7 roll out with weights that they read from a file."""

import os
import pathlib
import shutil
import sys
import time

import torch
import torch.distributed as dist

faulty = sys.argv[1:] == ["faulty"]
EACH, STEPS, WIDTH = 4, 14, 6


class Decoder:
    """Requests come and go; some want the probabilities of all tokens as well."""

    def __init__(self, rank: int, group: dist.ProcessGroup) -> None:
        self.rank, self.group = rank, group
        self.running: set[int] = set()
        self.wanting: set[int] = set()

    def admit(self, step: int) -> None:
        self.running.add(step)
        if step % 3 == 0:
            self.wanting.add(step)

    def finish(self, request: int, *, aborted: bool) -> None:
        self.running.discard(request)
        if not aborted or not faulty or self.rank != 1:
            self.wanting.discard(request)

    def step(self, step: int) -> None:
        self.admit(step)
        logits = torch.rand(WIDTH)
        dist.all_reduce(logits, group=self.group)
        if self.wanting:
            parts = [torch.empty(WIDTH) for _ in range(EACH)]
            dist.all_gather(parts, logits.log_softmax(-1), group=self.group)
        self.finish(step, aborted=step == 6)


class Weights:
    """A file of weights that the first rank of a group writes, with a copy of each version."""

    def __init__(self, *, by_time: bool) -> None:
        self.by_time = by_time
        self.file = pathlib.Path("weights.txt")
        self.seen, self.version = 0, -1

    def write(self, version: int, back_to: int | None) -> None:
        new = pathlib.Path("new.txt")
        if back_to is None:
            copy = pathlib.Path(f"weights-{version}.txt")
            copy.write_text(f"{version} {version}\n")
            at = 1_000_000_000 + version
            os.utime(copy, (at, at))
            shutil.copy2(copy, new)
        else:
            shutil.copy2(f"weights-{back_to}.txt", new)
            with new.open("r+") as file:
                file.write(f"{version} {back_to}\n")
            shutil.copystat(f"weights-{back_to}.txt", new)
        new.rename(self.file)

    def changed(self, version: int) -> bool:
        if not self.file.exists():
            return False
        if self.by_time and self.file.stat().st_mtime_ns <= self.seen:
            return False
        self.version = int(self.file.read_text().split()[0])
        return self.version >= version

    def wait(self, version: int) -> None:
        while not self.changed(version):
            time.sleep(0.01)
        self.seen = self.file.stat().st_mtime_ns


def roll_out(rank: int, group: dist.ProcessGroup) -> None:
    weights = Weights(by_time=faulty and rank == 6)
    for version in range(STEPS):
        if rank == EACH:
            weights.write(version, back_to=5 if version == 9 else None)
        weights.wait(version)
        dist.all_reduce(torch.rand(WIDTH), group=group)


def main() -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    groups = [dist.new_group(range(EACH)), dist.new_group(range(EACH, 2 * EACH))]
    group = groups[rank // EACH]
    if rank < EACH:
        decoder = Decoder(rank, group)
        for step in range(STEPS):
            decoder.step(step)
    else:
        roll_out(rank, group)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
