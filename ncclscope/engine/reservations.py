"""Reasons to weaken a finding: damage, a usual pause, an idle server, a job that went on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ncclscope.engine.agreement import HANG_SECONDS
from ncclscope.engine.case import Case
from ncclscope.engine.coverage import cut_short, is_damaged
from ncclscope.engine.mismatch import PARAMETERS
from ncclscope.engine.precedence import WAITS
from ncclscope.engine.processes.late import what_keeps
from ncclscope.engine.processes.motion import read_motions
from ncclscope.engine.sequences.habit import PAST, begins_round
from ncclscope.engine.table import sender_of
from ncclscope.engine.waits.noted import doing
from ncclscope.engine.waits.pace import is_as_slow_as_ever
from ncclscope.model import Call, Communicator, DamagedCall, Fact, Finding, Rank, State
from ncclscope.model.log import newest_of
from ncclscope.model.unranked import unranked
from ncclscope.wording.doubts import Doubt
from ncclscope.wording.names import numbered, sentence, who_text
from ncclscope.wording.waits import Wait

_AGAIN = 2
"""Earlier calls from a line that is in the main loop of a server."""
_TIMES = 2
"""As many times more ranks are no majority against what they may have done together."""
_PAUSE_SECONDS = 30.0
"""A rank that saves, evaluates or reads is often silent for nearly as long."""
_COPIED_SECONDS = 6 * 3600.0
"""A dump that was written longer than this after its last call is more likely a copy."""


def hides_damage(finding: Finding) -> bool:
    """Return whether a finding is about a call that cannot be read."""
    return any(isinstance(call, DamagedCall) for call in (finding.odd, finding.peers))


def unless_damaged(case: Case, finding: Finding) -> Finding:
    """Return a finding without diverging ranks where damage hides the calls in question."""
    comm = finding.comm
    if finding.role != "cause" or comm is None:
        return finding
    if hides_damage(finding):
        return replace(
            finding.undecided(comm.ranks),
            summary=Doubt.ONE_SIDE.of(seq=finding.seq, comm=comm, ranks=comm.ranks),
            role="latent",
        )
    if finding.kind not in WAITS:
        return finding
    cut = {number for one, ranks in cut_short(case.run) if one.key == comm.key for number in ranks}
    lost = [n for n in comm.ranks if n in cut or is_damaged(case.run, n, comm.key)]
    if not lost:
        return finding
    unknown = _unknown_text(case, lost)
    blamed = finding.diverging_ranks
    alone = finding.kind == "extra_call" and 2 * (len(blamed) + len(lost)) < len(comm.ranks)
    if blamed and not {*blamed} & {*lost} and (alone or finding.kind == "dead_rank"):
        return finding.with_note(unknown).doubted()
    waiting = [
        n for n, pending in sorted(case.waits.pending_calls.items()) if pending.comm.key == comm.key
    ]
    absent = tuple(n for n in comm.ranks if n not in waiting and n not in lost)
    if absent and waiting:
        where = numbered(comm, finding.seq, case.waits.pending_calls[waiting[0]].call)
        few = absent if len(waiting) > len(absent) + len(lost) else ()
        return replace(
            finding.naming(few) if few else finding.undecided(comm.ranks),
            kind="not_joined",
            summary=Wait.NEVER_JOINED.of(
                who=who_text(case.run, absent), where=where, waiting=waiting, rest=unknown
            ),
            odd=None,
            evidence=tuple(line for line in finding.evidence if not _is_about(line, lost)),
            inferred=() if case.run.by_rank.keys() & {*lost} else finding.inferred,
        )
    where = numbered(comm, finding.seq)
    return replace(
        finding.undecided(comm.ranks),
        kind="stalled",
        summary=f"{sentence(Wait.IN.of(ranks=waiting, where=where))}. {unknown}",
        odd=None,
        evidence=finding.facts[:1] if len(lost) < len(comm.ranks) - len(waiting) else (),
        role="cause" if _waits_long(case, waiting) else "latent",
    )


def _is_about(line: str, lost: Sequence[int]) -> bool:
    """Return whether a line of evidence rests on the record of a lost rank."""
    return isinstance(line, Fact) and not {*lost}.isdisjoint(line.ranks)


def _waits_long(case: Case, waiting: Sequence[int]) -> bool:
    """Return whether ranks wait that long that something holds them up, whoever it is."""
    ranks = [case.run.by_rank[n] for n in waiting]
    if all(rank.exited for rank in ranks) or case.quiet is None:
        return False
    is_live = any(rank.alive for rank in ranks)
    return case.quiet >= (case.live_stall_seconds if is_live else case.stall_seconds)


def _unknown_text(case: Case, lost: Sequence[int]) -> str:
    untraced = {one.rank for one in case.run.untraced} & {*lost}
    texts = ((Doubt.DAMAGED, {*lost} - untraced), (Doubt.UNTRACED, untraced))
    return " ".join(doubt.of(ranks) for doubt, ranks in texts if ranks)


def unless_untraced(case: Case, finding: Finding) -> Finding:
    """Return a finding that names no rank which is not recorded: what it does is unknown."""
    untraced = {one.rank for one in case.run.untraced} & {*finding.diverging_ranks}
    if not untraced:
        return finding
    return replace(
        finding.undecided(sorted({*finding.diverging_ranks, *finding.candidate_ranks})),
        inferred=(*finding.inferred, Doubt.NOT_RECORDED.of(untraced)),
    )


def unless_unranked(case: Case, finding: Finding) -> Finding:
    """Return a finding about a wait, capped where members have no rank.

    Which of a communicator's members such a process is decides for whom it waits; and which member
    left no record is not known.
    """
    named = {*finding.diverging_ranks, *finding.candidate_ranks}
    members = () if finding.comm is None else finding.comm.ranks
    if finding.kind in PARAMETERS or not unranked((*named, *members)):
        return finding
    if named <= case.run.by_rank.keys():
        return finding.doubted()
    return finding.undecided(sorted({*named, *members}))


def unless_ended_well(case: Case, finding: Finding) -> Finding:
    """Return a finding about differing groups, as latent where all ranks exited normally.

    The ranks of each group may legally create different subgroups. Where such a difference is a
    mistake, a rank waits for it, or fails.
    """
    comm = finding.comm
    if finding.role != "cause" or comm is None or not comm.creates_groups or case.waits.heads:
        return finding
    if not all(rank.ended_well for rank in case.run.ranks):
        return finding
    return replace(finding, role="latent")


def unless_rooted(case: Case, finding: Finding) -> Finding:
    """Return a finding that names none of several ranks in an earlier call whose root is unknown.

    Others have completed that call. If one member takes another rank for its root, those that wait
    for a root which sends nothing are all innocent.
    """
    comm, ranks = finding.comm, finding.diverging_ranks
    heads = [case.waits.heads.get(rank) for rank in ranks]
    if finding.role != "cause" or finding.kind != "not_joined" or comm is None or len(ranks) < 2:
        return finding
    if not all(head and head.comm == comm.key and head.lacks_root for head in heads):
        return finding
    note = Doubt.ROOT.of(ranks, next(head for head in heads if head))
    return finding.with_note(note).undecided(comm.ranks)


def unless_slow(case: Case, finding: Finding) -> Finding:
    """Return a finding about late ranks, as latent where such pauses are usual for them.

    After a short wait, cap the confidence: a killed process might still have joined.
    """
    if finding.role != "cause" or finding.kind != "not_joined" or finding.comm is None:
        return finding
    key = finding.comm.key
    ranks = finding.diverging_ranks or _not_at(case, finding)
    known = [case.run.by_rank.get(rank) for rank in ranks]
    if known and all(rank is not None and rank.details.get("stopped") for rank in known):
        return finding  # that is no pause of the program's, and has no length of its own
    if ranks and all(is_as_slow_as_ever(case, rank, key) for rank in ranks):
        return replace(
            finding.with_clause(Doubt.USUAL.of(ranks)).undecided(ranks),
            role="latent",
        )
    if finding.confidence == "certain" and case.quiet is not None and case.quiet < _PAUSE_SECONDS:
        return finding.doubted(str(Doubt.LATE))
    return finding


def _not_at(case: Case, finding: Finding) -> tuple[int, ...]:
    """Return the candidates that have not come to the call of a finding."""
    logs = {} if finding.comm is None else case.logs(finding.comm.key)
    return tuple(
        number
        for number in finding.candidate_ranks
        if number in logs and finding.seq is not None and logs[number].calls < finding.seq
    )


def unless_gone_round(case: Case, finding: Finding) -> Finding:
    """Return a finding as at most likely, if the few that wait may have gone round once more.

    They wait in the first call of a round, and the late ranks, of which nothing else is known, have
    posted nothing since their last whole round, or have come to the end of their program.
    """
    comm, call = finding.comm, finding.peers
    if finding.confidence != "certain" or comm is None:
        return finding
    waiting = [
        pending.rank
        for pending in case.waits.pending_calls.values()
        if (pending.comm.key, pending.call.seq) == (comm.key, finding.seq)
    ]
    ranks = [case.run.by_rank.get(number) for number in finding.diverging_ranks]
    if (
        call is None
        or len(waiting) > _TIMES * len(ranks)
        or not all(
            rank is not None
            and (finding.kind == "not_joined" or (finding.kind == "dead_rank" and rank.ended_well))
            and what_keeps(case, rank) is None
            and _rests(rank, comm, call)
            for rank in ranks
        )
    ):
        return finding
    return finding.doubted(Doubt.ONCE_MORE.of(waiting))


def unless_among_unlike(case: Case, finding: Finding) -> Finding:
    """Return a finding as at most likely, if a late rank is in a call of a group that differs.

    After a difference that the group survived, it is not known who waits there for whom.
    """
    if finding.confidence != "certain" or finding.kind != "not_joined":
        return finding
    for one in case.survived:
        logs = case.recorded(one.comm.key)
        ends = [logs[number] for number in finding.diverging_ranks if number in logs]
        newest = [log.call(log.calls) for log in ends if log.calls >= log.first]
        if any(call.state is not State.COMPLETED for call in newest):
            return finding.doubted(Doubt.MAY_WAIT.of(one.comm.ranks))
    return finding


def _rests(rank: Rank, comm: Communicator, call: Call) -> bool:
    """Return whether a rank's newest call ends a round that another rank's call may begin."""
    log, last = rank.logs.get(comm.key), rank.last_call(transfers=True)
    if log is None or last is None:
        return True
    return last.comm == comm.key and begins_round(log, call)


def unless_idle(case: Case, finding: Finding) -> Finding:
    """Return a finding about a rank that others receive from, as latent if it may lack a request.

    In a server, one rank receives the requests and sends them to the others, which wait for that
    most of the time. Whether it should have received one is in no record.
    """
    call, ranks = finding.peers, finding.diverging_ranks
    if finding.role != "cause" or finding.kind != "not_joined" or call is None:
        return finding
    root = None if finding.comm is None else sender_of(call, finding.comm)
    if root is None:
        return finding
    pair = finding.comm.ranks if finding.comm is not None else ()
    if not ranks and len(pair) == 2 and root in {*pair} - case.waits.pending_calls.keys():
        ranks = (root,)  # no majority singles it out, but its peer waits for it
    if ranks != (root,):
        return finding
    rank = case.run.by_rank.get(root)
    if rank is None or not _is_repeated(case, call):
        return finding
    if not rank.alive and finding.confidence == "certain":
        return finding.doubted(str(Doubt.SERVER_ENDED))
    if not _waits_for_input(case, rank):
        return finding
    return replace(
        finding.with_note(Doubt.SERVER.of(call.op)).undecided(ranks),
        role="latent",
    )


def _waits_for_input(case: Case, rank: Rank) -> bool:
    if doing(rank) is not None or not rank.alive:
        return False
    if rank.details.get("waits_for_input"):
        return True
    motions = {} if case.run.snapshot is None else read_motions(case.run.snapshot)
    motion = motions.get(rank.rank)
    return motion is not None and motion.may_be_idle


def _is_repeated(case: Case, call: Call) -> bool:
    """Return whether the ranks that wait in a call were in such calls from this line before."""
    if call.op == "recv":
        posted = [rank.p2p.get(call.comm, ()) for rank in case.run.ranks]
        own = [one for calls in posted if call in calls[-1:] for one in newest_of(calls, PAST)]
        same = [
            one for one in own if (one.op, one.peer, one.site) == (call.op, call.peer, call.site)
        ]
        return len(same) > _AGAIN
    pending = [one for one in case.waits.all_pending if one.call.comm == call.comm]
    if not pending:
        return False
    log = case.run.by_rank[pending[0].rank].logs[call.comm]
    past = log.span(max(log.first, call.seq - PAST), call.seq)
    same = [one for one in past if (one.op, one.root, one.site) == (call.op, call.root, call.site)]
    return len(same) >= _AGAIN


def unless_in_flight(case: Case, finding: Finding) -> Finding:
    """Return a finding from dumps as latent, where the job may just have been running.

    A dump contains no timestamp of its own, and a copied file is younger than its content. A
    running job also has a few ranks ahead, or a message that is not received yet.
    """
    if finding.role != "cause" or not case.timeless or case.waits.cycle:
        return finding
    if any(rank.details.get("timed_out") for rank in case.run.ranks):
        return finding
    idle = [rank.details.get("idle_s") for rank in case.run.ranks]
    if all(isinstance(one, float) and HANG_SECONDS <= one <= _COPIED_SECONDS for one in idle):
        return finding  # nothing was posted for long before the dumps were written
    alone = finding.kind == "extra_call" and finding.peers is None
    message = finding.kind == "p2p_mismatch" and not _in_transfers(case, finding.candidate_ranks)
    scheduled = finding.odd is not None and finding.odd.state is State.SCHEDULED
    if (finding.diverging_ranks and not alone) or not (alone or message) or not scheduled:
        return finding
    return replace(
        finding.undecided(finding.diverging_ranks or finding.candidate_ranks),
        role="latent",
        inferred=(*finding.inferred, str(Doubt.RUNNING)),
    )


def _in_transfers(case: Case, ranks: Sequence[int]) -> bool:
    """Return whether each of some ranks has a pending send or receive."""
    last = [case.run.by_rank[rank].last_transfers().values() for rank in ranks]
    return all(any(call.state is not State.COMPLETED for call in calls) for calls in last)


def unless_moving(case: Case, finding: Finding) -> Finding:
    """Return a finding from stacks, as latent where rings show that ranks posted calls lately."""
    if finding.role != "cause" or case.timeless:
        return finding
    quiet = [
        seconds
        for rank in case.run.ranks
        if rank.logs and rank.alive and (seconds := case.quiet_seconds(rank)) is not None
    ]
    if quiet and min(quiet) < case.live_stall_seconds:
        return replace(finding, role="latent")
    return finding
