"""Many groups, works that are waited for late, and messages from any rank."""

import itertools

import torch
import torch.distributed as dist

from tests.foreign.programs.pace import pause

dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
pairs = {pair: dist.new_group(list(pair)) for pair in itertools.combinations(range(world), 2)}
even, odd = (dist.new_group(range(first, world, 2)) for first in (0, 1))
mine = even if rank % 2 == 0 else odd

for step in range(24):
    pause(rank, step)
    # Each in the order that suits it: no two wait for each other.
    works = [
        dist.all_reduce(torch.ones(4), group=group, async_op=True)
        for pair, group in (pairs.items() if rank % 2 else reversed(pairs.items()))
        if rank in pair
    ]
    for _ in range(1 + rank % 2):  # the two halves do different things
        dist.all_reduce(torch.ones(3), group=mine)
    for work in works:
        work.wait()
    if rank == step % world:
        for _ in range(world - 1):
            dist.recv(torch.empty(2))
    else:
        dist.send(torch.ones(2), step % world)
    objects = [None] * world
    dist.all_gather_object(objects, {"rank": rank, "text": "x" * rank * 100})

dist.monitored_barrier()
for group in (*pairs.values(), even, odd):
    if group is not dist.GroupMember.NON_GROUP_MEMBER:
        dist.destroy_process_group(group)
dist.destroy_process_group()
