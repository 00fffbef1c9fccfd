"""FSDP2: weights are read by rank 0 and broadcast, or read where a host has a copy."""

import pathlib
import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, set_model_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

faulty = sys.argv[1:] == ["faulty"]
WIDTH, BLOCKS, STEPS, PER_HOST = 12, 3, 6, 2
NAME = "weights.pt"


def build() -> nn.Sequential:
    blocks = [nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU()) for _ in range(BLOCKS)]
    return nn.Sequential(*blocks, nn.Linear(WIDTH, 1))


class Host:
    """The disk that the ranks of one host share."""

    def __init__(self, rank: int) -> None:
        self.folder = pathlib.Path(f"host-{rank // PER_HOST}")
        self.folder.mkdir(exist_ok=True)

    def copy(self) -> pathlib.Path | None:
        path = self.folder / NAME
        return path if path.exists() else None


def load(model: nn.Module, host: Host, source: pathlib.Path) -> None:
    copy = host.copy()
    if copy is not None:
        state = torch.load(copy)
        options = StateDictOptions(full_state_dict=True)
    else:
        state = torch.load(source) if dist.get_rank() == 0 else {}
        options = StateDictOptions(full_state_dict=True, broadcast_from_rank0=True)
    set_model_state_dict(model, state, options=options)


def prepare(rank: int, source: pathlib.Path) -> Host:
    host = Host(rank)
    if rank == 0:
        torch.save(build().state_dict(), source)
    if faulty and rank == 5:  # what an earlier job has left on this host
        torch.save(build().state_dict(), host.folder / NAME)
    dist.barrier()
    return host


def main() -> None:
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    source = pathlib.Path("source.pt")
    host = prepare(rank, source)
    mesh = init_device_mesh("cpu", (world,))
    model = build()
    for block in model:
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    load(model, host, source)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for _ in range(STEPS):
        loss = model(torch.randn(4, WIDTH)).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
