"""Measure the accuracy over all ranks with torchmetrics while DistributedDataParallel trains."""

import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torchmetrics.classification import MulticlassAccuracy

faulty = sys.argv[1:] == ["faulty"]


def main() -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    model = DistributedDataParallel(nn.Linear(32, 5))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    accuracy = MulticlassAccuracy(num_classes=5)
    for step in range(1, 16):
        labels = torch.randint(5, (16,))
        output = model(torch.randn(16, 32))
        nn.functional.cross_entropy(output, labels).backward()
        optimizer.step()
        optimizer.zero_grad()
        accuracy.update(output.detach(), labels)
        if step % 5 == 0:
            if not faulty or step < 10:
                accuracy.compute()
            elif rank == 0:
                print(f"step {step}: accuracy {accuracy.compute():.2f}")
            accuracy.reset()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
