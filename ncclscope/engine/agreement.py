"""Decide whether a run without a cause is `ok`, and word its summary.

Agreement of all recorded calls does not prove that a job is healthy: an unrecorded call may
hang. A job is `ok` if it moves, if it is idle for a known reason, or if its processes exited
normally. Where the records end earlier, agreement is reported of the records alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from ncclscope.engine.case import DEAD_SECONDS, Case
from ncclscope.engine.coverage import Coverage, gone_texts, unrecorded_kinds, untraced_texts
from ncclscope.engine.failures import failure_of, failures_of, held_engines
from ncclscope.engine.processes.judgement import HANG_SECONDS
from ncclscope.engine.processes.motion import Motion, read_motions
from ncclscope.engine.sequences.difference import Difference
from ncclscope.engine.unlogged import cut_short, unlogged_members
from ncclscope.engine.waits.endings import ended_by, ended_by_peers, was_interrupted
from ncclscope.engine.waits.engine_steps import is_idle
from ncclscope.engine.waits.graph import wait_graph
from ncclscope.engine.waits.passed_by import passed_by
from ncclscope.model import Finding, Rank, Run, State
from ncclscope.model.metadata import DAMAGED
from ncclscope.model.snapshot import Snapshot
from ncclscope.wording.names import (
    call_text,
    comm_text,
    plural,
    ranks_text,
    sentence,
    verb,
)

__all__ = [
    "ENDED_NOTICE_SECONDS",
    "HANG_SECONDS",
    "NOTICE_SECONDS",
    "Agreement",
    "has_posted",
    "judge_agreement",
    "shortly_waiting",
]

NOTICE_SECONDS = 2.0
"""Live ranks that have waited this long are reported; shorter waits are normal."""
ENDED_NOTICE_SECONDS = 0.5
"""The same for ranks whose processes have ended, which cannot be observed any longer."""

_SHOWN = 3
_AGREE = (
    "All ranks agree in their recorded calls: on each communicator, all members posted the same "
    "calls in the same order, as far as they have come."
)


@dataclass(frozen=True)
class Agreement:
    """The verdict on a run without a cause.

    Attributes:
        status: ``ok``, ``incomplete`` or ``unknown``.
        summary: One to three sentences.
    """

    status: str
    summary: str


def judge_agreement(
    case: Case, waiting: Sequence[Finding], seen: Sequence[Finding], coverage: Coverage
) -> Agreement:
    """Return whether a run without a cause is ok, and why.

    Args:
        case: The records, and the process snapshot.
        waiting: Findings from the records about waits that are still too short for a hang.
        seen: The same findings from the process snapshot.
        coverage: How much of the job is recorded.
    """
    run = case.run
    if lost := [sentence(text) for text in (*gone_texts(run), *untraced_texts(run))]:
        missing = f"{'. '.join(lost)}."
        if findings := seen or waiting:  # others may wait for them
            return Agreement("unknown", f"{missing} {_summaries(findings)}")
        if not has_posted(run):
            others = " The others have posted no call." if run.ranks else ""
            return Agreement("unknown", f"{missing}{others}")
        return Agreement("incomplete", f"{missing} The others agree as far as they go.")
    damaged = [rank.rank for rank in run.ranks if DAMAGED in unrecorded_kinds(rank)]
    if damaged := sorted([*damaged, *run.unreadable]):
        return Agreement(
            "incomplete",
            f"Some records of {ranks_text(damaged)} are damaged and cannot be read. The others "
            f"agree as far as they go.",
        )
    if lacking := sorted({number for _, ranks in unlogged_members(run) for number in ranks}):
        made = [one for one in (*case.survived, *case.differences) if one.comm.creates_groups]
        rest = _differ(made[0]) if made else "The others agree as far as they go."
        return Agreement(
            "incomplete",
            f"The records of {ranks_text(lacking)} lack a communicator on which their peers "
            f"completed calls. {rest}",
        )
    if cut := sorted({number for _, ranks in cut_short(run) for number in ranks}):
        return Agreement(
            "incomplete",
            f"The records of {ranks_text(cut)} lack the last calls that their peers completed. The "
            f"others agree as far as they go.",
        )
    if inside := [rank.rank for rank in run.ranks if _may_wait_for_unknown_ranks(rank)]:
        return Agreement(
            "unknown",
            f"No dump shows how many ranks the job has: {plural(len(run.ranks), 'rank')} left one, "
            f"and {ranks_text(inside)} {verb(inside, 'wait')} in a call that others may not have "
            f"joined.",
        )
    if inside := _left_open(case):
        return Agreement(
            "unknown",
            f"{sentence(ranks_text(inside))} {verb(inside, 'have')} calls that are not known to "
            f"have completed, long after the last one. {_agree(case)}",
        )
    if failure := failure_of(case):
        return Agreement("unknown", f"{failure} {_agree(case)}")
    if cut_off := [rank.rank for rank in run.ranks if ended_by_peers(rank)]:
        return Agreement(
            "unknown",
            f"{sentence(ranks_text(cut_off))} ended by an error of a connection to a peer, and no "
            f"record shows whose end was the first. {_agree(case)}",
        )
    if case.uncompared and not all(rank.exited for rank in run.ranks):
        differ = _differ(case.uncompared[0])
        return Agreement("unknown", f"{differ} Later calls there cannot be compared.")
    if passed := list(passed_by(case))[:_SHOWN]:
        doubt = "A thread of it that is late looks the same."
        return Agreement("unknown", f"Some ranks go on. {' '.join(passed)} {doubt}")
    snapshot = run.snapshot
    if not waiting and snapshot is not None and (posted := _posted_since(run, snapshot)):
        return Agreement(
            "ok",
            f"The job moves: {ranks_text(posted)} posted calls within the {snapshot.gap:.0f} s "
            f"between two samples. {_agree(case)}",
        )
    if late := waiting or seen:
        return Agreement("unknown", _summaries(late))
    if snapshot is not None:
        return _seen(case, snapshot, coverage)
    if any(rank.alive for rank in run.ranks):
        return _living(case, coverage)
    return _past(case, coverage)


def shortly_waiting(
    findings: Sequence[Finding], limit: float, seconds: float | None
) -> list[Finding]:
    """Return causes of waits that are too short to be reported as hangs, as latent findings.

    Args:
        findings: Findings made with lower thresholds.
        limit: Seconds of waiting from which on a wait is a hang.
        seconds: Seconds that the ranks have waited; None when not known.
    """
    since = "" if seconds is None else f", for {seconds:.0f} s now"
    return [
        replace(
            one.with_clause(f"{since}; a hang is reported from {limit:.0f} s on").undecided(
                one.diverging_ranks or one.candidate_ranks
            ),
            role="latent",
        )
        for one in findings
        if one.role == "cause"
    ]


def _summaries(findings: Sequence[Finding]) -> str:
    return " ".join(dict.fromkeys(one.summary for one in findings[:_SHOWN]))


def _calls(run: Run) -> int:
    return max((log.calls for rank in run.ranks for log in rank.logs.values()), default=0)


def has_posted(run: Run) -> bool:
    """Return whether a call or a transfer between engines is recorded."""
    return any(rank.last_call(transfers=True) or rank.transfers for rank in run.ranks)


def _agree(case: Case) -> str:
    if case.survived:
        first = case.survived[0]
        return f"{_differ(first)} All other recorded calls agree, as far as the ranks have come."
    if not _calls(case.run) and (alone := [one for one in case.run.others if one.logs]):
        who = "One process" if len(alone) == 1 else f"{len(alone)} processes"
        return f"{who} recorded calls without a rank, on no communicator of another process."
    return _AGREE if _calls(case.run) else "No collective was recorded."


def _differ(difference: Difference) -> str:
    name = difference.comm.label or difference.comm.key[:12]
    return f"On {name} the ranks differ in call {difference.seq} and completed calls after it."


def _unseen(coverage: Coverage) -> str:
    if coverage.complete:
        return ""
    more = len(coverage.unseen) - 2
    listed = "; ".join(coverage.unseen[:2]) + (f"; and {more} more" if more > 0 else "")
    return f" Not recorded: {listed}."


def _seen(case: Case, snapshot: Snapshot, coverage: Coverage) -> Agreement:
    """Judge a job by its process snapshot."""
    run = case.run
    motions = read_motions(snapshot)
    moving = [rank for rank, motion in motions.items() if motion.condition == "moving"]
    ended = [number for number, motion in motions.items() if motion.condition == "ended"]
    resting = [
        number
        for number, motion in motions.items()
        if (motion.condition == "still" and motion.waits == "queue")
        or _exited(run, number)
        or (number in run.by_rank and is_idle(run.by_rank[number]))
    ]
    traced = any(rank.logs for rank in run.ranks)
    agree = f" {_agree(case)}" if traced else ""
    if run.ranks and all(rank.exited for rank in run.ranks):
        return _past(case, coverage)
    if len(motions) == 1 and len(run.ranks) == 1 and not run.linked:
        return Agreement(
            "unknown", "There is only one process, and none to compare it with." + agree
        )
    if lost := [number for number in ended if not _exited(run, number)]:
        return Agreement(
            "unknown",
            f"{sentence(ranks_text(lost))} had ended when the processes were sampled, and no "
            f"record shows how.{agree}",
        )
    if unfed := [number for number in resting if number in motions and motions[number].is_unfed]:
        return Agreement(
            "unknown",
            f"{sentence(ranks_text(unfed))} {verb(unfed, 'wait')} in a queue of "
            f"{'its' if len(unfed) == 1 else 'their'} own process, in which no other Python thread "
            f"runs that could fill it.{agree}",
        )
    if held := held_engines(snapshot, is_idle=len(resting) == len(motions)):
        wait = " Its workers wait for work." if len(resting) == len(motions) else ""
        return Agreement("unknown", f"{held}{wait}{agree}")
    if len(resting) == len(motions):
        if silent := _silent(case, motions):
            return Agreement(
                "unknown",
                f"All ranks wait for input and have posted no call for {silent:.0f} s: a server "
                f"without requests looks the same.{agree}",
            )
        gone = [number for number in resting if _exited(run, number)]
        who = "All other ranks" if gone else "All ranks"
        end = f"{sentence(ranks_text(gone))} exited. " if gone else ""
        return Agreement("ok", f"{end}{who} wait for work, none for another rank.{agree}")
    if len({*moving, *resting}) == len(motions):
        return Agreement("ok", f"All ranks move. None differs from the others.{agree}")
    if len(moving) * 2 > len(motions):
        return Agreement(
            "ok",
            f"{len(moving)} of {plural(len(motions), 'rank')} move. No rank appears to be "
            f"stuck.{agree}",
        )
    still = [rank for rank in motions if rank not in moving and rank not in resting]
    return Agreement(
        "unknown",
        f"{sentence(ranks_text(still))} did not move for {snapshot.gap:.0f} s, and no data source "
        f"shows why.{agree}{_unseen(coverage)}",
    )


def _silent(case: Case, motions: Mapping[int, Motion]) -> float:
    """Return for how long ranks have waited for an input which no record and no engine explains.

    Returns:
        Seconds since the last call of any of them; 0.0 where that is less than a hang's.
    """
    quiet = []
    for rank in case.run.ranks:
        motion = motions.get(rank.rank)
        if motion is None or motion.waits != "queue" or motion.is_served:
            continue
        if not rank.exited and not is_idle(rank) and rank.last_call(transfers=True):
            quiet.append(_still_seconds(case, rank) or 0.0)
    shortest = min(quiet, default=0.0)
    return shortest if shortest >= case.live_stall_seconds else 0.0


def _posted_since(run: Run, snapshot: Snapshot) -> list[int]:
    """Return the ranks that posted a call between the samples, by their own host's clock."""
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


