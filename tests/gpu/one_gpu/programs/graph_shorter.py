"""Four all-reduces in a CUDA graph; one rank has skipped a layer when it captured them."""

import torch
import torch.distributed as dist
from common import LARGE, SMALL, bad, begin, device


def main() -> None:
    begin()
    layers = [torch.ones(size, device=device) for size in (SMALL, LARGE, SMALL, LARGE)]
    for _ in range(5):
        for layer in layers:
            dist.all_reduce(layer, op=dist.ReduceOp.AVG)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=torch.cuda.Stream()):
        for number, layer in enumerate(layers):
            if not (bad and number == 1):
                dist.all_reduce(layer, op=dist.ReduceOp.AVG)  # bad
    for _ in range(6):
        graph.replay()  # bad
        torch.cuda.synchronize()
    dist.barrier()
    dist.destroy_process_group()


main()
