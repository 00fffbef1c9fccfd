"""One rank tokenizes for its neighbour, and the neighbour feeds all trainers."""

import itertools
import random
import sys
from collections import Counter

import torch
import torch.distributed as dist

faulty = sys.argv[1:] == ["faulty"]
STEPS, WIDTH = 14, 16
FEEDER, TOKENIZER = 1, 2


class Tokenizer:
    """Merges the most frequent pair until there are few enough tokens, in plain Python."""

    def __init__(self) -> None:
        self.random = random.Random(7)

    def document(self, step: int) -> list[int]:
        size = 400_000 if faulty and step == 9 else 200
        return [self.random.randrange(256) for _ in range(size)]

    def merge(self, tokens: list[int]) -> list[int]:
        merges = len(tokens) // 10
        for merge in range(merges):
            (pair, _), *_ = Counter(itertools.pairwise(tokens)).most_common(1)
            merged, at = [], 0
            while at < len(tokens):
                if tuple(tokens[at : at + 2]) == pair:
                    merged.append(256 + merge)
                    at += 2
                else:
                    merged.append(tokens[at])
                    at += 1
            tokens = merged
        return tokens

    def run(self, step: int) -> None:
        tokens = self.merge(self.document(step))
        dist.send(torch.tensor((tokens * WIDTH)[:WIDTH]), dst=FEEDER)


class Feeder:
    def run(self, step: int) -> torch.Tensor:
        tokens = torch.zeros(WIDTH, dtype=torch.int64)
        dist.recv(tokens, src=TOKENIZER)
        return tokens


def main() -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    trainers = dist.new_group([0, FEEDER, 3])
    tokenizer, feeder = Tokenizer(), Feeder()
    for step in range(STEPS):
        if rank == TOKENIZER:
            tokenizer.run(step)
            continue
        batch = torch.zeros(WIDTH, dtype=torch.int64)
        if rank == FEEDER:
            batch = feeder.run(step)
        dist.all_reduce(batch, group=trainers)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
