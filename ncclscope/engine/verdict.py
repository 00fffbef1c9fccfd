"""Combine the findings of all analyzers into one verdict."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from html import escape
from typing import TYPE_CHECKING, Any

from ncclscope.engine import services
from ncclscope.engine.accounting import account
from ncclscope.engine.agreement import (
    ENDED_NOTICE_SECONDS,
    HANG_SECONDS,
    NOTICE_SECONDS,
    Agreement,
    has_posted,
    judge_agreement,
    shortly_waiting,
)
from ncclscope.engine.case import Case
from ncclscope.engine.coverage import Coverage, survey, uses_unrecorded
from ncclscope.engine.damaged import without_damaged
from ncclscope.engine.decision import FROM_STACKS, decide
from ncclscope.engine.linked import (
    engine_of,
    job_name,
    keeps_its_starter,
    pids_of,
    without_transfers,
)
from ncclscope.engine.precedence import LATE, as_consequence, in_order, is_hang, settle
from ncclscope.engine.processes.device_rows import describe_device, device_notes
from ncclscope.engine.processes.evidence import Evidence, describe_snapshot, gather_evidence
from ncclscope.engine.processes.late import with_late
from ncclscope.engine.registry import Analyzer, load_analyzers
from ncclscope.engine.repairs.retold import retold
from ncclscope.engine.reservations import hides_damage
from ncclscope.engine.sequences.mixed_records import reduce_mixed
from ncclscope.engine.sequences.survived import AssumedCall
from ncclscope.engine.table import Row, build_table, untraced_rows
from ncclscope.engine.transfers.engines import Engines
from ncclscope.engine.waits.engine_steps import describe_steps
from ncclscope.engine.waits.noted import without_waits_beside
from ncclscope.errors import DamagedFileError
from ncclscope.model import Call, Communicator, Finding, Run
from ncclscope.model.frames import html_table
from ncclscope.model.signature import P2P_OPS
from ncclscope.progress import steps
from ncclscope.untrusted import printable
from ncclscope.wording.verdicts import Why

if TYPE_CHECKING:
    import pandas as pd

SCHEMA = 2

_STATUSES = ("unknown", "incomplete", "ok")
"""Statuses without a cause, the one that outranks the others first."""
_CAUSE = "kind", "summary", "diverging_ranks", "candidate_ranks", "comm", "seq", "confidence"
"""Keys of each of several causes."""
_SHOWN = 3
"""Causes whose summaries are in the headline."""
EXIT_STATUSES = {"ok": 0, "incomplete": 0, "diverged": 1, "hung": 1, "unknown": 3}


@dataclass(frozen=True)
class Neighbourhood:
    """The calls around the first difference, rank by rank.

    Attributes:
        comm: The communicator.
        seq: The first differing call.
        calls: Calls by global rank, then by call number.
    """

    comm: Communicator
    seq: int
    calls: dict[int, dict[int, Call]]

    def to_dict(self) -> dict[str, Any]:
        """Return the calls in a form for JSON."""
        return {
            "comm": self.comm.to_dict(),
            "seq": self.seq,
            "ranks": {
                str(int(rank)): {str(seq): call.to_dict() for seq, call in calls.items()}
                for rank, calls in self.calls.items()
            },
        }


@dataclass(frozen=True)
class Verdict:
    """The diagnosis of a run: what its records prove, and what they suggest.

    Attributes:
        run: What was examined.
        status: ``ok``, ``diverged`` (the sequences differ), ``hung`` (they agree, and waiting
            ranks are stuck), ``incomplete`` (ranks are missing, and the others agree) or
            ``unknown`` (no divergence was found, but the data do not show agreement).
        cause: The root cause, or None.
        findings: All findings, the cause first.
        table: The position of each rank on each communicator.
        neighbourhood: The calls around the cause, where it concerns a call.
        quiet_seconds: Seconds that the waiting ranks have waited; None when not known.
        coverage: How much of the job is recorded.
        summary: The summaries of the causes, or why there is none.
        linked: The verdicts on the jobs that exchange transfers with this one.
    """

    run: Run
    status: str
    cause: Finding | None
    findings: tuple[Finding, ...]
    table: tuple[Row, ...]
    neighbourhood: Neighbourhood | None
    quiet_seconds: float | None
    coverage: Coverage
    summary: str
    linked: tuple[Verdict, ...] = ()

    def __str__(self) -> str:
        return f"{self.status}: {self.summary}"

    def __repr__(self) -> str:
        kind = f", {self.cause.kind}" if self.cause is not None else ""
        return f"<Verdict {self.status}{kind}: {len(self.run.ranks)} ranks>"

    def to_frame(self) -> pd.DataFrame:
        """Return one row for each finding, the cause first."""
        import pandas as pd

        rows = [
            {
                "kind": one.kind,
                "confidence": one.confidence,
                "role": one.role,
                "ranks": one.diverging_ranks,
                "candidates": one.candidate_ranks,
                "comm": one.comm.label if one.comm is not None else None,
                "seq": one.seq,
                "summary": one.summary,
            }
            for one in self.findings
        ]
        return pd.DataFrame(rows)

    def _repr_html_(self) -> str:
        """Return status, summary and findings, for notebooks."""
        rows = [(one.kind, one.confidence, printable(one.summary)) for one in self.findings]
        table = html_table(("kind", "confidence", "finding"), rows) if rows else ""
        return f"<p><b>{self.status}</b>: {escape(printable(self.summary))}</p>{table}"

    @property
    def notes(self) -> tuple[str, ...]:
        """Remarks on the input, such as calls that could not be recorded."""
        return (*self.run.notes, *map(printable, device_notes(self.run)))

    @property
    def evidence(self) -> tuple[Evidence, ...]:
        """The data sources of the process snapshot, and what each says; empty without one."""
        return gather_evidence(self.run, self.cause)

    @property
    def causes(self) -> tuple[Finding, ...]:
        """All independent causes, `cause` first; empty without one."""
        return tuple(one for one in self.findings if one.role == "cause") if self.cause else ()

    @property
    def diverging_ranks(self) -> frozenset[int]:
        """The ranks that the causes name."""
        return frozenset(rank for one in self.causes for rank in one.diverging_ranks)

    @property
    def in_trouble(self) -> bool:
        """Whether a divergence or a hang was found."""
        return self.status in ("diverged", "hung")

    @property
    def exit_status(self) -> int:
        """Exit status: 0 if the ranks agree, 1 if they diverged or hang, 3 if it is unknown."""
        return EXIT_STATUSES[self.status]

    def _transfers(self) -> dict[str, Any]:
        """Return the parts of the document on transfers; none without any."""
        engines = Engines(self.run)
        if not engines.joined:
            return {}
        jobs = [
            {"engine": engine_of(one.run), "status": one.status, "summary": one.summary}
            for one in self.linked
        ]
        return {"transfers": engines.to_dict(), "jobs": jobs}

    def to_dict(self) -> dict[str, Any]:
        """Return the verdict as the JSON document that docs/json.md describes."""
        cause = None
        if self.cause is not None:
            causes = [{name: one.to_dict()[name] for name in _CAUSE} for one in self.causes]
            cause = {**self.cause.to_dict(), "causes": causes}
        seen = {}
        if self.run.snapshot is not None:
            seen = {
                "witnesses": [item.to_dict() for item in self.evidence],
                "stacks": describe_snapshot(self.run.snapshot),
            }
        return {
            "schema": SCHEMA,
            "status": self.status,
            "summary": self.summary,
            "coverage": self.coverage.to_dict(),
            "ranks": {
                "expected": self.run.expected,
                "read": len(self.run.ranks),
                "missing": list(self.run.missing),
                **untraced_rows(self.run),
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
            **self._transfers(),
            **seen,
        }


def headline(causes: Sequence[Finding]) -> str:
    """Return the summary of the first cause, and those of others on further ranks.

    Causes that name nobody may be the same one, and one that names a candidate of another, too.

    Args:
        causes: The causes of a verdict, one at least.
    """
    shown, named = [causes[0]], {*causes[0].diverging_ranks}
    undecided = {*causes[0].candidate_ranks} - named
    for one in causes[1:]:
        ranks = {*one.diverging_ranks}
        is_apart = named or (ranks and undecided and undecided.isdisjoint(ranks))
        is_new = not ranks <= named if ranks else named.isdisjoint(one.candidate_ranks)
        if is_apart and is_new:
            shown.append(one)
            named |= ranks or {*one.candidate_ranks}
    if len(shown) == 1:
        return shown[0].summary
    texts = [f"{len(shown)} causes.", *(one.summary for one in shown[:_SHOWN])]
    if (more := len(shown) - _SHOWN) > 0:
        texts.append(Why.MORE.of(more))
    return " ".join(texts)


def diagnose(
    run: Run,
    *,
    stall_seconds: float = 2.0,
    live_stall_seconds: float = HANG_SECONDS,
    analyzers: Sequence[Analyzer] | None = None,
) -> Verdict:
    """Compare the ranks of a run.

    Args:
        run: A run from :func:`ncclscope.open_run`.
        stall_seconds: Seconds that ranks must have waited, before their process ended, to be
            reported as stuck.
        live_stall_seconds: The same for processes that still run.
        analyzers: The analyzers to run; all installed ones by default.

    Returns:
        The verdict. It does not depend on the order in which the records are read.

    Raises:
        DamagedFileError: No readable ring is left.
    """
    asked = load_analyzers() if analyzers is None else analyzers
    while True:
        try:
            known = without_waits_beside(reduce_mixed(run))
            own = _diagnose(known, asked, stall_seconds, live_stall_seconds)
            break
        except DamagedFileError as error:
            run = without_damaged(run, error)  # with at least one rank fewer, so the loop ends
    if not run.linked:
        return own
    others = [
        diagnose(
            without_transfers(one),
            stall_seconds=stall_seconds,
            live_stall_seconds=live_stall_seconds,
            analyzers=asked,
        )
        for one in run.linked
    ]
    return _with_linked(own, others)


def _with_linked(own: Verdict, others: Sequence[Verdict]) -> Verdict:
    """Return the verdict on all jobs.

    A divergence inside of a job is the cause of transfers that stall, since an engine whose ranks
    hang sends nothing.

    Args:
        own: The verdict on the job in which transfers are missing, which includes the transfers.
        others: The verdicts on the linked jobs.
    """
    # What a transfer waits for says more than that its engine waits for the same.
    known = services.KINDS if own.cause is not None and own.cause.transfer is not None else ()
    troubled = [one for one in others if one.cause is not None and one.cause.kind not in known]
    for other in troubled:
        inside = other.run.started_by is not None
        if other.run.beside and own.cause is None:
            return _of_another(own, other, Why.AT_THE_SAME_TIME.of(pids_of(own.run)))
        if inside and (own.cause is None or keeps_its_starter(other.run, own.cause)):
            starter = Why.STARTED_THESE.of(other.run.started_by)
            return _of_another(own, other, starter)
    stalled = own.cause is not None and own.cause.transfer is not None
    if troubled and (own.cause is None or stalled):
        other = troubled[0]
        assert other.cause is not None
        cause = other.cause.of_job(job_name(other.run))
        rest = [as_consequence(finding) for finding in own.findings]
        return replace(
            own,
            status=other.status,
            cause=cause,
            findings=(cause, *rest, *other.findings[1:]),
            summary=headline((cause, *other.causes[1:])),
            linked=tuple(others),
        )
    for other in troubled:
        if other.run.beside:
            note = Why.ANOTHER_JOB.of(f"{_of_job(other)}{other.summary}")
            own = replace(own, run=replace(own.run, notes=(*own.run.notes, note)))
    if own.cause is not None:
        return replace(own, linked=tuple(others))
    # Of an engine of one process, nothing but its transfers is recorded; they are in `own`.
    every = [own, *(other for other in others if has_posted(other.run))]
    worst = min(every, key=lambda one: _STATUSES.index(one.status))
    if worst.status != "ok":
        summary = f"{_of_job(worst)}{worst.summary}"
    else:
        summary = " ".join(f"{_of_job(one)}{one.summary}" for one in every)
    return replace(own, status=worst.status, summary=summary, linked=tuple(others))


def _of_another(own: Verdict, other: Verdict, how: str) -> Verdict:
    """Return the verdict on another job that hangs or diverged.

    Args:
        own: The verdict on this job.
        other: That on the other one.
        how: What this job has to do with that one.
    """
    assert other.cause is not None
    cause = other.cause.of_job(job_name(other.run))
    return replace(
        other,
        run=replace(other.run, notes=(*other.run.notes, f"{how}: {own.summary}")),
        cause=cause,
        findings=(cause, *other.findings[1:]),
        summary=headline((cause, *other.causes[1:])),
    )


def _of_job(verdict: Verdict) -> str:
    name = job_name(verdict.run)
    return f"{name}: " if name else ""


def _diagnose(
    run: Run, asked: Sequence[Analyzer], stall_seconds: float, live_stall_seconds: float
) -> Verdict:
    case = Case(run, stall_seconds=stall_seconds, live_stall_seconds=live_stall_seconds)
    coverage = survey(case.run)
    found = _ask(case, asked, coverage)
    cause = next((finding for finding in found if finding.role == "cause"), None)
    dumped = _from_dumps(run, cause, coverage, asked)
    if dumped:
        cause = dumped[0]
        found = [*dumped, *(as_consequence(one) for one in found)]
    agreement = Agreement("", "")
    if cause is None:
        seen = [one for one in found if one.role == "latent" and _waits(one)]
        nearly = _nearly(case, asked, coverage)
        found += nearly
        agreement = judge_agreement(case, nearly, seen, coverage)
        hidden = [one for one in found if hides_damage(one)]
        if hidden and agreement.status == "ok":
            agreement = Agreement("incomplete", Why.OTHERS_AGREE_IN_IT.of(hidden[0].summary))
    else:
        more = *describe_device(run, cause), *describe_steps(run, cause)
        described = replace(cause, evidence=(*cause.evidence, *more))
        found[found.index(cause)] = cause = described
    return Verdict(
        run=run,
        status=agreement.status if cause is None else _status(cause),
        cause=cause,
        findings=tuple(found),
        table=tuple(build_table(run)),
        neighbourhood=_neighbourhood(case, cause),
        quiet_seconds=case.quiet if cause is not None else None,
        coverage=coverage,
        summary=agreement.summary
        if cause is None
        else headline([one for one in found if one.role == "cause"]),
    )


def _ask(case: Case, analyzers: Sequence[Analyzer], coverage: Coverage) -> list[Finding]:
    """Return the analyzers' findings after a decision from all data sources, causes first."""
    case.tell_anew(retold(case, case.differences))
    claims = [
        (analyzer, replace(finding, analyzer=finding.analyzer or analyzer.name))
        for analyzer in steps("comparing", analyzers)
        for finding in analyzer.analyze(case)
    ]
    found = account(case, decide(case, settle(case, claims), coverage))
    return in_order(case, with_late(case, found))


