"""Clients send updates to rank 2, which takes them as they come, and hands the average out."""

import sys

import torch
import torch.distributed as dist

faulty = sys.argv[1:] == ["faulty"]
SERVER, ROUNDS, SIZE = 2, 14, 40


class Client:
    def __init__(self, rank: int) -> None:
        self.rank = rank
        self.scale = 1.0

    def update(self) -> torch.Tensor:
        return self.scale * torch.randn(SIZE)

    def report(self) -> None:
        update = self.update()
        if update.abs().max() == 0:
            return  # there is nothing to tell
        dist.send(update, dst=SERVER)


def average(clients: int) -> torch.Tensor:
    total, update = torch.zeros(SIZE), torch.empty(SIZE)
    for _ in range(clients):
        dist.recv(update)
        total += update
    return total / clients


def main() -> None:
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    client = Client(rank)
    weights = torch.zeros(SIZE)
    for number in range(ROUNDS):
        if rank == SERVER:
            weights += average(world - 1)
        else:
            if faulty and rank == 4 and number == 9:
                client.scale = 0.0  # its learning rate has decayed to nothing
            client.report()
        dist.broadcast(weights, src=SERVER)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
