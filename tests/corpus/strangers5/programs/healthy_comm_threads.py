"""A thread of each rank keeps averages over a group of its own; the main threads work unevenly."""

import sys
import threading
import time

import torch
import torch.distributed as dist

faulty = sys.argv[1:] == ["faulty"]  # long, and no mistake
STEPS, LONG, TICKS = (6, 13.0, 300) if faulty else (3, 0.1, 20)


class Averager(threading.Thread):
    """Averages each so often, for a number of times; the last half of them has long pauses."""

    def __init__(self, group: dist.ProcessGroup) -> None:
        super().__init__()
        self.group = group

    def run(self) -> None:
        for tick in range(TICKS):
            dist.all_reduce(torch.randn(8), group=self.group)
            time.sleep(0.02 if tick < TICKS - 4 else LONG / 2)


def main() -> None:
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    averager = Averager(dist.new_group(list(range(world))))
    averager.start()
    for step in range(STEPS):
        if step % world == rank:
            time.sleep(LONG)
        gradient = torch.randn(40)
        dist.all_reduce(gradient)
        dist.broadcast(gradient, src=step % world)
    averager.join()
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