def _left_open(case: Case) -> list[int]:
    """Return the ranks whose dumps, written long after their last call, do not show its end."""
    return [
        rank.rank
        for rank in case.run.ranks
        if rank.details.get("dumped")
        and (rank.rank in case.waits.heads or _shows_no_end(case, rank))
    ]


def _shows_no_end(case: Case, rank: Rank) -> bool:
    """Return whether none of a rank's calls is known to have completed, though NCCL reports it."""
    backends = {case.run.communicators[key].backend for key, log in rank.logs.items() if log.calls}
    return not rank.details.get("tells") and any("nccl" in one for one in backends)


def _exited(run: Run, number: int) -> bool:
    rank = run.by_rank.get(number)
    return rank is not None and rank.exited


def _living(case: Case, coverage: Coverage) -> Agreement:
    """Judge the rings of processes that still run."""
    run = case.run
    living = [rank for rank in run.ranks if rank.alive]
    awake = [rank for rank in living if not is_idle(rank)]
    if not awake:
        return Agreement("ok", f"All ranks wait for work, none for another rank. {_agree(case)}")
    quiet = [seconds for rank in awake if (seconds := _still_seconds(case, rank)) is not None]
    if not has_posted(run):
        return Agreement("unknown", f"No rank has posted a call yet.{_unseen(coverage)}")
    if quiet and min(quiet) < case.live_stall_seconds:
        return Agreement("ok", _agree(case))
    if not quiet:
        return Agreement("ok" if coverage.complete else "unknown", _agree(case) + _unseen(coverage))
    return Agreement(
        "unknown",
        f"No rank has posted a call for {min(quiet):.0f} s, and the records do not show whether "
        f"the job is idle or hangs. {_agree(case)}{_unseen(coverage)}",
    )


