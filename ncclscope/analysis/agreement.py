"""Whether `ok` may be said where nothing diverged, and in which words.

That all recorded calls agree is no proof that a job is well: what hangs may be what was not
recorded. A job is in order that is seen to move, that rests for a known reason, or whose
processes have ended in order. Of records alone that end earlier, agreement is said of what was
recorded.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from ncclscope.analysis.case import Case
from ncclscope.analysis.coverage import Coverage, unrecorded_kinds
from ncclscope.analysis.processes.judgement import HANG_SECONDS
from ncclscope.analysis.processes.motion import read_motions
from ncclscope.analysis.sequences.difference import Difference
from ncclscope.analysis.waits.engine_steps import is_idle
from ncclscope.analysis.wording import plural, ranks_text, sentence
from ncclscope.model import Finding, Rank, Run
from ncclscope.model.metadata import DAMAGED
from ncclscope.model.snapshot import Snapshot

__all__ = [
    "ENDED_NOTICE_SECONDS",
    "HANG_SECONDS",
    "NOTICE_SECONDS",
    "Agreement",
    "judge_agreement",
    "shortly_waiting",
]

NOTICE_SECONDS = 2.0
"""Living ranks that have waited this long are mentioned; less is how any job runs."""
ENDED_NOTICE_SECONDS = 0.5
"""The same for ranks whose processes have ended: nobody will see whether it would have lasted."""

_AGREE = (
    "All ranks agree in what was recorded: on each communicator every member made the same calls "
    "in the same order, as far as it has come."
)


@dataclass(frozen=True)
class Agreement:
    """What is said of a run without a cause.

    Attributes:
        status: ``ok``, ``incomplete`` or ``unknown``.
        summary: One to three sentences.
    """

    status: str
    summary: str


def judge_agreement(
    case: Case, waiting: Sequence[Finding], seen: Sequence[Finding], coverage: Coverage
) -> Agreement:
    """Return whether a run without a cause is in order, and what says so.

    Args:
        case: What was recorded, and what was seen.
        waiting: Who waits by the records, and not yet for long enough to call it a hang.
        seen: The same by what was seen of living processes.
        coverage: What of the job is recorded.
    """
    run = case.run
    if run.missing:
        missing = sentence(ranks_text(run.missing))
        return Agreement(
            "incomplete", f"{missing} left no record. The others agree as far as they go."
        )
    if damaged := [rank.rank for rank in run.ranks if DAMAGED in unrecorded_kinds(rank)]:
        return Agreement(
            "incomplete",
            f"Some records of {ranks_text(damaged)} are damaged and cannot be read. The others "
            f"agree as far as they go.",
        )
    if case.uncompared and not all(rank.exited for rank in run.ranks):
        differ = _differ(case.uncompared[0])
        return Agreement("unknown", f"{differ} What they posted later cannot be compared.")
    snapshot = run.snapshot
    if not waiting and snapshot is not None and (posted := _posted_since(run, snapshot)):
        return Agreement(
            "ok",
            f"The job moves: {ranks_text(posted)} posted calls while it was watched for "
            f"{snapshot.gap:.0f} s. {_agree(case)}",
        )
    if late := waiting or seen:
        return Agreement("unknown", " ".join(dict.fromkeys(one.summary for one in late[:3])))
    if snapshot is not None:
        return _seen(case, snapshot, coverage)
    if any(rank.alive for rank in run.ranks):
        return _living(case, coverage)
    return _past(case, coverage)


def shortly_waiting(
    findings: Sequence[Finding], limit: float, seconds: float | None
) -> list[Finding]:
    """Return causes of waits that have not lasted long enough to be called a hang, as latent."""
    since = "" if seconds is None else f", for {seconds:.0f} s now"
    return [
        replace(
            one,
            summary=f"{one.summary.rstrip('.')}{since}: it is called a hang from {limit:.0f} s on.",
            diverging_ranks=(),
            candidate_ranks=one.diverging_ranks or one.candidate_ranks,
            confidence="ambiguous",
            role="latent",
        )
        for one in findings
        if one.role == "cause"
    ]


def _calls(run: Run) -> int:
    return max((log.calls for rank in run.ranks for log in rank.logs.values()), default=0)


def _agree(case: Case) -> str:
    if case.survived:
        first = case.survived[0]
        return f"{_differ(first)} All other recorded calls agree, as far as the ranks have come."
    return _AGREE if _calls(case.run) else "No collective was recorded."


def _differ(difference: Difference) -> str:
    name = difference.comm.label or difference.comm.key[:12]
    return f"On {name} the ranks differ in call {difference.seq} and completed calls after it."


def _unseen(coverage: Coverage) -> str:
    if coverage.complete:
        return ""
    more = len(coverage.unseen) - 2
    said = "; ".join(coverage.unseen[:2]) + (f"; and {more} more" if more > 0 else "")
    return f" Not recorded: {said}."


def _seen(case: Case, snapshot: Snapshot, coverage: Coverage) -> Agreement:
    """Judge a job whose processes were seen."""
    run = case.run
    motions = read_motions(snapshot)
    moving = [rank for rank, motion in motions.items() if motion.condition == "moving"]
    resting = [
        number
        for number, motion in motions.items()
        if (motion.condition == "still" and motion.waits == "queue")
        or motion.condition == "ended"
        or ((rank := run.by_rank.get(number)) is not None and (is_idle(rank) or rank.exited))
    ]
    traced = any(rank.logs for rank in run.ranks)
    agree = f" {_agree(case)}" if traced else ""
    if len(motions) == 1 and len(run.ranks) == 1:
        return Agreement(
            "unknown", "One process only: there is no other to compare it with." + agree
        )
    if len(resting) == len(motions):
        return Agreement("ok", f"All ranks wait for work, none for another.{agree}")
    if len({*moving, *resting}) == len(motions):
        return Agreement("ok", f"All ranks move. None differs from the others.{agree}")
    if len(moving) * 2 > len(motions):
        return Agreement(
            "ok",
            f"{len(moving)} of {plural(len(motions), 'rank')} move. None is seen to be "
            f"stuck.{agree}",
        )
    still = [rank for rank in motions if rank not in moving and rank not in resting]
    return Agreement(
        "unknown",
        f"{sentence(ranks_text(still))} did not move for {snapshot.gap:.0f} s, and nothing that "
        f"was seen says why.{agree}{_unseen(coverage)}",
    )


def _posted_since(run: Run, snapshot: Snapshot) -> list[int]:
    """Return the ranks that posted a call while the job was watched, by its own host's clock."""
    since = snapshot.time_ns - int(max(snapshot.gap, 1.0) * 1e9)
    hosts = snapshot.hosts or (snapshot.host,)
    return [
        rank.rank
        for rank in run.ranks
        if rank.host in hosts and any(time >= since for time in _times(rank))
    ]


