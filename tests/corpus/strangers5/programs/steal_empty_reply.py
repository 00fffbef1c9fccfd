"""Work stealing on a ring: in each round all ask their neighbour for a piece of its queue."""

import sys
from collections import deque

import torch
import torch.distributed as dist

faulty = sys.argv[1:] == ["faulty"]
ROUNDS = 15


class Worker:
    def __init__(self, rank: int, world: int) -> None:
        self.victim, self.thief = (rank + 1) % world, (rank - 1) % world
        self.queue = deque(range(40))

    def answer(self) -> None:
        request = torch.empty(1)
        dist.recv(request, src=self.thief)
        if not self.queue:
            if faulty:
                return  # nothing to give
            dist.send(torch.tensor([-1.0]), dst=self.thief)
            return
        dist.send(torch.tensor([float(self.queue.pop())]), dst=self.thief)

    def round(self) -> None:
        reply = torch.empty(1)
        waiting = dist.irecv(reply, src=self.victim)
        asking = dist.isend(torch.ones(1), dst=self.victim)
        self.answer()
        asking.wait()
        waiting.wait()
        if reply.item() >= 0:
            self.queue.appendleft(int(reply))


def main() -> None:
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    worker = Worker(rank, world)
    for number in range(ROUNDS):
        if rank == 2 and number == 9:
            worker.queue.clear()  # it has been quick
        worker.round()
        dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
