"""Tracing of one process, as `ncclscope run` would arrange it, and what all rings say together."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

import torch

from ncclscope import diagnose, open_run
from ncclscope.tracing import session
from ncclscope_patches import registry

__all__ = ["Parity", "compare", "finish", "trace"]


def trace(rings: Path, rank: int, size: int) -> None:
    """Begins to record what this process posts, as one rank of a job."""
    for name in ("NCCLSCOPE", "NCCL_SCOPE_DIR"):
        os.environ.pop(name, None)
    os.environ.update(RANK=str(rank), WORLD_SIZE=str(size), NCCLSCOPE_DIR=str(rings))
    registry.install_all()
    session.current()
    torch.set_num_threads(1)


def finish() -> None:
    """Says in the ring that the process ends in order."""
    tracer = session.current() if session.enabled() else None
    if tracer is not None:
        tracer.close()


@dataclass(frozen=True)
class Parity:
    """What the rings of a job say.

    Attributes:
        status: The verdict's.
        calls: Collectives of all ranks together.
        communicators: How many were compared.
        equal: Whether all members of each posted the same calls in the same order.
        summary: The verdict in a sentence; empty where ranks agree.
    """

    status: str
    calls: int
    communicators: int
    equal: bool
    summary: str = ""

    @property
    def good(self) -> bool:
        """Whether there were calls, and all members posted the same."""
        return self.status == "ok" and self.equal and self.calls > 0


def compare(rings: Path) -> Parity:
    """Compares the ranks of a job, by what their rings recorded."""
    run = open_run(rings)
    verdict = diagnose(run)
    calls = communicators = 0
    equal = True
    for key, comm in run.communicators.items():
        if comm.creates_groups:
            continue
        logs = [run.by_rank[rank].logs[key] for rank in comm.ranks if rank in run.by_rank]
        communicators += 1
        calls += sum(log.calls for log in logs)
        equal &= len({(log.calls, log.fingerprint(log.calls)) for log in logs}) == 1
    cause = verdict.cause
    return Parity(
        verdict.status, calls, communicators, equal, "" if cause is None else cause.summary
    )
