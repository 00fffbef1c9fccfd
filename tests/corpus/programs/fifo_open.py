"""Read the weights of each step from a file that another service writes."""

import os
import sys
import tempfile
from pathlib import Path

import torch
import torch.distributed as dist

faulty = sys.argv[1:] == ["faulty"]


def load(path: Path) -> float:
    with path.open() as stream:
        return float(stream.read())


def main() -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    folder = Path(tempfile.mkdtemp())
    for step in range(10):
        path = folder / f"weight-{step}"
        if faulty and rank == 1 and step == 6:
            os.mkfifo(path)
        else:
            path.write_text("0.5")
        weight = torch.tensor([load(path)])
        dist.all_reduce(weight)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
