"""Findings -> the one answer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ncclscope.analysis.case import Case
from ncclscope.analysis.registry import Analyzer, load_analyzers
from ncclscope.analysis.table import Row, build_table
from ncclscope.model import Call, Communicator, Finding, Run

__all__ = ["SCHEMA", "Neighbourhood", "Verdict", "diagnose"]

SCHEMA = 1

HANG_KINDS = frozenset({"not_joined", "dead_rank", "order_cycle", "stalled"})
"""Kinds under which the sequences agree as far as they go, and somebody waits for ever."""

_CONFIDENCE = {"certain": 0, "likely": 1, "ambiguous": 2}


@dataclass(frozen=True)
class Neighbourhood:
    """The calls around the first difference, rank by rank.

    Attributes:
        comm: The communicator.
        seq: The first differing call.
        calls: By global rank, then by number.
    """

    comm: Communicator
    seq: int
    calls: dict[int, dict[int, Call]]

    def to_dict(self) -> dict[str, Any]:
        """Returns the calls in a form for JSON."""
        return {
            "comm": self.comm.to_dict(),
            "seq": self.seq,
            "ranks": {
                str(rank): {str(seq): call.to_dict() for seq, call in calls.items()}
                for rank, calls in self.calls.items()
            },
        }


@dataclass(frozen=True)
class Verdict:
    """What a run's records prove, and what they suggest.

    Attributes:
        run: What was examined.
        status: ``ok``, ``diverged`` (the sequences differ), ``hung`` (they agree, and ranks
            wait in vain) or ``incomplete`` (ranks are missing, and the others agree).
        cause: The one root cause, or None.
        findings: All that was found, the cause first.
        table: Where each rank stands.
        neighbourhood: The calls around the cause, where it is about a call.
        quiet_seconds: How long the waiting ranks have waited; None when not known.
    """

    run: Run
    status: str
    cause: Finding | None
    findings: tuple[Finding, ...]
    table: tuple[Row, ...]
    neighbourhood: Neighbourhood | None
    quiet_seconds: float | None

    @property
    def notes(self) -> tuple[str, ...]:
        """What a reader should know about the input, failed probes included."""
        failed = [
            f"rank {rank.rank}: a probe ended ({rank.details['probe_failed']}), and what was "
            f"posted after that is not recorded"
            for rank in self.run.ranks
            if rank.details.get("probe_failed")
        ]
        return (*self.run.notes, *failed)

    @property
    def exit_status(self) -> int:
        """0 when the ranks agree, 1 when they do not or hang; as diff(1)."""
        return 1 if self.status in ("diverged", "hung") else 0

    def to_dict(self) -> dict[str, Any]:
        """Returns the JSON document of the contract."""
        cause = None
        if self.cause is not None:
            cause = self.cause.to_dict()
        return {
            "schema": SCHEMA,
            "status": self.status,
            "ranks": {
                "expected": self.run.expected,
                "read": len(self.run.ranks),
                "missing": list(self.run.missing),
            },
            "verdict": cause,
            "findings": [
                {**finding.to_dict(), "role": finding.role, "analyzer": finding.analyzer}
                for finding in self.findings
            ],
            "table": [row.to_dict() for row in self.table],
            "neighbourhood": None if self.neighbourhood is None else self.neighbourhood.to_dict(),
            "quiet_seconds": self.quiet_seconds,
            "notes": list(self.notes),
        }


def diagnose(
    run: Run,
    *,
    stall_seconds: float = 2.0,
    live_stall_seconds: float = 30.0,
    analyzers: Sequence[Analyzer] | None = None,
) -> Verdict:
    """Compares the ranks of a run.

    Args:
        run: From :func:`ncclscope.open_run`.
        stall_seconds: How long ranks must have waited, before their process ended, to be
            called stuck.
        live_stall_seconds: The same for processes that still run.
        analyzers: Those to ask; all that are installed when absent.

    Returns:
        The verdict. The same records give the same verdict, in whatever order they are read.
    """
    case = Case(run, stall_seconds=stall_seconds, live_stall_seconds=live_stall_seconds)
    found = [
        finding
        for analyzer in (load_analyzers() if analyzers is None else analyzers)
        for finding in analyzer.analyze(case)
    ]
    found.sort(key=lambda finding: _weight(case, finding))
    cause = next((finding for finding in found if finding.role == "cause"), None)
    return Verdict(
        run=run,
        status=_status(run, cause),
        cause=cause,
        findings=tuple(found),
        table=tuple(build_table(run)),
        neighbourhood=_neighbourhood(case, cause),
        quiet_seconds=case.quiet if cause is not None else None,
    )


def _weight(case: Case, finding: Finding) -> tuple[int, int, int, int, str, tuple[int, ...]]:
    """Causes first, differences before waits, the sure before the unsure, then by time."""
    odd = finding.odd
    return (
        0 if finding.role == "cause" else 1,
        1 if finding.kind in HANG_KINDS else 0,
        _CONFIDENCE[finding.confidence] // 2,
        (odd.time_ns or odd.position) if odd is not None else 0,
        finding.kind,
        finding.diverging_ranks,
    )


def _status(run: Run, cause: Finding | None) -> str:
    if cause is not None:
        return "hung" if cause.kind in HANG_KINDS else "diverged"
    return "incomplete" if run.missing else "ok"


def _neighbourhood(case: Case, cause: Finding | None) -> Neighbourhood | None:
    if cause is None or cause.comm is None or cause.seq is None:
        return None
    calls: dict[int, dict[int, Call]] = {}
    for rank, log in case.logs(cause.comm.key).items():
        near = log.span(max(log.first, cause.seq - 3), min(log.calls + 1, cause.seq + 4))
        calls[rank] = {call.seq: call for call in near}
    return Neighbourhood(cause.comm, cause.seq, calls)
