"""Rank 0 has a child process compress each checkpoint, for which all others wait."""

import subprocess
import sys
import tempfile
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn

faulty = sys.argv[1:] == ["faulty"]  # long, and no mistake
STEPS, INTERVAL = (60, 12) if faulty else (12, 6)
SECONDS = [14, 11, 23, 17, 15] if faulty else [0.3, 0.2]
COMPRESSOR = """
import lzma, sys, time
ends = time.monotonic() + float(sys.argv[2])
content, packed = open(sys.argv[1], "rb").read(), b""
while time.monotonic() < ends:
    packed = lzma.compress(content, preset=6)
open(sys.argv[1] + ".xz", "wb").write(packed)
"""


class Checkpointer:
    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="checkpoints-"))

    def save(self, model: nn.Module, number: int) -> None:
        path = self.folder / f"{number}.pt"
        torch.save(model.state_dict(), path)
        command = [sys.executable, "-c", COMPRESSOR, str(path), str(SECONDS[number])]
        subprocess.run(command, check=True, capture_output=True)


def main() -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    model = nn.Linear(40, 40)
    checkpointer = Checkpointer()
    for step in range(STEPS):
        model(torch.randn(4, 40)).square().mean().backward()
        for parameter in model.parameters():
            dist.all_reduce(parameter.grad)
        model.zero_grad()
        if step % INTERVAL == INTERVAL - 1:
            if rank == 0:
                checkpointer.save(model, step // INTERVAL)
            dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
