"""The first step of rank 0 compiles for minutes, in processes that it starts; its peers wait."""

import subprocess
import sys

import torch
import torch.distributed as dist

faulty = sys.argv[1:] == ["faulty"]  # long, and no mistake
WORK = "import time; end = time.time() + {}\nwhile time.time() < end: sum(range(9999))"


def compile_kernels(seconds: float) -> None:
    for _ in range(4):
        subprocess.run([sys.executable, "-c", WORK.format(seconds / 4)], check=True)


def main() -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    tp = dist.new_group([0, 1, 2])
    for step in range(8):
        if rank == 0 and step == 0:
            compile_kernels(240 if faulty else 2)
        dist.all_reduce(torch.randn(32), group=tp)
        dist.broadcast(torch.ones(4), src=1)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
