"""An elastic job: when a member is lost, all meet again in a group of the next generation."""

import datetime
import os
import sys
import time

import torch
import torch.distributed as dist

faulty = sys.argv[1:] == ["faulty"]
STEPS = 18
LOST_AT = (5, 11)  # steps in which the agent says that a node was replaced


class WorkerLost(Exception):
    pass


class Membership:
    def __init__(self, rank: int, world: int) -> None:
        self.rank, self.world = rank, world
        self.generation = 0
        self.announced: set[int] = set()
        self.base = dist.TCPStore(
            os.environ["MASTER_ADDR"],
            int(os.environ["MASTER_PORT"]),
            world,
            is_master=rank == 0,
            timeout=datetime.timedelta(hours=1),
        )

    def on_lost(self, step: int) -> None:
        self.announced.add(step)
        self.generation += 1

    def join(self) -> None:
        store = dist.PrefixStore(f"generation-{self.generation}", self.base)
        dist.init_process_group("gloo", store=store, rank=self.rank, world_size=self.world)

    def leave(self) -> None:
        dist.destroy_process_group()


class Trainer:
    def __init__(self, membership: Membership) -> None:
        self.membership = membership
        self.weights = torch.zeros(30)
        self.step = 0

    def check(self) -> None:
        if self.step in LOST_AT and self.step not in self.membership.announced:
            self.membership.on_lost(self.step)
            raise WorkerLost(self.step)

    def train(self) -> None:
        while self.step < STEPS:
            self.check()
            gradient = torch.randn(30)
            dist.all_reduce(gradient)
            self.weights -= 0.1 * gradient
            losses = [torch.empty(1) for _ in range(self.membership.world)]
            dist.all_gather(losses, torch.rand(1))
            self.step += 1

    def run(self) -> None:
        while self.step < STEPS:
            self.membership.join()
            dist.broadcast(self.weights, src=0)
            try:
                self.train()
            except WorkerLost as error:
                if faulty and self.membership.rank == 1 and self.step == 11:
                    # The older handler is still registered and counts as well
                    self.membership.on_lost(error.args[0])
            dist.barrier()
            self.membership.leave()


def main() -> None:
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    membership = Membership(rank, world)
    Trainer(membership).run()
    membership.base.add("ended", 1)
    if rank == 0:
        while membership.base.add("ended", 0) < world:
            time.sleep(0.05)


if __name__ == "__main__":
    main()
