"""Four ranks on one GPU that exchange tokens through DeepEP's kernels; one of them may differ.

    ncclscope run -- torchrun --nproc-per-node 4 benchmarks/gpu/deep_ep_job.py FAULT

FAULT is ``none``, ``skip`` (rank 3 leaves out a step) or ``other`` (rank 3 calls an all_reduce
where its peers dispatch). DeepEP is built from its sources: nvcc 13, the wheel of NVSHMEM 3.4, and
a directory with the headers and the library of NCCL 2.32 as EP_NCCL_ROOT_DIR, which LD_PRELOAD
names as well: torch 2.11 brings 2.28, which is too old for it. EP_SUPPRESS_NCCL_CHECK=1 is for
those two, of which DeepEP would accept one only.
"""

from __future__ import annotations

import sys
from typing import Any

import torch
import torch.distributed as dist

HIDDEN, TOKENS, EXPERTS, STEPS = 512, 64, 16, 6
FAULTY_RANK, FAULTY_STEP = 3, 4


def step(buffer: Any, kind: Any) -> None:
    """Dispatch and combine rows that random experts get."""
    rows = torch.ones((TOKENS, HIDDEN), dtype=torch.bfloat16, device="cuda")
    chosen = torch.rand(TOKENS, EXPERTS, device="cuda").topk(2)[1].to(kind)
    per_rank, _, per_expert, there, _ = buffer.get_dispatch_layout(chosen, EXPERTS)
    received, _, _, _, handle, _ = buffer.dispatch(
        rows,
        num_tokens_per_rank=per_rank,
        is_token_in_rank=there,
        num_tokens_per_expert=per_expert,
        topk_idx=chosen,
        topk_weights=torch.ones(TOKENS, 2, device="cuda"),
    )
    buffer.combine(received, handle)
    torch.cuda.synchronize()


def main(fault: str) -> None:
    """Run all steps on this rank."""
    dist.init_process_group("gloo")
    torch.cuda.set_device(0)
    import deep_ep

    buffer = deep_ep.Buffer(dist.group.WORLD, 64 << 20, 0)
    for number in range(STEPS):
        differs = (dist.get_rank(), number) == (FAULTY_RANK, FAULTY_STEP)
        if differs and fault == "skip":
            continue
        if differs and fault == "other":
            dist.all_reduce(torch.ones(4))
        step(buffer, deep_ep.topk_idx_t)
    dist.barrier()


if __name__ == "__main__":
    main(sys.argv[1])
