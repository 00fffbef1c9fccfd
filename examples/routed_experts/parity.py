"""The verdict on the rings of all ranks."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from ncclscope import diagnose, open_run

__all__ = ["Parity", "compare"]


@dataclass(frozen=True)
class Parity:
    """Verdict on the rings of a job.

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
    """Compare the ranks of a job, by what their rings recorded."""
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
