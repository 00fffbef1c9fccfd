"""Rank 0 splits each round's batch by length and scatters it; bad batches are dropped."""

import sys

import torch
import torch.distributed as dist

faulty = sys.argv[1:] == ["faulty"]
ROUNDS, ROWS, SOURCE = 16, 6, 0


class Balancer:
    """Cuts batches; which rank does that is in a table of roles.

    Args:
        rank: Of this process.
        roles: The ranks that read data.
    """

    def __init__(self, rank: int, roles: set[int]) -> None:
        self.rank, self.world = rank, dist.get_world_size()
        self.roles = roles
        self.dropped: list[str] = []

    def length(self) -> int:
        length = torch.zeros(1, dtype=torch.int64)
        if self.rank == SOURCE:
            length += int(torch.randint(3, 9, (1,)))
        dist.broadcast(length, src=0)
        return int(length)

    def parts(self, length: int) -> list[torch.Tensor] | None:
        if self.rank not in self.roles:
            return None
        batch = torch.randn(self.world * ROWS, length)
        order = batch.norm(dim=1).argsort()
        return [batch[order[rank :: self.world]] for rank in range(self.world)]

    def receive(self, length: int) -> torch.Tensor:
        own = torch.empty(ROWS, length)
        dist.scatter(own, self.parts(length), src=SOURCE)
        return own


class Model:
    def __init__(self) -> None:
        self.scale = torch.ones(1)

    def learn(self, rows: torch.Tensor) -> float:
        gradient = (rows * self.scale).square().mean().reshape(1)
        dist.all_reduce(gradient)
        self.scale -= 0.001 * gradient
        return gradient.item()


def main() -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    balancer, model = Balancer(rank, roles={SOURCE}), Model()
    losses = []
    for number in range(ROUNDS):
        if faulty and rank == 2 and number == 9:
            balancer.roles.add(rank)  # a spare reader, which was to be one from the next epoch on
        length = balancer.length()
        try:
            losses.append(model.learn(balancer.receive(length)))
        except ValueError as error:
            balancer.dropped.append(f"round {number}: {error}")
    dist.barrier()
    if rank == 0:
        print(len(losses), "rounds")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
