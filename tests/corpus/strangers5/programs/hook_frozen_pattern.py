"""Reduce each gradient in a hook of its own, as soon as it is there; layers are frozen later."""

import re
import sys

import torch
import torch.distributed as dist
from torch import nn

faulty = sys.argv[1:] == ["faulty"]


def reduce_gradient(parameter: torch.Tensor) -> None:
    dist.all_reduce(parameter.grad)
    parameter.grad /= dist.get_world_size()


def freeze(model: nn.Module, pattern: str) -> None:
    for name, parameter in model.named_parameters():
        if re.match(pattern, name):
            parameter.requires_grad_(False)


def main() -> None:
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(5)
    model = nn.Sequential(*(nn.Linear(8, 8, bias=False) for _ in range(12)))
    for parameter in model.parameters():
        parameter.register_post_accumulate_grad_hook(reduce_gradient)
    # Meant is layer 1; without its dot the pattern takes layers 10 and 11 as well.
    pattern = r"1" if faulty and rank == 4 else r"1\."
    for step in range(12):
        if step == 6:
            freeze(model, pattern)
        loss = model(torch.randn(4, 8)).square().mean()
        loss.backward()
        with torch.no_grad():
            for parameter in model.parameters():
                if parameter.requires_grad:
                    parameter -= 0.01 * parameter.grad
                    parameter.grad = None
        losses = [torch.empty(1) for _ in range(world)]
        dist.all_gather(losses, loss.detach().reshape(1))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
