"""Leaders of two hosts agree on more than their followers see, and one leader counts alone."""

import sys
import time

import torch
import torch.distributed as dist

faulty = sys.argv[1:] == ["faulty"]  # long, and no mistake
SECONDS = 1.0 if faulty else 0.01
STEPS, WIDTH = 60, 16
HOSTS = ((0, 1), (2, 3, 4))
LEADERS = (1, 2)
CHIEF = 2


class Host:
    def __init__(self, rank: int) -> None:
        self.rank = rank
        groups = [dist.new_group(list(host)) for host in HOSTS]
        self.leaders = dist.new_group(list(LEADERS))
        self.alone = dist.new_group([CHIEF])
        self.number = next(at for at, host in enumerate(HOSTS) if rank in host)
        self.group, self.leader = groups[self.number], LEADERS[self.number]

    def agree(self, step: int) -> torch.Tensor:
        """Return the rate: the leaders converge on it in as many rounds as they need."""
        rate = torch.tensor([0.1 / (1 + step)])
        for _ in range(3 + step % 5):
            dist.all_reduce(rate, op=dist.ReduceOp.MIN, group=self.leaders)
        if self.rank == CHIEF:
            for _ in range(4 * (step % 3)):
                dist.all_reduce(rate, group=self.alone)
        return rate

    def step(self, step: int) -> None:
        gradient = torch.rand(WIDTH)
        dist.reduce(gradient, dst=self.leader, group=self.group)
        rate = torch.zeros(1)
        if self.rank == self.leader:
            dist.all_reduce(gradient, group=self.leaders)
            rate = self.agree(step)
            if self.rank == CHIEF and step % 9 == 8:
                time.sleep(14 * SECONDS)  # a report is sent
        dist.broadcast(gradient, src=self.leader, group=self.group)
        dist.broadcast(rate, src=self.leader, group=self.group)
        time.sleep(0.3 * SECONDS)


def main() -> None:
    dist.init_process_group("gloo")
    host = Host(dist.get_rank())
    for step in range(STEPS):
        host.step(step)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
