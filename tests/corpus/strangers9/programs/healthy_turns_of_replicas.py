"""Two tensor parallel pairs and a spare: the replicas take turns in evaluating, others go on."""

import sys
import time

import torch
import torch.distributed as dist

faulty = sys.argv[1:] == ["faulty"]  # long, and no mistake
SECONDS = 1.0 if faulty else 0.01
ROUNDS = 9


class Replica:
    def __init__(self, rank: int, pairs: list[dist.ProcessGroup], data: dist.ProcessGroup) -> None:
        self.rank, self.data = rank, data
        self.number = rank // 2
        self.pair = pairs[self.number]

    def train(self) -> None:
        for _ in range(3):
            rows = torch.randn(16)
            dist.all_reduce(rows, group=self.pair)
        dist.all_reduce(torch.randn(16), group=self.data)

    def evaluate(self, number: int) -> float:
        """Between 1 and 5 batches, and a slow one on one member of the pair."""
        score = torch.zeros(1)
        for batch in range(1 + number % 5):
            if batch == 0 and self.rank % 2 == number % 2:
                time.sleep(SECONDS * (11 + number % 4 * 2))
            dist.all_reduce(score, group=self.pair)
        return score.item()


def main() -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    pairs = [dist.new_group([0, 1]), dist.new_group([2, 3])]
    data = dist.new_group([0, 1, 2, 3])
    replica = Replica(rank, pairs, data) if rank < 4 else None
    for number in range(ROUNDS):
        if replica:
            replica.train()
            if number % 2 == replica.number:
                replica.evaluate(number)
        else:
            time.sleep(SECONDS * 0.3)  # watches the disk
        dist.all_reduce(torch.ones(1))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
