"""Two threads, each with a group of its own; one rank's loader once uses the trainer's group."""

import threading

import torch
import torch.distributed as dist
from common import LARGE, SMALL, bad, begin, device


def train(group: dist.ProcessGroup) -> None:
    gradients = torch.ones(LARGE, device=device)
    for _ in range(10):
        dist.all_reduce(gradients, group=group)
        gradients /= gradients.max().item()


def load(group: dist.ProcessGroup, other: dist.ProcessGroup) -> None:
    stream = torch.cuda.Stream() if torch.cuda.is_available() else None
    with torch.cuda.stream(stream):
        batch = torch.ones(SMALL, device=device)
        for number in range(10):
            chosen = other if bad and number == 6 else group
            dist.broadcast(batch, 0, group=chosen)  # bad
            batch.max().item()


def main() -> None:
    begin()
    trainer, loader = dist.new_group(), dist.new_group()
    for group in (trainer, loader):
        dist.all_reduce(torch.ones(1, device=device), group=group)
    threads = [
        threading.Thread(target=train, args=(trainer,)),
        threading.Thread(target=load, args=(loader, trainer)),
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    dist.barrier()
    dist.destroy_process_group()


main()
