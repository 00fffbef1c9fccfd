"""DDP with data loader processes, forked and spawned, which are no ranks."""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from tests.foreign.programs.pace import pause


def main() -> None:
    """Train for some epochs, and average a metric after each."""
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    model = DistributedDataParallel(nn.Linear(32, 8))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    data = TensorDataset(torch.randn(260, 32))
    for epoch, method in enumerate(("fork", "spawn", "fork")):
        sampler = DistributedSampler(data)
        sampler.set_epoch(epoch)
        loader = DataLoader(
            data, batch_size=8, sampler=sampler, num_workers=2, multiprocessing_context=method
        )
        for step, (batch,) in enumerate(loader):
            pause(rank, step)
            loss = model(batch).square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
        total = loss.detach()
        dist.all_reduce(total)
        if rank == 0:
            print(f"epoch {epoch}: {total / dist.get_world_size():.3f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
