"""Mixture of experts in groups of two, dispatched by all_to_all forward and backward."""

import sys

import torch
import torch.distributed as dist
from torch import Tensor

faulty = sys.argv[1:] == ["faulty"]


def exchange(tokens: Tensor, group: dist.ProcessGroup) -> Tensor:
    received = torch.empty_like(tokens)
    dist.all_to_all_single(received, tokens.contiguous(), group=group)
    return received


class Dispatch(torch.autograd.Function):
    @staticmethod
    def forward(context, tokens: Tensor, group: dist.ProcessGroup) -> Tensor:
        context.group = group
        return exchange(tokens, group)

    @staticmethod
    def backward(context, gradient: Tensor) -> tuple[Tensor, None]:
        return exchange(gradient, context.group), None


def main() -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    experts = [dist.new_group([0, 1]), dist.new_group([2, 3])][rank // 2]
    weight = torch.ones(8, requires_grad=True)
    for step in range(16):
        routed = Dispatch.apply(torch.randn(4, 8) * weight, experts)
        if faulty and rank == 1 and step == 11:
            routed = torch.zeros(4, 8) * weight  # no token came: nothing depends on the dispatch
        routed.square().sum().backward()
        dist.all_reduce(weight.grad)
        weight.grad = None
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
