"""Train three tensor parallel pairs on loaders of their own, and meet in a barrier at the end."""

import sys

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.utils.data import DataLoader, TensorDataset

faulty = sys.argv[1:] == ["faulty"]


def main() -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    mesh = init_device_mesh("cpu", (3, 2), mesh_dim_names=("data", "tensor"))
    data, tensor = mesh.get_group("data"), mesh.get_group("tensor")
    samples = 44 if faulty and rank == 0 else 40  # its shard was rounded up
    for (batch,) in DataLoader(TensorDataset(torch.randn(samples, 16)), batch_size=4):
        hidden = torch.tanh(batch)
        dist.all_reduce(hidden, group=tensor)
        dist.all_reduce(hidden.mean(0), group=data)
        dist.all_reduce(hidden.mean())
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
