"""One step off policy: two ranks train on the samples of before, three make the next ones."""

import sys
import time

import torch
import torch.distributed as dist

faulty = sys.argv[1:] == ["faulty"]  # long, and no mistake
SECONDS = 1.0 if faulty else 0.02
ITERATIONS, TRAINERS, WIDTH = 4, 2, 12
GENERATE = ((2, 12, 1), (9, 1, 3), (1, 2, 13), (3, 8, 1))
SAMPLES = ((3, 1, 2), (1, 5, 1), (4, 0, 2), (1, 1, 1))


class Trainer:
    def __init__(self, rank: int, world: int, pair: dist.ProcessGroup) -> None:
        self.rank, self.world, self.pair = rank, world, pair
        self.weights = torch.zeros(WIDTH)
        self.samples: list[torch.Tensor] = []

    def update(self) -> None:
        """Train on what there is; ranks have unequal numbers, so that they ask each other."""
        rounds = torch.tensor([len(self.samples)])
        dist.all_reduce(rounds, op=dist.ReduceOp.MAX, group=self.pair)
        for at in range(int(rounds)):
            gradient = self.samples[at] if at < len(self.samples) else torch.zeros(WIDTH)
            time.sleep(0.3 * SECONDS)
            dist.all_reduce(gradient, group=self.pair)
            self.weights += 0.01 * gradient

    def collect(self, iteration: int) -> None:
        """Take samples from the workers that are this rank's, as they announce them."""
        self.samples = []
        for worker in range(TRAINERS + self.rank, self.world, TRAINERS):
            count = torch.empty(1, dtype=torch.int64)
            dist.recv(count, src=worker)
            for _ in range(int(count)):
                sample = torch.empty(WIDTH)
                dist.recv(sample, src=worker)
                self.samples.append(sample)

    def iterate(self, iteration: int) -> None:
        dist.broadcast(self.weights, src=0)
        self.update()
        self.collect(iteration)


class Worker:
    def __init__(self, rank: int) -> None:
        self.rank, self.place = rank, rank - TRAINERS
        self.trainer = self.place % TRAINERS
        self.weights = torch.zeros(WIDTH)

    def iterate(self, iteration: int) -> None:
        dist.broadcast(self.weights, src=0)
        count = SAMPLES[iteration][self.place]
        samples = [torch.randn(WIDTH) for _ in range(count)]
        time.sleep(GENERATE[iteration][self.place] * SECONDS)  # a simulator answers
        dist.send(torch.tensor([count]), dst=self.trainer)
        for sample in samples:
            dist.send(sample, dst=self.trainer)


def main() -> None:
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(rank)
    pair = dist.new_group(list(range(TRAINERS)))
    role = Trainer(rank, world, pair) if rank < TRAINERS else Worker(rank)
    for iteration in range(ITERATIONS):
        role.iterate(iteration)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
