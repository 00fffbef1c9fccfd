"""A parameter server lets fast workers run ahead by two steps, and parks them beyond that."""

import sys
import time

import torch
import torch.distributed as dist

faulty = sys.argv[1:] == ["faulty"]
PULL, PUSH, LEAVE = 0.0, 1.0, 2.0
BOUND, STEPS = 2, 14
PACE = {1: 0.08, 2: 0.0, 3: 0.02, 4: 0.06}


class Server:
    def __init__(self, workers: list[int]) -> None:
        self.clocks = dict.fromkeys(workers, 0)
        self.parked: dict[int, tuple[int, int]] = {}
        self.weights = torch.zeros(8)

    def release(self) -> None:
        """Answer those that were parked and are no longer too far ahead."""
        slowest = min(self.clocks.values(), default=STEPS)
        for key, (worker, clock) in list(self.parked.items()):
            if clock <= slowest + BOUND:
                del self.parked[key]
                dist.send(self.weights, dst=worker)

    def run(self) -> None:
        while self.clocks:
            message = torch.empty(2)
            worker = dist.recv(message)
            kind, clock = message[0].item(), int(message[1].item())
            if kind == PULL:
                self.parked[clock if faulty else worker] = (worker, clock)
            elif kind == PUSH:
                self.clocks[worker] = clock
            else:
                del self.clocks[worker]
            self.release()


def work(rank: int) -> None:
    weights = torch.empty(8)
    for step in range(STEPS):
        dist.send(torch.tensor([PULL, step]), dst=0)
        dist.recv(weights, src=0)
        time.sleep(PACE[rank])
        dist.send(torch.tensor([PUSH, step + 1]), dst=0)
    dist.send(torch.tensor([LEAVE, STEPS]), dst=0)


def main() -> None:
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    if rank == 0:
        Server(list(range(1, world))).run()
    else:
        work(rank)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
