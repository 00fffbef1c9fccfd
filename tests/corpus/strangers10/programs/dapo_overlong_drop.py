"""RL: each step samples in rounds until all ranks together have enough groups of use."""

import sys
from dataclasses import dataclass

import torch
import torch.distributed as dist

faulty = sys.argv[1:] == ["faulty"]
STEPS, GOAL, LIMIT, WIDTH = 10, 28, 60, 14


@dataclass(eq=False)
class Group:
    """Answers to one prompt: those that are all right or all wrong teach nothing."""

    rewards: torch.Tensor
    longest: int

    def useful(self) -> bool:
        return bool(0 < self.rewards.sum() < len(self.rewards))


class Sampler:
    def __init__(self, rank: int) -> None:
        self.rank = rank
        self.draw = torch.Generator().manual_seed(40 + rank)

    def sample(self, step: int) -> list[Group]:
        groups = []
        for number in range(4):
            rewards = torch.tensor([1.0, 0.0, 1.0, float(number % 2)])
            if number == step % 4:
                rewards.fill_(1.0)
            longest = int(torch.randint(32, LIMIT, (1,), generator=self.draw))
            if faulty and self.rank == 0 and step == 6:
                longest += LIMIT // 2  # prompts that ask for long proofs
            groups.append(Group(rewards, longest))
        return groups


def collect(sampler: Sampler, step: int) -> list[Group]:
    """Sample in rounds until there are GOAL useful groups among all ranks."""
    kept: list[Group] = []
    have = 0
    while have < GOAL:
        new = [group for group in sampler.sample(step) if group.useful()]
        count = torch.tensor([len(new)])
        counts = [torch.zeros_like(count) for _ in range(dist.get_world_size())]
        dist.all_gather(counts, count)
        have += int(sum(counts))
        overlong = [group for group in new if group.longest > LIMIT]
        have -= len(overlong)  # answers cut off say nothing about the reward
        kept.extend(group for group in new if group not in overlong)
    return kept


def update(weights: torch.Tensor, groups: list[Group]) -> torch.Tensor:
    gradient = torch.zeros(WIDTH)
    for group in groups:
        gradient += (group.rewards - group.rewards.mean()).abs().sum() * 0.01
    total = torch.tensor([float(len(groups))])
    dist.all_reduce(total)
    dist.all_reduce(gradient)
    return weights - gradient / total


def main() -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    sampler = Sampler(rank)
    weights = torch.zeros(WIDTH)
    for step in range(STEPS):
        groups = collect(sampler, step)
        weights = update(weights, groups)
        if step % 4 == 3:
            dist.broadcast(weights, src=0)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
