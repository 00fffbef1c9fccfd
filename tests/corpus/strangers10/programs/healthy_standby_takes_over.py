"""Four ranks train and a fifth is a spare: it takes the place of one that is to be serviced."""

import sys
import time

import torch
import torch.distributed as dist

faulty = sys.argv[1:] == ["faulty"]  # long, and no mistake
SCALE = 1.0 if faulty else 0.01
BEFORE, AFTER, SIZE = 8, 7, 12
LEAVER, STANDBY = 2, 4


def train(steps: int, weights: torch.Tensor, group: dist.ProcessGroup, slow: bool) -> None:
    for step in range(steps):
        time.sleep(SCALE * (2.5 if slow else 0.4 + 0.3 * (step % 3)))
        gradient = torch.rand(SIZE)
        dist.all_reduce(gradient, group=group)
        weights -= 0.01 * gradient


def stand_by(groups: list[dist.ProcessGroup]) -> None:
    """Wait for the weights and go on with them."""
    weights = torch.empty(SIZE)
    dist.recv(weights, src=LEAVER)
    time.sleep(SCALE * 4)  # load the data that the other one had
    train(AFTER, weights, groups[1], slow=False)


def leave(weights: torch.Tensor) -> None:
    dist.send(weights, dst=STANDBY)


def member(rank: int, groups: list[dist.ProcessGroup]) -> None:
    weights = torch.zeros(SIZE)
    train(BEFORE, weights, groups[0], slow=rank == LEAVER)
    if rank == LEAVER:
        leave(weights)
        return
    train(AFTER, weights, groups[1], slow=rank == 3)


def main() -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    first = dist.new_group([0, 1, 2, 3])
    second = dist.new_group([0, 1, 3, 4])
    groups = [first, second]
    if rank == STANDBY:
        stand_by(groups)
    else:
        member(rank, groups)
    if rank == LEAVER:
        return  # its host is switched off; no farewell to the others
    dist.barrier(group=second)


if __name__ == "__main__":
    main()
