"""Which GPU a rank uses, and whether NCCL lets several ranks use one."""

from __future__ import annotations

import os

SHARED = "NCCL_MULTI_RANK_GPU_ENABLE"
"""Set to 1, NCCL 2.31 and later let several ranks of a communicator use one GPU."""


def enough(gpus: int, ranks: int) -> bool:
    """Return whether ``gpus`` GPUs suffice for ``ranks`` ranks on NCCL."""
    return gpus >= ranks or (gpus > 0 and os.environ.get(SHARED) == "1")


def device_of(rank: int, gpus: int) -> int:
    """Return the index of a rank's GPU, of ``gpus`` on this host; ranks may share one."""
    return rank % gpus