def _from_dumps(
    run: Run, cause: Finding | None, coverage: Coverage, analyzers: Sequence[Analyzer]
) -> list[Finding]:
    """Return the findings from Flight Recorder dumps of the same ranks, the cause first.

    Dumps hold the calls that torch's C++ posts without passing a probe. Where the rings hold all
    calls and show a cause, the rings are preferred.
    """
    if run.dumped is None:
        return []
    more = any(one.by == "flight_recorder" and one.counted > one.recorded for one in coverage.comms)
    if cause is not None and not more:
        return []
    found = diagnose(run.dumped, analyzers=analyzers)
    if found.cause is None:
        return []
    first = replace(found.cause, evidence=(*found.cause.evidence, str(Why.FROM_DUMPS)))
    return [first, *found.findings[1:]]


def _nearly(case: Case, analyzers: Sequence[Analyzer], coverage: Coverage) -> list[Finding]:
    """Return latent findings of waits that would be hangs if they had lasted longer."""
    is_seen = case.timeless and case.run.snapshot is not None  # as long as it was sampled
    living = is_seen or any(rank.alive for rank in case.run.ranks)
    limit = case.live_stall_seconds if living else case.stall_seconds
    if (case.timeless and not is_seen) or limit <= (
        NOTICE_SECONDS if living else ENDED_NOTICE_SECONDS
    ):
        return []
    # Where calls are unrecorded, a call pending at the crash is the only evidence.
    unrecorded = any(uses_unrecorded(rank) for rank in case.run.ranks)
    notice = 0.0 if unrecorded else ENDED_NOTICE_SECONDS
    nearly = Case(
        case.run,
        stall_seconds=min(case.stall_seconds, notice),
        live_stall_seconds=min(case.live_stall_seconds, NOTICE_SECONDS),
    )
    return shortly_waiting(_ask(nearly, analyzers, coverage), limit, nearly.quiet)


