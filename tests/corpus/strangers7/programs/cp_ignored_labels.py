"""Context parallel: three ranks share a sequence, and the loss is a mean over kept labels."""

import sys

import torch
import torch.distributed as dist
from torch import nn

faulty = sys.argv[1:] == ["faulty"]
STEPS, LENGTH, IGNORED, CLASSES, SIZE = 14, 8, -100, 11, 3


class Context:
    """The ranks that share a sequence, and those with the same part of other sequences."""

    def __init__(self, rank: int, world: int) -> None:
        for start in range(0, world, SIZE):
            members = list(range(start, start + SIZE))
            group = dist.new_group(members)
            if rank in members:
                self.context, self.part = group, rank - start
        for part in range(SIZE):
            members = list(range(part, world, SIZE))
            group = dist.new_group(members)
            if rank in members:
                self.replicas = group


class Task:
    def __init__(self, rank: int, context: Context) -> None:
        self.rank, self.context, self.part = rank, context.context, context.part
        self.model = nn.Linear(16, CLASSES)

    def labels(self, step: int) -> torch.Tensor:
        """Return this rank's part: what comes from the prompt or is padding is ignored."""
        labels = torch.randint(CLASSES, (LENGTH,))
        labels[: 2 + step % 3] = IGNORED
        if faulty and self.rank == 5 and step == 9:
            labels[:] = IGNORED  # a short answer, which ends in the part before
        return labels

    def loss(self, step: int) -> torch.Tensor:
        logits, labels = self.model(torch.randn(LENGTH, 16)), self.labels(step)
        kept = labels != IGNORED
        if not kept.any():
            return logits.sum() * 0.0
        total = nn.functional.cross_entropy(logits, labels, ignore_index=IGNORED, reduction="sum")
        count = kept.sum().float().reshape(1)
        dist.all_reduce(count, group=self.context)
        return total / count.squeeze()

    def attend(self) -> None:
        keys = [torch.empty(LENGTH) for _ in range(SIZE)]
        dist.all_gather(keys, torch.randn(LENGTH), group=self.context)

    def check(self) -> torch.Tensor:
        norms = [torch.empty(1) for _ in range(SIZE)]
        dist.all_gather(norms, torch.rand(1), group=self.context)
        return torch.cat(norms)


def main() -> None:
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    context = Context(rank, world)
    task = Task(rank, context)
    for step in range(STEPS):
        task.attend()
        loss = task.loss(step)
        task.check()
        loss.backward()
        for parameter in task.model.parameters():
            dist.all_reduce(parameter.grad, group=context.context)
            dist.all_reduce(parameter.grad, group=context.replicas)
        task.model.zero_grad()
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
