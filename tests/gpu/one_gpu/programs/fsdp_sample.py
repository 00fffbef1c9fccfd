"""fully_shard; one rank lets the model write a sample in the middle of the training."""

import torch
import torch.distributed as dist
from common import bad, begin, device, world
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard


def sample(model: nn.Module) -> float:
    with torch.no_grad():
        return model(torch.zeros(1, 256, device=device)).mean().item()  # bad


def main() -> None:
    begin()
    mesh = init_device_mesh(device.type, (world,))
    model = nn.Sequential(nn.Linear(256, 512), nn.ReLU(), nn.Linear(512, 256)).to(device)
    for layer in model:
        if isinstance(layer, nn.Linear):
            fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for step in range(9):
        loss = model(torch.randn(8, 256, device=device)).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if bad and step == 6:
            sample(model)  # bad
    torch.ones(1, device=device).item()
    dist.barrier()
    dist.destroy_process_group()


main()
