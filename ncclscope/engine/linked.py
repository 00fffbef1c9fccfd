"""Runs of other jobs: of engines that exchange transfers with this one, or in its directory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ncclscope.model import Finding, Rank, Run
from ncclscope.untrusted import printable, text
from ncclscope.wording.verdicts import Why

_MOST_PIDS = 8


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


def job_name(run: Run) -> str:
    """Return the name of a linked job: ``Engine decode-0``; empty if it has none."""
    if run.started_by is not None:
        return Why.STARTED_BY.of(run.started_by)
    if run.beside:
        return f"Job of {pids_of(run)}"
    name = engine_of(run)
    return f"Engine {name}" if name else ""


def pids_of(run: Run) -> str:
    """Return the pids of a run's ranks: ``pids 31 32``."""
    found = [str(rank.pid) for rank in run.ranks]
    shown = found if len(found) <= _MOST_PIDS else [*found[:_MOST_PIDS], "..."]
    return f"{'pid' if len(found) == 1 else 'pids'} {' '.join(shown)}"


def keeps_its_starter(run: Run, cause: Finding) -> bool:
    """Return whether a job is why its peers wait for the rank that started it."""
    ranks = (*cause.diverging_ranks, *cause.candidate_ranks)
    return cause.kind == "not_joined" and run.started_by in ranks
