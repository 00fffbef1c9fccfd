"""Findings -> the one answer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cmp_to_key, partial
from typing import Any

from ncclscope.analysis.case import Case
from ncclscope.analysis.device_stands import describe_device, device_notes
from ncclscope.analysis.engine_steps import describe_steps
from ncclscope.analysis.order import Moment
from ncclscope.analysis.registry import Analyzer, load_analyzers
from ncclscope.analysis.table import Row, build_table
from ncclscope.analysis.witnesses import Witness, call_witnesses, describe_capture, stall_limit
from ncclscope.analysis.wording import ranks_text
from ncclscope.foreign import printable
from ncclscope.model import Call, Communicator, Finding, Run
from ncclscope.progress import steps
from ncclscope.signature import P2P_OPS

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
        """What a reader should know about the input, such as what could not be recorded."""
        failed = [
            f"rank {rank.rank}: a probe ended ({rank.details['probe_failed']}), and what was "
            f"posted after that is not recorded"
            for rank in self.run.ranks
            if rank.details.get("probe_failed")
        ]
        unseen: dict[str, list[int]] = {}
        for rank in self.run.ranks:
            if isinstance(told := rank.details.get("unseen"), str):
                unseen.setdefault(told, []).append(rank.rank)
        missed = [
            f"{ranks_text(ranks)}: not seen by the probes: {printable(told)}"
            for told, ranks in unseen.items()
        ]
        notes = map(printable, device_notes(self.run))
        return (*self.run.notes, *failed, *missed, *notes)

    @property
    def witnesses(self) -> tuple[Witness, ...]:
        """Those of living processes, where somebody looked; what each says."""
        return call_witnesses(self.run, self.cause)

    @property
    def exit_status(self) -> int:
        """0 when the ranks agree, 1 when they do not or hang; as diff(1)."""
        return 1 if self.status in ("diverged", "hung") else 0

    def to_dict(self) -> dict[str, Any]:
        """Returns the JSON document of the contract."""
        cause = None
        if self.cause is not None:
            cause = self.cause.to_dict()
        seen = {}
        if self.run.capture is not None:
            seen = {
                "witnesses": [witness.to_dict() for witness in self.witnesses],
                "stacks": describe_capture(self.run.capture),
            }
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
            **seen,
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
    live_stall_seconds = stall_limit(run, stall_seconds, live_stall_seconds)
    case = Case(run, stall_seconds=stall_seconds, live_stall_seconds=live_stall_seconds)
    found = [
        finding
        for analyzer in steps("comparing", load_analyzers() if analyzers is None else analyzers)
        for finding in analyzer.analyze(case)
    ]
    found = _without_echoes(found)
    found.sort(key=cmp_to_key(partial(_compare, case)))
    found.sort(key=_weight)
    cause = next((finding for finding in found if finding.role == "cause"), None)
    if cause is not None:
        more = *describe_device(run, cause), *describe_steps(run, cause)
        told = replace(cause, evidence=(*cause.evidence, *more))
        found[found.index(cause)] = cause = told
    return Verdict(
        run=run,
        status=_status(run, cause),
        cause=cause,
        findings=tuple(found),
        table=tuple(build_table(run)),
        neighbourhood=_neighbourhood(case, cause),
        quiet_seconds=case.quiet if cause is not None else None,
    )


def _without_echoes(found: Sequence[Finding]) -> list[Finding]:
    """Makes a consequence of each call that stands still because its parameters do not fit."""
    unfit = {
        (finding.comm.key, finding.seq)
        for finding in found
        if finding.role == "cause" and finding.kind not in HANG_KINDS and finding.comm is not None
    }
    return [
        replace(finding, role="consequence")
        if finding.kind == "stalled"
        and finding.comm is not None
        and (finding.comm.key, finding.seq) in unfit
        else finding
        for finding in found
    ]


def _weight(finding: Finding) -> tuple[int, int, int]:
    """Causes first, differences before waits, the sure before the unsure."""
    return (
        0 if finding.role == "cause" else 1,
        1 if finding.kind in HANG_KINDS else 0,
        _CONFIDENCE[finding.confidence] // 2,
    )


def _compare(case: Case, one: Finding, other: Finding) -> int:
    """Which of two findings came first; without calls, by their names."""
    moments = [
        Moment(
            finding.comm.key,
            finding.seq,
            min(finding.diverging_ranks or finding.candidate_ranks, default=-1),
            finding.odd,
        )
        for finding in (one, other)
        if finding.comm is not None and finding.seq is not None
    ]
    if len(moments) == 2 and (found := case.order.compare(*moments)):
        return found
    names = [(finding.kind, finding.diverging_ranks) for finding in (one, other)]
    return (names[0] > names[1]) - (names[0] < names[1])


def _status(run: Run, cause: Finding | None) -> str:
    if cause is not None:
        return "hung" if cause.kind in HANG_KINDS else "diverged"
    return "incomplete" if run.missing else "ok"


def _neighbourhood(case: Case, cause: Finding | None) -> Neighbourhood | None:
    if cause is None or cause.comm is None or cause.seq is None:
        return None
    if any(call is not None and call.op in P2P_OPS for call in (cause.odd, cause.peers)):
        return None  # its number is not one of a collective
    calls: dict[int, dict[int, Call]] = {}
    for rank, log in case.logs(cause.comm.key).items():
        near = log.span(max(log.first, cause.seq - 3), min(log.calls + 1, cause.seq + 4))
        calls[rank] = {call.seq: call for call in near}
    return Neighbourhood(cause.comm, cause.seq, calls)
