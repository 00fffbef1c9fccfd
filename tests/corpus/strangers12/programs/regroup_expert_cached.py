"""Experts are moved before new groups are made: sender, receiver and planner in a chain."""

import sys

import torch
import torch.distributed as dist

faulty = sys.argv[1:] == ["faulty"]
ROUNDS, WIDTH = 12, 4096
OWNER, TARGET, PLANNER = 1, 2, 3


class Experts:
    def __init__(self, rank: int) -> None:
        self.rank = rank
        self.weights = torch.full((WIDTH,), float(rank))
        self.cache: dict[int, torch.Tensor] = {}

    def expert_of(self, round_: int) -> int:
        """Return which expert moves: a new one each round."""
        return 5 if faulty and round_ == 8 else round_

    def move(self, round_: int) -> None:
        expert = self.expert_of(round_)
        if self.rank == OWNER:
            sent = dist.isend(self.weights, dst=TARGET)
            sent.wait()
            dist.send(torch.tensor([expert]), dst=PLANNER)
        elif self.rank == TARGET:
            if expert not in self.cache:
                weights = torch.empty(WIDTH)
                dist.irecv(weights, src=OWNER).wait()
                self.cache[expert] = weights
        elif self.rank == PLANNER:
            dist.recv(torch.zeros(1, dtype=torch.int64), src=OWNER)


class Layer:
    """Its tokens are summed over a group that is made again after each move."""

    def __init__(self, world: int) -> None:
        self.world = world
        self.group: dist.ProcessGroup | None = None

    def regroup(self) -> None:
        if self.group is not None:
            dist.destroy_process_group(self.group)
        self.group = dist.new_group(list(range(self.world)))

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        dist.all_reduce(tokens, group=self.group)
        return tokens / self.world


def main() -> None:
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    experts, layer = Experts(rank), Layer(world)
    for round_ in range(ROUNDS):
        experts.move(round_)
        layer.regroup()
        for _ in range(3):
            layer.forward(torch.rand(64))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
