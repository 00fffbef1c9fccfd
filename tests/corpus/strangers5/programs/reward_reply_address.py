"""Rank 1 scores texts for all others: it takes one of each and then answers them."""

import sys

import torch
import torch.distributed as dist

faulty = sys.argv[1:] == ["faulty"]
ROUNDS = 12


class RewardServer:
    def __init__(self, clients: int) -> None:
        self.clients = clients

    def serve(self, number: int) -> None:
        batch = []
        for _ in range(self.clients):
            rows = torch.empty(8)
            client = dist.recv(rows)
            batch.append((client, rows))
        if faulty and number == 7:
            for _, rows in batch:  # the way for a batch that is in the cache
                dist.send(rows.mean().reshape(1), dst=client)
            return
        for client, rows in batch:
            dist.send(rows.mean().reshape(1), dst=client)


def ask(rows: torch.Tensor) -> float:
    score = torch.empty(1)
    dist.send(rows, dst=1)
    dist.recv(score, src=1)
    return score.item()


def main() -> None:
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    server = RewardServer(world - 1) if rank == 1 else None
    for number in range(ROUNDS):
        if server:
            server.serve(number)
        else:
            ask(torch.randn(8))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