def _still_seconds(case: Case, rank: Rank) -> float | None:
    """Return the seconds in which no call in a ring was posted or completed."""
    seconds = rank.details.get("still_seconds")
    return seconds if isinstance(seconds, float) else case.quiet_seconds(rank)


def _may_wait_for_unknown_ranks(rank: Rank) -> bool:
    """Return whether a dump leaves open how many ranks there are, and was made long after a call.

    A dump from a running job is written right after a call that is under way.
    """
    last = rank.last_call()
    if last is None or last.state is State.COMPLETED:
        return False
    return bool(rank.details.get("unsized") and rank.details.get("dumped"))


def _past(case: Case, coverage: Coverage) -> Agreement:
    """Judge the records of processes that have ended or whose state is unknown."""
    run = case.run
    if all(rank.exited for rank in run.ranks):
        failures = failures_of(run.ranks)
        if not failures and (caught := _caught(run)):
            return Agreement("unknown", f"{caught} All processes exited normally. {_agree(case)}")
        if not failures:
            return Agreement("ok", f"All processes exited normally. {_agree(case)}")
        ended = [rank for rank in run.ranks if rank.details.get("ended_with")]
        stopped = _calls(run) and all(map(was_interrupted, ended))
        return Agreement("ok" if stopped else "unknown", f"{failures} {_agree(case)}")
    if not coverage.complete:
        return Agreement(
            "unknown",
            f"{_agree(case)} But not all calls of the job are recorded.{_unseen(coverage)}",
        )
    if not has_posted(run):
        return Agreement("unknown", "No call was recorded, and no record shows how the job ended.")
    awake = [rank for rank in run.ranks if not (rank.exited or is_idle(rank))]
    quiet = [case.quiet_seconds(rank) for rank in awake if rank.last_call(transfers=True)]
    known = [seconds for seconds in quiet if seconds is not None]
    if len(known) == len(quiet) and min(known, default=0.0) >= case.live_stall_seconds:
        return Agreement(
            "unknown",
            f"No rank had posted a call for {min(known):.0f} s when the processes ended, and the "
            f"records do not show whether the job was idle or hung. {_agree(case)}",
        )
    if gone := _gone_before(case, awake):
        return Agreement(
            "unknown",
            f"{sentence(ranks_text(gone))} {'is' if len(gone) == 1 else 'are'} gone without a "
            f"recorded end, seconds before other ranks. {_agree(case)}",
        )
    if waiting := _long_waits(case):
        return Agreement("unknown", f"{waiting} {_agree(case)}")
    return Agreement("ok", _agree(case))


