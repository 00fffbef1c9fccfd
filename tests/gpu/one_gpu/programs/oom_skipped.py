"""DistributedDataParallel; one rank runs out of memory and goes on with the next batch."""

import torch
import torch.distributed as dist
from common import SMALL, bad, begin, device
from torch import nn
from torch.nn.parallel import DistributedDataParallel


def main() -> None:
    begin()
    layers = [nn.Linear(256, 256) for _ in range(3)]
    model = DistributedDataParallel(nn.Sequential(*layers).to(device), bucket_cap_mb=0.3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    metrics = torch.zeros(SMALL, device=device)
    for step in range(12):
        try:
            loss = model(torch.randn(8, 256, device=device)).square().mean()
            if bad and step == 6:
                raise torch.OutOfMemoryError("CUDA out of memory")  # bad
            loss.backward()  # bad
        except torch.OutOfMemoryError:
            optimizer.zero_grad()
            continue  # bad
        optimizer.step()
        optimizer.zero_grad()
        if step % 3 == 1:
            metrics += loss.detach()
            dist.all_reduce(metrics)
            metrics.sum().item()
    dist.barrier()
    dist.destroy_process_group()


main()
