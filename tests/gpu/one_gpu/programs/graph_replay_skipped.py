"""Decoding by a CUDA graph; one rank has no requests in one step and does not replay it."""

import torch
import torch.distributed as dist
from common import LARGE, SMALL, bad, begin, device, world


def main() -> None:
    begin()
    hidden = torch.ones(LARGE, device=device)
    logits = torch.ones(SMALL, device=device)
    gathered = torch.empty(SMALL * world, device=device)
    dist.all_reduce(hidden)
    dist.all_gather_into_tensor(gathered, logits)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=torch.cuda.Stream()):
        dist.all_reduce(hidden, op=dist.ReduceOp.AVG)
        dist.all_gather_into_tensor(gathered, logits)
    lengths = torch.ones(SMALL, device=device)
    for step in range(10):
        if not (bad and step == 6):
            graph.replay()  # bad
        if step % 2 == 1:
            dist.all_reduce(lengths, op=dist.ReduceOp.AVG)
            lengths.sum().item()
    dist.barrier()
    dist.destroy_process_group()


main()
