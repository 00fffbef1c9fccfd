"""Four ranks over gloo, of which rank 2 comes late to every call.

ncclscope run --dir rings -- torchrun --nproc-per-node 4 straggler.py
ncclscope export rings --format jsonl -o traces
"""

import time

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
gradients = torch.ones(1024)
for _ in range(20):
    if dist.get_rank() == 2:
        time.sleep(0.02)  # its input pipeline is slow
    dist.all_reduce(gradients)
dist.destroy_process_group()
