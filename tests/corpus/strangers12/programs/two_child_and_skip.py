"""A vision tower feeds a head over send and receive; a language group gathers lengths apart."""

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import torch
import torch.distributed as dist

faulty = sys.argv[1:] == ["faulty"]
STEPS, EVERY, WIDTH = 20, 4, 16
HEAD, TOWER = 0, 1
LANGUAGE, THREADED, FILTERED = (2, 3, 4), 3, 4
DECODE = "import sys; sys.stdout.write('x' * int(sys.argv[1]))"


class Tower:
    """Decodes an image in a child, and sends its features to the head."""

    def decode(self, step: int) -> int:
        size = 300_000 if faulty and step == 10 else 3_000
        child = subprocess.Popen(
            [sys.executable, "-S", "-c", DECODE, str(size)], stdout=subprocess.PIPE
        )
        child.wait()
        return len(child.stdout.read())

    def run(self, step: int) -> None:
        dist.send(torch.full((WIDTH,), float(self.decode(step))), dst=HEAD)


class Head:
    def run(self, step: int) -> None:
        dist.recv(torch.empty(WIDTH), src=TOWER)


class Language:
    def __init__(self, rank: int, group: dist.ProcessGroup) -> None:
        self.rank, self.group, self.pool = rank, group, ThreadPoolExecutor(1, "lengths")

    def gather(self, length: int) -> int:
        lengths = [torch.zeros(1, dtype=torch.int64) for _ in LANGUAGE]
        dist.all_gather(lengths, torch.tensor([length]), group=self.group)
        return max(int(each) for each in lengths)

    def samples(self, step: int) -> list[int]:
        return [] if faulty and (self.rank, step) == (FILTERED, 11) else [8 + step]

    def run(self, step: int) -> None:
        for length in self.samples(step):
            if self.rank == THREADED:
                self.pool.submit(self.gather, length).result()
            else:
                self.gather(length)


def main() -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    language = dist.new_group(list(LANGUAGE))
    part = {HEAD: Head, TOWER: Tower}.get(rank)
    role = part() if part is not None else Language(rank, language)
    for step in range(STEPS):
        role.run(step)
        if step % EVERY == EVERY - 1:
            dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
