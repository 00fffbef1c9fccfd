"""Three ranks train and write checkpoints; rank 3 looks for them and takes long for each."""

import os
import sys
import tempfile
import time

import torch
import torch.distributed as dist

faulty = sys.argv[1:] == ["faulty"]  # long, and no mistake
CHECKPOINTS, TRAIN, EVALUATE = (4, 3.0, 21.0) if faulty else (2, 0.1, 0.3)


def path(number: int) -> str:
    return os.path.join(tempfile.gettempdir(), f"checkpoint-{number}.pt")


def train(rank: int, group: dist.ProcessGroup) -> None:
    weights = torch.zeros(64)
    for number in range(CHECKPOINTS):
        for _ in range(30):
            gradient = torch.randn(64)
            dist.all_reduce(gradient, group=group)
            weights -= 0.1 * gradient
            time.sleep(TRAIN / 30)
        if rank == 0:
            torch.save(weights, path(number) + ".part")
            os.rename(path(number) + ".part", path(number))


def evaluate() -> float:
    best = 0.0
    for number in range(CHECKPOINTS):
        while not os.path.exists(path(number)):
            time.sleep(0.2)
        weights = torch.load(path(number))
        time.sleep(EVALUATE)  # by a service outside
        best = max(best, weights.norm().item())
    return best


def main() -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    group = dist.new_group([0, 1, 2])
    best = torch.zeros(1)
    if rank < 3:
        train(rank, group)
    else:
        best += evaluate()
    dist.broadcast(best, src=3)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
