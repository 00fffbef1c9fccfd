"""Runs of jobs that exchange transfers with another one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ncclscope.model import Rank, Run
from ncclscope.untrusted import printable, text

__all__ = ["engine_of", "without_transfers"]


def without_transfers(run: Run) -> Run:
    """Return a linked run for a diagnosis of its own; its transfers are judged with both ends."""

    def bare(processes: Sequence[Rank]) -> tuple[Rank, ...]:
        return tuple(replace(process, transfers=()) for process in processes)

    return replace(run, ranks=bare(run.ranks), others=bare(run.others))


def engine_of(run: Run) -> str:
    """Return the id of a run's engine; empty if it has none."""
    for process in (*run.others, *run.ranks):
        about = process.details.get("kv_engine")
        if isinstance(about, dict) and (name := text(about.get("id"))):
            return printable(name)
        if process.transfers:
            return printable(process.transfers[0].engine)
    return ""
