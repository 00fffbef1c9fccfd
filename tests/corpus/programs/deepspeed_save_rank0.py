"""Train with DeepSpeed, ZeRO stage 1, and save a checkpoint."""

import os
import sys
import tempfile

os.environ.setdefault("DS_ACCELERATOR", "cpu")

import deepspeed
import torch
import torch.distributed as dist
from torch import nn

faulty = sys.argv[1:] == ["faulty"]
CONFIGURATION = {
    "train_micro_batch_size_per_gpu": 4,
    "zero_optimization": {"stage": 1},
    "bf16": {"enabled": True},
    "zero_allow_untested_optimizer": True,
}


def main() -> None:
    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False  # nothing is to be compiled
    deepspeed.init_distributed("gloo")
    model = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 8))
    engine, *_ = deepspeed.initialize(
        model=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=0.01),
        config=CONFIGURATION,
    )
    folder = tempfile.gettempdir()
    for step in range(8):
        loss = engine(torch.randn(4, 32, dtype=torch.bfloat16)).square().mean()
        engine.backward(loss)
        engine.step()
        if step == 5 and (dist.get_rank() == 0 or not faulty):
            engine.save_checkpoint(folder)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
