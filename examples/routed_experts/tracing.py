"""Tracing of one process, as `ncclscope run` would arrange it."""

from __future__ import annotations

import os
from pathlib import Path

import torch

from ncclscope.tracing import session
from ncclscope_patches import registry

__all__ = ["finish", "trace"]


def trace(rings: Path, rank: int, size: int) -> None:
    """Begin to record what this process posts, as one rank of a job."""
    for name in ("NCCLSCOPE", "NCCL_SCOPE_DIR"):
        os.environ.pop(name, None)
    os.environ.update(RANK=str(rank), WORLD_SIZE=str(size), NCCLSCOPE_DIR=str(rings))
    registry.install_all()
    session.current()
    torch.set_num_threads(1)


def finish() -> None:
    """Say in the ring that the process ends in order."""
    tracer = session.current() if session.enabled() else None
    if tracer is not None:
        tracer.close()
