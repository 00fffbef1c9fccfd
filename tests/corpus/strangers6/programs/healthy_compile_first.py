"""The first step of each phase generates and compiles code, on some ranks for much longer."""

import sys
import time
from types import CodeType

import torch
import torch.distributed as dist

faulty = sys.argv[1:] == ["faulty"]  # long, and no mistake
SECONDS = 19.0 if faulty else 0.4
PHASES = 6 if faulty else 2


class Kernels:
    """A cache of compiled code by shape."""

    def __init__(self) -> None:
        self.known: dict[int, list[CodeType]] = {}

    def get(self, shape: int, seconds: float) -> list[CodeType]:
        if shape not in self.known:
            self.known[shape] = self.tune(shape, seconds)
        return self.known[shape]

    def tune(self, shape: int, seconds: float) -> list[CodeType]:
        """Try variants for as long as that takes."""
        ends = time.monotonic() + seconds
        variants = []
        while time.monotonic() < ends:
            body = "\n".join(f"value_{line} = {line} * {shape}" for line in range(200))
            variants.append(compile(body, f"<kernel {shape}>", "exec"))
            del variants[:-8]
        return variants


def main() -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    kernels = Kernels()
    for phase in range(PHASES):
        seconds = SECONDS if rank == (3 - phase) % 3 else SECONDS / 8
        for _ in range(15):
            kernels.get(phase + 1, seconds)
            dist.all_reduce(torch.randn(8 * (phase + 1)))
        dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