def _times(rank: Rank) -> Iterator[int]:
    for call in (rank.last_call(), *rank.last_transfers().values()):
        if call is not None and call.time_ns:
            yield call.time_ns


def _living(case: Case, coverage: Coverage) -> Agreement:
    """Judge rings of processes that run."""
    run = case.run
    living = [rank for rank in run.ranks if rank.alive]
    awake = [rank for rank in living if not is_idle(rank)]
    if not awake:
        return Agreement("ok", f"All ranks wait for work, none for another. {_agree(case)}")
    quiet = [seconds for rank in awake if (seconds := _still_seconds(case, rank)) is not None]
    if quiet and min(quiet) < case.live_stall_seconds and _calls(run):
        return Agreement("ok", _agree(case))
    if not quiet:
        return Agreement("ok" if coverage.complete else "unknown", _agree(case) + _unseen(coverage))
    return Agreement(
        "unknown",
        f"No rank has posted a call for {min(quiet):.0f} s, and nothing recorded says whether "
        f"the job rests or hangs. {_agree(case)}{_unseen(coverage)}",
    )


def _still_seconds(case: Case, rank: Rank) -> float | None:
    """Return how long nothing has changed in a ring: no call, and none that completed."""
    seconds = rank.details.get("still_seconds")
    return seconds if isinstance(seconds, float) else case.quiet_seconds(rank)


def _past(case: Case, coverage: Coverage) -> Agreement:
    """Judge records of processes that have ended, or of which nobody knows whether they run."""
    run = case.run
    if all(rank.exited for rank in run.ranks):
        return Agreement("ok", f"All processes ended in order. {_agree(case)}")
    if not coverage.complete:
        return Agreement(
            "unknown",
            f"{_agree(case)} But not all that the job does is recorded.{_unseen(coverage)}",
        )
    return Agreement("ok", _agree(case))
