"""Trace JSONL: a file for each process, which every command reads."""

from __future__ import annotations

from pathlib import Path

from ncclscope.model import Run
from ncclscope.readers.jsonl import write_trace


def write_jsonl(run: Run, directory: Path) -> None:
    """Write ``rank-3.jsonl`` for each rank, ``process-8802.jsonl`` for other processes."""
    for rank in run.ranks:
        write_trace(rank, directory / f"rank-{rank.rank}.jsonl")
    for number, other in enumerate(run.others):
        write_trace(other, directory / f"process-{other.pid or number}.jsonl")
