"""Tell a rank that is late, since it is at work or asleep, from one that hangs; and what keeps it.

A rank that uses a core may still come to the call in which its peers wait, or never: in an endless
loop it looks the same. A rank in a timed sleep goes on by itself when that ends. So lateness is no
hang, and never certain.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from ncclscope.engine.case import Case
from ncclscope.engine.coverage import uses_unrecorded
from ncclscope.engine.precedence import LATE, WAITS, as_consequence, is_hang
from ncclscope.engine.processes.judgement import HANG_SECONDS
from ncclscope.engine.processes.motion import SOON_SECONDS, is_seen_at_work, read_motions, seen_at
from ncclscope.engine.records import DEAD_SECONDS
from ncclscope.engine.repairs.graph import WaitGraph
from ncclscope.engine.waits.engine_steps import is_idle
from ncclscope.engine.waits.graph import dependants, wait_graph
from ncclscope.engine.waits.noted import doing, lasting, raised
from ncclscope.engine.waits.pace import is_as_slow_as_ever
from ncclscope.engine.waits.waits import is_in_transfer
from ncclscope.model import Blame, Communicator, Finding, Rank
from ncclscope.model.activities import ASLEEP, CPU
from ncclscope.model.threads import is_any_thread
from ncclscope.wording.doubts import Doubt
from ncclscope.wording.names import numbered, who_text
from ncclscope.wording.waits import Keeps, Wait

if TYPE_CHECKING:
    from collections.abc import Sequence


def wakes_of(case: Case, numbers: Iterable[int]) -> dict[int, float]:
    """Return in how many seconds the ranks wake that are in one timed sleep, by rank.

    A sleep counts if it is one of at least half the time for which the rank had posted nothing when
    it began: one that polls has slept many times by then.

    Args:
        case: The case.
        numbers: The ranks.
    """
    found = {rank: _wakes_in(case, rank) for rank in numbers}
    return {rank: seconds for rank, seconds in found.items() if seconds is not None}


def _wakes_in(case: Case, number: int) -> float | None:
    rank = case.run.by_rank.get(number)
    if rank is None or not may_be_late(case, rank):
        return None
    snapshot = case.run.snapshot
    motion = None if snapshot is None else read_motions(snapshot).get(number)
    is_seen = motion is not None and motion.condition in ("moving", "still")
    if motion is not None and is_seen and (motion.wakes is None or CPU not in rank.activities):
        return motion.wakes  # it is awake, or no heartbeat shows for how long it has slept
    sleep, seen = lasting(rank, ASLEEP), rank.last_seen_ns
    if sleep is None or seen is None or is_idle(rank):
        return None
    begun, length = sleep.activity.since_ns, sleep.activity.number / 1000
    before = (begun - _begin_of_silence(rank)) / 1e9
    left = length - (seen - begun) / 1e9
    return max(left, 0.0) if left <= SOON_SECONDS and 2 * length >= before else None


def _begin_of_silence(rank: Rank) -> int:
    last = rank.last_call(transfers=True)
    return (last.time_ns if last is not None else rank.started_ns) or 0


def may_be_late(case: Case, rank: Rank) -> bool:
    """Return whether a rank is neither in a call nor stopped or taken down after an exception."""
    if rank.rank in case.waits.pending_calls or rank.details.get("stopped"):
        return False
    return not rank.details.get("ended_with")


_BUSY = 0.1
"""Share of a core from which on a process is at work. One that is blocked, or polls each
millisecond, uses less than 0.05; one that computes on a crowded host gets no whole core."""
_COMPILES = 0.02
"""The same for one that noted that it compiles or loads: others may do so for it. While it waits
for a lock, it uses less than 0.005."""
_JUST_NOW = 3.0
"""Seconds for which a rank that goes on may have posted nothing."""
_LEAST_SECONDS = 2.0
"""Seconds of CPU time to conclude from: two heartbeats."""


def with_late(case: Case, findings: Sequence[Finding]) -> list[Finding]:
    """Return findings with those about ranks that are at work as late ones.

    A late rank explains nothing where another cause is found among those that wait for it, or for
    whom it may wait: it may be late for that reason. Where nobody waits for both, it is one more.

    Args:
        case: The case.
        findings: The findings.
    """
    late = _awaited_in_all(case, findings)
    if late is not None:
        return [late, *(as_consequence(one) for one in findings)]
    if ends := _slow_in_all(case, findings):
        clause = Doubt.USUAL.of(ends)
        return [
            replace(one.with_clause(clause).undecided(ends), role="latent")
            if one.role == "cause"
            else one
            for one in findings
        ]
    found = [_late(case, one) for one in findings]
    others = [one for one in found if one.role == "cause" and one.kind != LATE]
    apart = frozenset().union(*(_concerned(case, one) for one in others))
    return [
        as_consequence(one) if one.kind == LATE and apart & _concerned(case, one) else one
        for one in found
    ]


def _concerned(case: Case, finding: Finding) -> frozenset[int]:
    """Return the ranks that a finding is about, with those that wait for them."""
    about = {*finding.diverging_ranks, *finding.candidate_ranks}
    if finding.comm is None:
        return frozenset(case.run.by_rank)
    if not is_hang(finding) and finding.kind != LATE:
        about.update(finding.comm.ranks)
    return frozenset(about | dependants(case, about))


def _awaited_in_all(case: Case, findings: Sequence[Finding]) -> Finding | None:
    """Return a finding about ranks at work in which each chain of waiting ends, transfers as well.

    None without a transfer in which a rank waits.
    """
    graph = _graph_of_transfers(case, findings)
    if graph is None:
        return None
    ends = graph.sinks
    shares, wakes = shares_of_core(case, ends), wakes_of(case, ends)
    if shares.keys() | wakes.keys() != ends or graph.released(ends) != graph.waiting.keys():
        return None
    calls = [one for end in ends for one in graph.calls_for(end)]
    if not calls:
        return None
    first, call = min(calls, key=lambda one: one[0])
    comm = case.run.communicators[call.comm]
    absent, waiting = sorted(ends), sorted(graph.waiting)
    at = seen_at(case.run, absent[0]) if len(absent) == 1 else ""
    return Finding(
        kind=LATE,
        summary=(Wait.LATE_FOR_ALL if shares else Wait.ASLEEP_FOR_ALL).of(
            who=who_text(case.run, absent),
            absent=absent,
            waiting=waiting,
            rank=first,
            call=call,
            comm=comm,
            at=(at or Wait.AT_WORK) if shares else (at or Wait.OUTSIDE),
            wakes=max(wakes.values(), default=0.0),
        ),
        comm=comm,
        seq=None,
        blame=Blame.on(absent) if len(absent) == 1 else Blame.among(absent),
        peers=call,
        role="cause",
        analyzer="late",
        evidence=_evidence(shares, wakes),
        inferred=(Wait.MAY_COME.of(absent),),
    )


def _slow_in_all(case: Case, findings: Sequence[Finding]) -> list[int]:
    """Return the ranks in which all chains of waiting end, where they often paused for as long.

    Empty where one pauses for longer, or has ended, and without a transfer in which a rank waits.
    """
    graph = _graph_of_transfers(case, findings)
    if graph is None or graph.released(graph.sinks) != graph.waiting.keys():
        return []
    for wait in graph.waits:
        for rank in wait.awaited & graph.sinks:
            known = case.run.by_rank[rank]
            if known.details.get("stopped") or case.how_it_ended(known) is not None:
                return []
            if wait.call is None:
                return []
            if not is_as_slow_as_ever(case, rank, wait.call.comm, transfers=True):
                return []
    return sorted(graph.sinks)


def _graph_of_transfers(case: Case, findings: Sequence[Finding]) -> WaitGraph | None:
    """Return who waits for whom, where only waits are causes and some wait in transfers.

    None where ranks wait in collectives alone, about which there are findings of each call.
    """
    causes = [one for one in findings if one.role == "cause"]
    if not causes or any(one.kind not in (*WAITS, "p2p_mismatch") for one in causes):
        return None
    graph = wait_graph(case)
    if not graph.sinks or graph.unfit or graph.abnormal:
        return None
    return graph if any(wait.is_transfer for wait in graph.waits) else None


def _late(case: Case, finding: Finding) -> Finding:
    """Return a finding about a wait, as a late one where each rank that is awaited is at work."""
    if finding.kind == "init_stalled" and finding.role == "cause" and finding.diverging_ranks:
        return _late_at_store(case, finding)
    comm = finding.comm
    waits = finding.kind in WAITS or (finding.kind == "extra_call" and is_hang(finding))
    if finding.role != "cause" or not waits or comm is None or finding.aligned:
        return finding
    waiting = [
        number
        for number, pending in case.waits.pending_calls.items()
        if (pending.comm.key, pending.call.seq) == (comm.key, finding.seq)
    ]
    absent = finding.diverging_ranks
    if not absent or {*absent} <= {*waiting}:
        absent = tuple(rank for rank in comm.ranks if rank not in waiting)
    if waiting and absent and all(_goes_on(case, rank, waiting) for rank in absent):
        return _not_there_yet(case, finding, comm, waiting, absent)
    shares, wakes = shares_of_core(case, absent), wakes_of(case, absent)
    late = sorted({*shares, *wakes})
    others = [rank for rank in absent if rank not in late]
    usual = [rank for rank in others if is_as_slow_as_ever(case, rank, comm.key)]
    if not waiting or not late or not all(_may_come(case, rank) for rank in others):
        return finding
    if usual != others and finding.diverging_ranks:
        return finding  # most have come: one that is not at work keeps them waiting
    is_few = 2 * len(absent) <= len(comm.ranks) and not others
    at = seen_at(case.run, absent[0]) if len(absent) == 1 else ""
    call = case.waits.pending_calls[waiting[0]].call
    return replace(
        finding.naming(absent) if is_few else finding.undecided(absent),
        kind=LATE,
        summary=(Wait.LATE if shares else Wait.ASLEEP).of(
            who=who_text(case.run, late),
            absent=late,
            where=numbered(comm, finding.seq, call),
            waiting=waiting,
            at=(at or "at work") if shares else (at or Wait.OUTSIDE),
            shares=", ".join(f"{share:.0%}" for share in shares.values()),
            wakes=max(wakes.values(), default=0.0),
        ),
        peers=call,
        evidence=(*finding.evidence, *_evidence(shares, wakes)),
        inferred=(
            *finding.inferred,
            Wait.MAY_COME.of(absent),
            *((Wait.MAY_AWAIT.of(others=others, late=late),) if usual != others else ()),
        ),
    )


def _late_at_store(case: Case, finding: Finding) -> Finding:
    """Return a finding about a wait without a call as a late one, if all it names are late."""
    absent = finding.diverging_ranks
    shares, wakes = shares_of_core(case, absent), wakes_of(case, absent)
    if shares.keys() | wakes.keys() != {*absent}:
        return finding
    clause = Wait.USES_NOW.of(absent) if shares else Wait.WAKES_NOW.of(absent, max(wakes.values()))
    late = replace(finding.with_clause(clause), kind=LATE)
    return replace(
        late,
        evidence=(*finding.evidence, *_evidence(shares, wakes)),
        inferred=(*finding.inferred, Wait.MAY_END.of(absent)),
    )


def _may_come(case: Case, number: int) -> bool:
    """Return whether a rank is recorded, and neither gone nor stopped."""
    rank = case.run.by_rank.get(number)
    if rank is None or rank.exited or rank.details.get("stopped"):
        return False
    return case.how_it_ended(rank) is None


def _goes_on(case: Case, number: int, waiting: Sequence[int]) -> bool:
    """Return whether a rank posts further calls long after its peers have begun to wait.

    Those of the thread for which they wait: another one may go on while that one is blocked.
    """
    rank = case.run.by_rank.get(number)
    if rank is None or rank.last_seen_ns is None or rank.exited:
        return False
    first = min(waiting)
    due = case.waits.threads_due((first, case.waits.pending_calls[first].call), number)
    calls = [*rank.last_calls().values(), *rank.last_transfers().values()]
    own = [call for call in calls if is_any_thread(call.thread, due)]
    last = max(own, key=lambda call: call.position, default=None)
    if last is None or not last.time_ns:
        return False
    since = max(case.waits.pending_calls[one].call.time_ns or 0 for one in waiting)
    gap, long = rank.last_seen_ns - last.time_ns, HANG_SECONDS
    if not rank.alive and number not in case.waits.pending_calls:
        long = case.stall_seconds  # what counts as a hang where the processes have been killed
    return gap < _JUST_NOW * 1e9 and last.time_ns - since > long * 1e9


def _not_there_yet(
    case: Case, finding: Finding, comm: Communicator, waiting: Sequence[int], absent: Sequence[int]
) -> Finding:
    """Return a finding about a wait as a late one, whose absent ranks post calls elsewhere."""
    call = case.waits.pending_calls[waiting[0]].call
    return replace(
        finding.undecided(absent),
        kind=LATE,
        summary=Wait.ELSEWHERE.of(
            waiting=waiting, where=numbered(comm, finding.seq, call), absent=absent
        ),
        peers=call,
        inferred=(*finding.inferred, Wait.MAY_COME.of(absent)),
    )


def _evidence(shares: Mapping[int, float], wakes: Mapping[int, float]) -> tuple[str, ...]:
    return (
        *(Wait.USES.of(rank, share) for rank, share in shares.items()),
        *(Wait.WAKES.of(rank, seconds) for rank, seconds in wakes.items()),
    )


def shares_of_core(case: Case, numbers: Iterable[int]) -> dict[int, float]:
    """Return the shares of a core of the ranks at work, by rank; see :func:`share_of_core`."""
    found = {rank: share_of_core(case, rank) for rank in numbers}
    return {rank: share for rank, share in found.items() if share is not None}


def share_of_core(case: Case, number: int) -> float | None:
    """Return the share of a core that a rank at work has used since its newest call.

    Two samples of its stacks count more than its heartbeats: they show whether its main thread
    waits while others work.

    Returns:
        The share; None where the rank is not at work, or that is not known.
    """
    rank = case.run.by_rank.get(number)
    if rank is None or not may_be_late(case, rank):
        return None
    snapshot = case.run.snapshot
    motion = None if snapshot is None else read_motions(snapshot).get(number)
    if motion is not None and motion.condition in ("moving", "still"):
        return motion.cpu if motion.is_at_work and motion.wakes is None else None
    noted = doing(rank)
    if is_idle(rank) or uses_unrecorded(rank) or not (noted is None or noted.is_work):
        return None
    share, least = _since_newest_call(rank), _BUSY if noted is None else _COMPILES
    return share if share is not None and share >= least else None


def _since_newest_call(rank: Rank) -> float | None:
    used, seen = rank.activities.get(CPU), rank.last_seen_ns
    if used is None or seen is None:
        return None
    seconds = (seen - used.since_ns) / 1e9
    return used.number / 1e6 / seconds if seconds >= _LEAST_SECONDS else None


def what_keeps(case: Case, rank: Rank) -> Keeps | None:
    """Return what keeps a rank from a call; None where no data source shows it."""
    if rank.details.get("stopped"):
        return Keeps.STOPPED
    if case.waits.is_outside(rank.rank):
        return Keeps.DEVICE
    if rank.rank in case.waits.pending_calls:
        return Keeps.OTHERS
    if is_idle(rank):
        return Keeps.IDLE
    if doing(rank) is not None or raised(case, rank) is not None:
        return Keeps.KEPT if rank.alive is False else Keeps.NOTED
    if wakes_of(case, [rank.rank]):
        return Keeps.ASLEEP
    if is_in_transfer(rank):
        return Keeps.TRANSFER
    return Keeps.LATE if is_seen_at_work(case.run, rank.rank) else None


def is_silent(case: Case, rank: Rank, waiting: Sequence[int]) -> bool:
    """Return whether the heartbeat of a living process has ended: it is stopped, or in C code.

    Args:
        case: The case.
        rank: The process.
        waiting: Ranks whose heartbeats it is compared with.
    """
    if rank.details.get("stopped"):
        return True
    times = [case.quiet_seconds(case.run.by_rank[number]) for number in waiting]
    others = max((one for one in times if one is not None), default=0.0)
    is_behind = (case.quiet_seconds(rank) or 0.0) + DEAD_SECONDS < others
    return rank.alive is True and is_behind and case.may_have_ended_before(rank, waiting)


def may_come(rank: Rank) -> bool:
    """Return whether a rank might still come, or might have come had the job not been killed."""
    now = doing(rank)
    return bool(rank.alive) or is_in_transfer(rank) or (now is not None and now.is_work)
