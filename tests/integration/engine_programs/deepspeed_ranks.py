"""DeepSpeed's ZeRO on the CPU, of stage STAGE.

FAULT may be one of these, in the fourth step of rank 2:

- extra_forward: it evaluates its batch once more.
- skipped_step: it leaves out one whole training step.
"""

from __future__ import annotations

import os

os.environ["DS_ACCELERATOR"] = "cpu"

import deepspeed
import deepspeed.ops
import torch
import torch.distributed as dist
from torch import nn

from tests.integration.c10d_ranks import join, main

STAGE = int(os.environ["STAGE"])
FAULT = os.environ.get("FAULT")
STEPS, FAULTY_STEP, ACCUMULATION = 6, 4, 2


def train(rank: int) -> None:
    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False  # nothing is to be compiled
    join()
    deepspeed.init_distributed("gloo")
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 8))
    engine, *_ = deepspeed.initialize(
        model=model,
        optimizer=torch.optim.AdamW(model.parameters(), lr=0.01),
        config={
            "train_micro_batch_size_per_gpu": 4,
            "gradient_accumulation_steps": ACCUMULATION,
            "gradient_clipping": 1.0,
            "zero_allow_untested_optimizer": True,
            # Small parameters would stay gathered, and others would be kept for the next step.
            "zero_optimization": {
                "stage": STAGE,
                "stage3_param_persistence_threshold": 0,
                "stage3_max_live_parameters": 0,
                "stage3_max_reuse_distance": 0,
            },
        },
    )
    for step in range(1, STEPS + 1):
        faulty = step == FAULTY_STEP and rank == 2
        if faulty and FAULT == "skipped_step":
            continue
        for _ in range(ACCUMULATION):
            if faulty and FAULT == "extra_forward":
                engine(torch.randn(4, 32))
            engine.backward(engine(torch.randn(4, 32)).square().mean())
            engine.step()
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(globals())
