"""Each rank batches its own shard with a DataLoader."""

import sys

import torch
import torch.distributed as dist

faulty = sys.argv[1:] == ["faulty"]


def main() -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    drop = not (faulty and rank == 2)  # one configuration has another default
    for epoch in range(4):
        samples = 42 if epoch == 2 else 40
        data = torch.utils.data.TensorDataset(torch.randn(samples, 8))
        loader = torch.utils.data.DataLoader(data, batch_size=4, drop_last=drop)
        for (batch,) in loader:
            dist.all_reduce(batch.sum(0))
            dist.all_reduce(torch.randn(8))
        means = [torch.empty(8) for _ in range(5)]
        dist.all_gather(means, torch.randn(8))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
