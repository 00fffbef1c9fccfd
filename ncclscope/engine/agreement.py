"""Decide whether a run without a cause is `ok`, and word its summary.

Agreement of all recorded calls does not prove that a job is healthy: an unrecorded call may
hang. A job is `ok` if it moves, if it is idle for a known reason, or if its processes exited
normally. Where the records end earlier, agreement is reported of the records alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from ncclscope.engine.case import Case
from ncclscope.engine.coverage import (
    Coverage,
    cut_short,
    gone_texts,
    unlogged_members,
    unrecorded_kinds,
    untraced_texts,
)
from ncclscope.engine.failures import failure_of, failures_of, held_engines
from ncclscope.engine.processes.judgement import HANG_SECONDS
from ncclscope.engine.processes.motion import Motion, read_motions
from ncclscope.engine.records import DEAD_SECONDS
from ncclscope.engine.sequences.difference import Difference
from ncclscope.engine.services.requests import open_requests, paused, stepping, without_engine
from ncclscope.engine.table import peer_of
from ncclscope.engine.waits.engine_steps import is_idle, schedules_itself
from ncclscope.engine.waits.graph import wait_graph
from ncclscope.engine.waits.passed_by import passed_by
from ncclscope.engine.waits.waits import ended_by, ended_by_peers, is_in_transfer, was_interrupted
from ncclscope.model import Finding, Rank, Run, State
from ncclscope.model.activities import LOOP
from ncclscope.model.metadata import DAMAGED
from ncclscope.model.snapshot import Snapshot
from ncclscope.wording.ends import Failure
from ncclscope.wording.names import call_on, plural, ranks_text, sentence
from ncclscope.wording.notes import Requests
from ncclscope.wording.verdicts import Why, not_recorded, too_short

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
            others = Why.START if any(rank.alive for rank in run.ranks) else Why.NONE_OF_OTHERS
            return Agreement("unknown", others.of(missing) if run.ranks else missing)
        return Agreement("incomplete", Why.OTHERS_AGREE.of(missing))
    damaged = [rank.rank for rank in run.ranks if DAMAGED in unrecorded_kinds(rank)]
    if damaged := sorted([*damaged, *run.unreadable]):
        text = Why.DAMAGED.of(damaged)
        return Agreement("incomplete", Why.OTHERS_AGREE.of(text))
    if lacking := sorted({number for _, ranks in unlogged_members(run) for number in ranks}):
        made = [one for one in (*case.survived, *case.differences) if one.comm.creates_groups]
        text = Why.LACKING.of(lacking)
        rest = f"{text} {_differ(made[0])}" if made else Why.OTHERS_AGREE.of(text)
        return Agreement("incomplete", rest)
    if cut := sorted({number for _, ranks in cut_short(run) for number in ranks}):
        text = Why.CUT_SHORT.of(cut)
        return Agreement("incomplete", Why.OTHERS_AGREE.of(text))
    if inside := [rank.rank for rank in run.ranks if _may_wait_for_unknown_ranks(rank)]:
        return Agreement(
            "unknown", Why.UNSIZED.of(dumps=plural(len(run.ranks), "rank"), inside=inside)
        )
    if inside := _left_open(case):
        return Agreement("unknown", f"{Why.LEFT_OPEN.of(inside)} {_agree(case)}")
    if failure := failure_of(case):
        return Agreement("unknown", f"{failure} {_agree(case)}")
    if cut_off := [rank.rank for rank in run.ranks if ended_by_peers(rank)]:
        text = Why.CUT_OFF.of(cut_off)
        return Agreement("unknown", f"{text} {_agree(case)}")
    if case.uncompared and not all(rank.exited for rank in run.ranks):
        return Agreement("unknown", Why.NOT_COMPARED.of(_differ(case.uncompared[0])))
    if passed := list(passed_by(case))[:_SHOWN]:
        return Agreement("unknown", Why.GO_ON.of(" ".join(passed)))
    snapshot = run.snapshot
    if not waiting and snapshot is not None and (posted := _posted_since(run, snapshot)):
        text = Why.MOVES.of(posted, snapshot.gap)
        return Agreement("ok", f"{text} {_agree(case)}")
    if late := waiting or seen:
        return Agreement("unknown", _summaries(late))
    if snapshot is not None:
        judged = _seen(case, snapshot, coverage)
    elif any(rank.alive for rank in run.ranks):
        judged = _living(case, coverage)
    else:
        judged = _past(case, coverage)
    return _with_requests(case, judged)


def _with_requests(case: Case, judged: Agreement) -> Agreement:
    """Return an agreement, unless requests have had no answer and no rank has done anything."""
    count, seconds = open_requests(case)
    quiet = [case.quiet_seconds(rank) for rank in case.run.ranks if rank.logs]
    quiet += map(_age_of_step, case.run.ranks)
    moves = any(one is not None and one < case.live_stall_seconds for one in quiet)
    if judged.status != "ok" or not count or moves:
        return judged
    wait = plural(count, "open request")
    for engine, since in paused(case.run):
        text = Requests.PAUSED.of(engine.labels.get("engine", "0"), engine.pid, since, wait)
        return Agreement("ok", f"{text} {judged.summary}")
    return Agreement("unknown", f"{Requests.OPEN.of(sentence(wait), seconds)} {judged.summary}")


def shortly_waiting(
    findings: Sequence[Finding], limit: float, seconds: float | None
) -> list[Finding]:
    """Return causes of waits that are too short to be reported as hangs, as latent findings.

    Args:
        findings: Findings made with lower thresholds.
        limit: Seconds of waiting from which on a wait is a hang.
        seconds: Seconds that the ranks have waited; None when not known.
    """
    clause = too_short(seconds, limit)
    return [
        replace(
            one.with_clause(clause).undecided(one.diverging_ranks or one.candidate_ranks),
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
        return Why.ALL_OTHERS_AGREE.of(_differ(first))
    if not _calls(case.run) and (alone := [one for one in case.run.others if one.logs]):
        return Why.NO_RANK.of(Why.ONE if len(alone) == 1 else plural(len(alone), "process"))
    return str(Why.AGREE if _calls(case.run) else Why.NO_COLLECTIVE)


def _differ(difference: Difference) -> str:
    return Why.DIFFER.of(difference.comm.label or difference.comm.key[:12], difference.seq)


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
        if schedules_itself(run.ranks[0]) and run.ranks[0].alive:
            return _living(case, coverage)
        (alone,) = motions.values()
        where = Why.STAYS.of(snapshot.gap, alone.text) if _stays(alone) else ""
        return Agreement("unknown", f"{Why.ONE_PROCESS}{where}{agree}")
    ended += [rank.rank for rank in run.ranks if rank.alive is False and rank.rank not in motions]
    if lost := [number for number in ended if not _exited(run, number)]:
        return Agreement("unknown", Why.HAD_ENDED.of(lost) + agree)
    if unfed := [number for number in resting if number in motions and motions[number].is_unfed]:
        return Agreement("unknown", Why.UNFED.of(unfed) + agree)
    if held := held_engines(snapshot, is_idle=len(resting) == len(motions)):
        text = Why.WORKERS_WAIT.of(held) if len(resting) == len(motions) else held
        return Agreement("unknown", text + agree)
    if pids := [one.pid for one in stepping(run)]:
        engines = " and ".join(map(Failure.ENGINE.of, pids))
        return Agreement("unknown", Why.NO_MODEL.of(engines) + agree)
    if len(resting) == len(motions):
        if silent := _silent(case, motions):
            return Agreement("unknown", Why.SILENT.of(silent) + agree)
        if connected := _clients(run, snapshot):
            return Agreement("unknown", Why.CLIENTS.of(plural(connected, "connection")) + agree)
        if idle := without_engine(run):
            return Agreement("unknown", Why.NO_ENGINE.of(idle) + agree)
        gone = [number for number in resting if _exited(run, number)]
        text = Why.OTHERS_WAIT.of(gone) if gone else str(Why.ALL_WAIT)
        return Agreement("ok", text + agree)
    if len({*moving, *resting}) == len(motions):
        return Agreement("ok", f"{Why.ALL_MOVE}{agree}")
    if len(moving) * 2 > len(motions):
        most = Why.MOST_MOVE.of(len(moving), plural(len(motions), "rank"))
        return Agreement("ok", most + agree)
    still = [rank for rank in motions if rank not in moving and rank not in resting]
    places = [Why.IS_AT.of(rank, motions[rank].text) for rank in still if motions[rank].text]
    text = Why.STILL.of(still, snapshot.gap)
    if places:
        text = Why.STILL_AT.of(still, snapshot.gap, "; ".join(places[:_SHOWN]))
    text = f"{_left_over(run)}{text}"
    return Agreement("unknown", f"{text}{agree}{not_recorded(coverage.unseen)}")


def _stays(motion: Motion) -> bool:
    """Return whether a process did not move, anywhere but where it waits for work."""
    return motion.condition == "still" and motion.waits != "queue" and bool(motion.text)


def _left_over(run: Run) -> str:
    """Say which ranks exited in order and which did not; empty unless there are both."""
    exited = [rank.rank for rank in run.ranks if rank.ended_well]
    left = [rank.rank for rank in run.ranks if not rank.exited]
    return Why.NOT_EXITED.of(exited, left) if exited and left else ""


def _clients(run: Run, snapshot: Snapshot) -> int:
    """Return how many clients are connected to servers that have not recorded their requests."""
    recorded = {one.pid for one in run.others if LOOP in one.activities}
    return sum(one.clients for one in snapshot.servers if one.pid not in recorded)


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
    """Return the ranks whose dumps, written long after their last call, do not show its end.

    Not each backend shows when a call has completed, and gloo does not of sends and receives.
    """
    dumped = [rank for rank in case.run.ranks if rank.details.get("dumped")]
    return [
        rank.rank
        for rank in dumped
        if rank.rank in case.waits.heads
        or is_in_transfer(rank)
        or (rank.last_call() is not None and not rank.details.get("tells"))
    ]


def _exited(run: Run, number: int) -> bool:
    rank = run.by_rank.get(number)
    return rank is not None and rank.exited


def _living(case: Case, coverage: Coverage) -> Agreement:
    """Judge the rings of processes that still run."""
    run = case.run
    living = [rank for rank in run.ranks if rank.alive]
    awake = [rank for rank in living if not is_idle(rank)]
    if not awake:
        return Agreement("ok", f"{Why.ALL_WAIT} {_agree(case)}")
    quiet = [seconds for rank in awake if (seconds := _still_seconds(case, rank)) is not None]
    unseen = not_recorded(coverage.unseen)
    if steps := _stepping(case, awake):
        return Agreement("ok", f"{Why.STEPS.of(steps)} {_agree(case)}")
    if not has_posted(run):
        return Agreement("unknown", f"{Why.NONE_YET}{unseen}")
    if quiet and min(quiet) < case.live_stall_seconds:
        return Agreement("ok", _agree(case))
    if not quiet:
        return Agreement("ok" if coverage.complete else "unknown", _agree(case) + unseen)
    quietly = f"{_left_over(run)}{Why.QUIET.of(min(quiet))}"
    return Agreement("unknown", f"{quietly} {_agree(case)}{unseen}")


def _stepping(case: Case, awake: Sequence[Rank]) -> list[int]:
    """Return the ranks, if all of them have begun an engine step of late.

    Where there is only one rank, no collective shows that it moves.
    """
    ages = map(_age_of_step, awake)
    late = any(age is None or age >= case.live_stall_seconds for age in ages)
    return [] if late else [rank.rank for rank in awake]


def _age_of_step(rank: Rank) -> float | None:
    """Return the seconds since a rank began an engine step; None where it has begun none."""
    step = rank.activities.get("step")
    if step is None or rank.last_seen_ns is None:
        return None
    return (rank.last_seen_ns - step.since_ns) / 1e9


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
    if not run.ranks and not all(one.exited for one in run.others):
        # A server, whose engine may be about to start.
        return Agreement("unknown", str(Why.NONE_YET))
    if all(rank.exited for rank in run.ranks):
        failures = failures_of(run.ranks)
        if not failures and (caught := _caught(run)):
            return Agreement("unknown", f"{caught} {Why.EXITED} {_agree(case)}")
        if not failures:
            return Agreement("ok", f"{Why.EXITED} {_agree(case)}")
        ended = [rank for rank in run.ranks if rank.details.get("ended_with")]
        stopped = _calls(run) and all(map(was_interrupted, ended))
        return Agreement("ok" if stopped else "unknown", f"{failures} {_agree(case)}")
    if not coverage.complete:
        partly = Why.PARTLY.of(_agree(case))
        return Agreement("unknown", partly + not_recorded(coverage.unseen))
    if not has_posted(run):
        return Agreement("unknown", str(Why.NO_CALL))
    awake = [rank for rank in run.ranks if not (rank.exited or is_idle(rank))]
    quiet = [case.quiet_seconds(rank) for rank in awake if rank.last_call(transfers=True)]
    known = [seconds for seconds in quiet if seconds is not None]
    if len(known) == len(quiet) and min(known, default=0.0) >= case.live_stall_seconds:
        quietly = f"{_left_over(run)}{Why.WAS_QUIET.of(min(known))}"
        return Agreement("unknown", f"{quietly} {_agree(case)}")
    if lost := _lost(run):
        return Agreement("unknown", f"{Why.NO_END.of(lost)} {_agree(case)}")
    if gone := _gone_before(case, awake):
        return Agreement("unknown", f"{Why.GONE_EARLY.of(gone)} {_agree(case)}")
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
    return Why.HAD_WAITED.of(waiting, shortest, f", for {ranks_text(missed)}" if missed else "")


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
    return Why.RAISED.of(found, call_on(run.communicators[call.comm], call))


def _lost(run: Run) -> list[int]:
    """Return the ranks that recorded no end, though the others exited in order.

    Their processes are gone; or, where that is not known, they are in a call that all others have
    left. A ring may also have been copied shortly before the end of its process.
    """
    lost = [rank for rank in run.ranks if not (rank.exited or rank.alive)]
    if len(lost) == len(run.ranks) or not all(r.ended_well for r in run.ranks if r not in lost):
        return []
    return [rank.rank for rank in lost if rank.alive is False or _is_left_in_call(run, rank)]


def _is_left_in_call(run: Run, rank: Rank) -> bool:
    """Return whether a call of a rank is not known to have completed, and all its peers exited."""
    if rank.details.get("beating"):
        return False
    last = (log.call(log.calls) for log in rank.logs.values() if log.calls >= log.first)
    for call in (*last, *rank.last_transfers().values()):
        comm = run.communicators[call.comm]
        peer = peer_of(call, comm)
        others = {*comm.ranks} - {rank.rank} if peer is None else {peer}
        if call.state is not State.COMPLETED and all(_exited(run, number) for number in others):
            return True
    return False


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