def _waits(finding: Finding) -> bool:
    """Return whether a finding is about something that waits, as all findings from stacks are."""
    transfer = finding.transfer or {}
    if transfer.get("direction") == "recv" and transfer.get("state") == "waiting":
        return True
    return finding.analyzer == FROM_STACKS or is_hang(finding) or finding.kind == "p2p_mismatch"


def _status(cause: Finding) -> str:
    if cause.kind == LATE:
        return "unknown"
    return "hung" if is_hang(cause) else "diverged"


def _neighbourhood(case: Case, cause: Finding | None) -> Neighbourhood | None:
    if cause is None or cause.comm is None or cause.seq is None:
        return None
    if any(call is not None and call.op in P2P_OPS for call in (cause.odd, cause.peers)):
        return None  # transfers are numbered separately from collectives
    calls: dict[int, dict[int, Call]] = {}
    # What the case compares begins after the survived calls, so the call itself is not in there.
    logs = case.recorded if cause.survived else case.logs
    for rank, log in logs(cause.comm.key).items():
        near = log.span(max(log.first, cause.seq - 3), min(log.calls + 1, cause.seq + 4))
        calls[rank] = {call.seq: call for call in near if not isinstance(call, AssumedCall)}
    return Neighbourhood(cause.comm, cause.seq, calls)
