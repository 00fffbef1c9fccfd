"""Trainers 0 to 2 and generators 3 and 4: new weights are broadcast under their names."""

import sys

import torch
import torch.distributed as dist

faulty = sys.argv[1:] == ["faulty"]
ITERATIONS, SIZE, LEARNER = 7, 40, 0
TRAINERS, GENERATORS = [0, 1, 2], [3, 4]
NAMES = ["embedding", "layers.0", "layers.1", "head", "norm"]


class Trainer:
    def __init__(self, rank: int, trainers: dist.ProcessGroup, weights: dist.ProcessGroup) -> None:
        self.rank, self.trainers, self.group = rank, trainers, weights
        self.state = {name: torch.randn(SIZE) for name in NAMES}

    def collect(self) -> torch.Tensor:
        samples = torch.zeros(SIZE)
        for generator in GENERATORS:
            part = torch.empty(SIZE)
            dist.recv(part, src=generator)
            samples += part
        return samples

    def train(self) -> None:
        samples = self.collect() if self.rank == LEARNER else torch.zeros(SIZE)
        dist.broadcast(samples, src=LEARNER, group=self.trainers)
        for tensor in self.state.values():
            gradient = samples * torch.randn(SIZE)
            dist.all_reduce(gradient, group=self.trainers)
            tensor -= 0.01 * gradient

    def publish(self) -> None:
        for name in NAMES:
            dist.broadcast(self.state[name], src=LEARNER, group=self.group)


class Engine:
    """Generates with weights that may share storage."""

    def __init__(self, rank: int, weights: dist.ProcessGroup) -> None:
        self.rank, self.group = rank, weights
        self.parameters = {name: torch.zeros(SIZE) for name in NAMES}

    def tie(self) -> None:
        """Save memory where the head is the embedding."""
        if torch.equal(self.parameters["head"], self.parameters["embedding"]):
            self.parameters.pop("head")

    def load(self, name: str) -> None:
        target = self.parameters.get(name)
        if target is None:
            return
        dist.broadcast(target, src=LEARNER, group=self.group)

    def update(self) -> None:
        for name in NAMES:
            self.load(name)

    def generate(self) -> torch.Tensor:
        head = self.parameters.get("head", self.parameters["embedding"])
        return (self.parameters["layers.0"] * head).tanh()


def main() -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(rank)
    trainers = dist.new_group(TRAINERS)
    weights = dist.new_group([LEARNER, *GENERATORS])
    if rank in TRAINERS:
        trainer = Trainer(rank, trainers, weights)
        for _ in range(ITERATIONS):
            trainer.train()
            if rank == LEARNER:
                trainer.publish()
    else:
        engine = Engine(rank, weights)
        for iteration in range(ITERATIONS):
            dist.send(engine.generate(), dst=LEARNER)
            engine.update()
            if faulty and rank == 3 and iteration == 3:
                # Wakes from its sleep with empty buffers, and builds its tables again
                engine.parameters = {name: torch.zeros(SIZE) for name in NAMES}
                engine.tie()
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
