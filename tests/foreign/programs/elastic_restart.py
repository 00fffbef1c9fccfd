"""torchrun's elastic restart: in the first generation a worker fails, in the second none.

``stuck`` as first argument: in the second generation rank 2 leaves out its last call.
"""

import os
import signal
import sys

import torch
import torch.distributed as dist

from tests.foreign.programs.pace import pause

generation = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
dist.init_process_group("gloo")
rank = dist.get_rank()
group = dist.new_group([0, 1] if rank < 2 else [2, 3], use_local_synchronization=True)

for step in range(16):
    pause(rank, step)
    dist.all_reduce(torch.ones(4 + step))
    if generation == 0 and rank == 1 and step == 9:
        raise RuntimeError("the failure that torchrun restarts all workers for")
    dist.all_gather([torch.empty(2) for _ in range(2)], torch.ones(2), group=group)

if sys.argv[1:] != ["stuck"]:
    dist.barrier()
elif rank == 2:
    signal.pause()
else:
    dist.broadcast(torch.ones(7), 3)
dist.destroy_process_group()
