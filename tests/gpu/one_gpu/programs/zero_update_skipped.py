"""Sharded gradients and parameters by hand; one rank skips an update whose gradients overflow."""

import torch
import torch.distributed as dist
from common import LARGE, SMALL, bad, begin, device, rank, world


def main() -> None:
    begin()
    buckets = [torch.ones(size, device=device) for size in (LARGE, SMALL)]
    for step in range(10):
        shards = []
        for bucket in buckets:
            gradients = torch.rand_like(bucket)
            shard = torch.empty(len(bucket) // world, device=device)
            dist.reduce_scatter_tensor(shard, gradients)
            shards.append(shard)
        overflow = torch.isinf(shards[0]).any().item() or (bad and step == 6)
        if overflow:
            continue  # bad
        for bucket, shard in zip(buckets, shards, strict=True):
            own = bucket.chunk(world)[rank] - 0.1 * shard
            dist.all_gather_into_tensor(bucket, own)  # bad
    buckets[0].sum().item()
    dist.barrier()
    dist.destroy_process_group()


main()
