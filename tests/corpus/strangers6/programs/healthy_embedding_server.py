"""Rank 3 looks embeddings up for its clients, which ask at long and irregular intervals."""

import sys
import time

import torch
import torch.distributed as dist

faulty = sys.argv[1:] == ["faulty"]  # long, and no mistake
SERVER, UNIT = 3, 1.0 if faulty else 0.01
THINKING = {0: [3, 17, 5, 18, 9, 20], 1: [15, 4, 16, 13, 14, 8], 2: [1, 1, 22, 2, 19, 20],
            4: [16, 15, 2, 17, 6, 12]}  # fmt: skip
ROUNDS = 6 if faulty else 3


def serve(requests: int) -> None:
    table = torch.randn(100, 12)
    wanted = torch.empty(4, dtype=torch.int64)
    for _ in range(requests):
        client = dist.recv(wanted)
        dist.send(table[wanted], dst=client)


class Client:
    def __init__(self, rank: int) -> None:
        self.rank = rank

    def think(self, number: int) -> None:
        """Simulate an episode; most of it is spent in another program."""
        time.sleep(UNIT * THINKING[self.rank][number])

    def look_up(self) -> torch.Tensor:
        dist.send(torch.randint(100, (4,)), dst=SERVER)
        found = torch.empty(4, 12)
        dist.recv(found, src=SERVER)
        return found


def main() -> None:
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    if rank == SERVER:
        serve(requests=(world - 1) * ROUNDS * 2)
    else:
        client = Client(rank)
        for number in range(ROUNDS):
            client.look_up()
            client.think(number)
            client.look_up()
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
