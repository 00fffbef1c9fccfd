"""How many ranks NCCL can have on this machine."""

from __future__ import annotations

import torch

from ncclscope.launch.gpus import enough

__all__ = ["REAL", "SEATS"]

TOGETHER = 4
"""Ranks that share one GPU; eight are too many, since they take turns."""

REAL = torch.cuda.device_count()
SEATS = max(REAL, TOGETHER if enough(REAL, TOGETHER) else 0)
"""Ranks that can be had: one a GPU, or four where this NCCL lets several share one."""
