"""DeepSpeed on the CPU: ZeRO 1 to 3, one after the other."""

import os

os.environ["DS_ACCELERATOR"] = "cpu"

import deepspeed
import deepspeed.ops
import torch
import torch.distributed as dist
from torch import nn

from tests.foreign.programs.pace import pause

deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False  # it would be compiled, for minutes
deepspeed.init_distributed("gloo")
rank = dist.get_rank()
for stage in (1, 2, 3):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 8))
    engine, *_ = deepspeed.initialize(
        model=model,
        optimizer=torch.optim.AdamW(model.parameters(), lr=0.01),
        config={
            "train_micro_batch_size_per_gpu": 4,
            "gradient_accumulation_steps": 2,
            "gradient_clipping": 1.0,
            "zero_allow_untested_optimizer": True,
            "zero_optimization": {"stage": stage},
        },
    )
    for step in range(16):
        pause(rank, step)
        engine.backward(engine(torch.randn(4, 32)).square().mean())
        engine.step()
    engine.destroy()

dist.barrier()
dist.destroy_process_group()
