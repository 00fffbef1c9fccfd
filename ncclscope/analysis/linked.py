"""Combine the verdict on a job with those on the jobs that exchange transfers with it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from ncclscope.model import Finding, Rank, Run
from ncclscope.untrusted import printable, text

if TYPE_CHECKING:
    from ncclscope.analysis.verdict import Verdict

__all__ = ["engine_of", "with_linked", "without_transfers"]

_WORST = ("unknown", "incomplete", "ok")


def without_transfers(run: Run) -> Run:
    """Return a linked run for a diagnosis of its own; its transfers are judged with both ends."""

    def bare(processes: Sequence[Rank]) -> tuple[Rank, ...]:
        return tuple(replace(process, transfers=()) for process in processes)

    return replace(run, ranks=bare(run.ranks), others=bare(run.others))


def with_linked(own: Verdict, others: Sequence[Verdict]) -> Verdict:
    """Return the verdict on all jobs.

    A divergence inside of a job is the cause of transfers that stall, since an engine whose ranks
    hang sends nothing.

    Args:
        own: The verdict on the job in which transfers are missing, which includes the transfers.
        others: The verdicts on the linked jobs.
    """
    troubled = [other for other in others if other.cause is not None]
    stalled = own.cause is not None and own.cause.transfer is not None
    if troubled and (own.cause is None or stalled):
        other = troubled[0]
        assert other.cause is not None
        cause = _located(other.cause, engine_of(other.run))
        rest = [_as_consequence(finding) for finding in own.findings]
        return replace(
            own,
            status=other.status,
            cause=cause,
            findings=(cause, *rest, *other.findings[1:]),
            summary=cause.summary,
            linked=tuple(others),
        )
    if own.cause is not None:
        return replace(own, linked=tuple(others))
    every = [own, *others]
    worst = min(every, key=lambda one: _WORST.index(one.status))
    if worst.status != "ok":
        summary = f"{_of_engine(worst)}{worst.summary}"
    else:
        summary = " ".join(f"{_of_engine(one)}{one.summary}" for one in every)
    return replace(own, status=worst.status, summary=summary, linked=tuple(others))


def engine_of(run: Run) -> str:
    """Return the id of a run's engine; empty if it has none."""
    for process in (*run.others, *run.ranks):
        about = process.details.get("kv_engine")
        if isinstance(about, dict) and (name := text(about.get("id"))):
            return printable(name)
        if process.transfers:
            return printable(process.transfers[0].engine)
    return ""


def _of_engine(verdict: Verdict) -> str:
    name = engine_of(verdict.run)
    return f"Engine {name}: " if name else ""


def _located(finding: Finding, engine: str) -> Finding:
    return replace(finding, summary=f"Engine {engine}: {finding.summary}") if engine else finding


def _as_consequence(finding: Finding) -> Finding:
    return replace(finding, role="consequence") if finding.role == "cause" else finding