def _long_waits(case: Case) -> str:
    """Say which ranks had waited for others when the job ended, for as long as a hang lasts."""
    graph, run = wait_graph(case), case.run
    quiet = {number: case.still_seconds(run.by_rank[number]) for number in graph.waiting}
    waiting = [
        number
        for number, seconds in quiet.items()
        if (seconds or 0.0) >= case.stall_seconds
        # Nobody is left who could come.
        or all(
            _exited(run, peer) for wait in graph.waiting[number] for peer in wait.awaited or {-1}
        )
    ]
    if not waiting:
        return ""
    awaited = {rank for n in waiting for wait in graph.waiting[n] for rank in wait.awaited}
    missed = sorted(graph.sinks & awaited)
    shortest = min(quiet[number] or 0.0 for number in waiting)
    return (
        f"{sentence(ranks_text(waiting))} had waited for {shortest:.0f} s when the processes ended"
        f"{f', for {ranks_text(missed)}' if missed else ''}."
    )


def _caught(run: Run) -> str:
    """Say which ranks raised in a last call that did not complete, as by its timeout."""
    calls = {rank.rank: rank.last_call() for rank in run.ranks}
    found = {
        number: call
        for number, call in calls.items()
        if call is not None and ended_by(call, run.by_rank[number], lambda rank: rank.exited)
    }
    if not found:
        return ""
    call = next(iter(found.values()))
    where = comm_text(run.communicators[call.comm])
    return (
        f"{sentence(ranks_text([*found]))} raised in call {call.seq} on {where}, "
        f"{call_text(call)}, which did not complete."
    )


def _gone_before(case: Case, ranks: Sequence[Rank]) -> list[int]:
    """Return the ranks whose heartbeats ended before those of others did.

    Who kills a whole job ends all of them at once. Hosts' clocks differ: across them, the time
    since a rank's last call counts.
    """
    seen: dict[str, dict[int, int]] = {}
    for rank in ranks:
        if rank.alive is False and rank.last_seen_ns is not None:
            boot = str(rank.details.get("boot_id") or rank.host)
            seen.setdefault(boot, {})[rank.rank] = rank.last_seen_ns
    on_a_host = {
        number
        for ends in seen.values()
        for number, end in ends.items()
        if max(ends.values()) - end >= DEAD_SECONDS * 1e9
    }
    numbers = [rank.rank for rank in ranks]
    elsewhere = {
        rank.rank
        for rank in ranks
        if rank.alive is None and case.outlived_by(rank, numbers) is not None
    }
    return sorted(on_a_host | elsewhere)
