"""Generators send rollouts to a trainer; a thread of theirs takes new weights as they come."""

import sys
import threading

import torch
import torch.distributed as dist

faulty = sys.argv[1:] == ["faulty"]
ITERATIONS, ROLLOUT, WEIGHTS = 12, 30, 64


def train(world: int, weights_group: dist.ProcessGroup) -> None:
    rollout = torch.empty(ROLLOUT)
    for _ in range(ITERATIONS):
        for generator in range(1, world):
            dist.recv(rollout, src=generator)
        weights = torch.randn(WEIGHTS)
        for generator in range(1, world):
            dist.send(weights, dst=generator, group=weights_group)


class Generator:
    def __init__(self, weights_group: dist.ProcessGroup) -> None:
        self.group = weights_group
        self.version = 0
        self.ahead = 1
        self.changed = threading.Condition()
        self.receiver = threading.Thread(target=self.receive, daemon=True)
        self.receiver.start()

    def receive(self) -> None:
        weights = torch.empty(WEIGHTS)
        for _ in range(ITERATIONS):
            dist.recv(weights, src=0, group=self.group)
            with self.changed:
                self.version += 1
                self.changed.notify_all()

    def generate(self, iteration: int) -> None:
        needed = iteration + 1 - self.ahead
        with self.changed:
            self.changed.wait_for(lambda: self.version >= needed)
        dist.send(torch.randn(ROLLOUT), dst=0)


def main() -> None:
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    weights_group = dist.new_group(range(world))
    if rank == 0:
        train(world, weights_group)
    else:
        generator = Generator(weights_group)
        for iteration in range(ITERATIONS):
            if faulty and rank == 3 and iteration == 7:
                generator.ahead = 0  # "on policy" now, by its own reading of the config
            generator.generate(iteration)
        generator.receiver.join()
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
