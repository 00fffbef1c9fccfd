"""Decide the cause from all evidence.

Analyzers read the records, and one reads stacks, GPUs and NCCL's counts. This module combines
their findings with the current position of each rank and with the gaps in the records. It
decides which finding is the cause, which ranks diverged, and how certain that is. No data source
takes precedence: a recorded difference is a fact, a stuck rank is explained by a rank that is
known to be elsewhere, and unrecorded calls rule out certainty.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from ncclscope.engine.case import Case
from ncclscope.engine.coverage import Coverage, unrecorded_kinds, uses_unrecorded
from ncclscope.engine.precedence import WAITS, as_consequence
from ncclscope.engine.processes.device_verdict import Reading, compare_ras_counts
from ncclscope.engine.processes.judgement import finding_of
from ncclscope.engine.processes.kernel import with_host
from ncclscope.engine.processes.motion import read_places
from ncclscope.engine.processes.positions import Position, Positions
from ncclscope.engine.processes.stack_verdict import judge_stacks
from ncclscope.engine.reservations import (
    unless_among_unlike,
    unless_damaged,
    unless_ended_well,
    unless_gone_round,
    unless_idle,
    unless_in_flight,
    unless_moving,
    unless_rooted,
    unless_slow,
    unless_unranked,
    unless_untraced,
)
from ncclscope.engine.waits.noted import doing_in_common, raised_in, raised_line
from ncclscope.engine.waits.unrecorded import (
    ANALYZER,
    left_inside,
    lost_connections,
    waiting_unrecorded,
)
from ncclscope.engine.waits.waits import interrupted_after
from ncclscope.model import Blame, Call, Finding, State
from ncclscope.model.activities import STORE_WAIT
from ncclscope.model.metadata import DAMAGED, UNCHECKED
from ncclscope.wording.doubts import Doubt
from ncclscope.wording.names import by_words, call_on, numbered, sentence, verb, who_text
from ncclscope.wording.waits import Unrecorded, Wait

__all__ = ["ANALYZER", "FROM_STACKS", "decide"]

FROM_STACKS = "stack_classes"
"""The analyzer that reads the process snapshot."""

_SHOWN = 4
"""Diverging ranks whose current position is reported."""


def decide(case: Case, findings: Sequence[Finding], coverage: Coverage) -> list[Finding]:
    """Return the findings, revised by all data sources.

    Args:
        case: The records, and the process snapshot.
        findings: The analyzers' findings, each made on its own.
        coverage: How much of the job is recorded.
    """
    recorded = [one for one in findings if one.analyzer != FROM_STACKS]
    seen = [one for one in findings if one.analyzer == FROM_STACKS]
    positions = Positions(case)
    recorded = [unless_ended_well(case, unless_damaged(case, one)) for one in recorded]
    found = [_revised(case, one, positions) for one in recorded]
    found = [unless_idle(case, unless_slow(case, unless_rooted(case, one))) for one in found]
    found = [unless_gone_round(case, unless_among_unlike(case, one)) for one in found]
    if len([one for one in found if one.role != "latent"]) == 1:
        found = [unless_in_flight(case, one) for one in found]
    if any(one.role == "cause" for one in found):
        # The snapshot's findings are reported as data sources then, not as findings.
        elsewhere = [*seen, *_from_counts(case)]
        found = [_singled_out(case, one, [*elsewhere, *_among_members(case, one)]) for one in found]
        seen = []
    else:
        seen = [_unless_serving(case, unless_moving(case, one), found) for one in seen]
        if not any(one.role == "cause" for one in seen):
            seen += [*waiting_unrecorded(case, positions), *left_inside(case, positions)]
        if not any(one.role == "cause" for one in seen):
            seen += lost_connections(case)
        if not any(one.role == "cause" for one in seen):
            seen += _from_counts(case)
    if not coverage.has_all_calls or any(rank.details.get(UNCHECKED) for rank in case.run.ranks):
        found = [one.doubted() for one in found]
    if not coverage.complete:
        seen = [one.doubted() for one in seen]
    found += seen
    found = [unless_unranked(case, unless_untraced(case, one)) for one in found]
    found = _unless_unseen(case, found)
    found = [_left_by_exception(case, one) for one in found]
    return [with_host(case, _placed(case, one, positions)) for one in found]


def _unless_unseen(case: Case, findings: Sequence[Finding]) -> list[Finding]:
    """Return findings in which what is not seen is no cause beside what the records show.

    That is a lost record, and where a rank with a damaged one waits.
    """
    missing = {*case.run.missing}
    damaged = {rank.rank for rank in case.run.ranks if DAMAGED in unrecorded_kinds(rank)}
    damaged.update(case.run.unreadable)
    unseen = [
        one.role != "cause"
        or (one.kind == "dead_rank" and {*one.diverging_ranks, *one.candidate_ranks} <= missing)
        or (one.kind == "stalled" and bool({*one.candidate_ranks} & damaged))
        for one in findings
    ]
    if all(unseen):
        return list(findings)
    return [
        as_consequence(one) if is_unseen else one
        for one, is_unseen in zip(findings, unseen, strict=True)
    ]


def _revised(case: Case, finding: Finding, positions: Mapping[int, Position]) -> Finding:
    """Return a finding about waiting ranks, revised by what is known of the absent ranks.

    A minority that waits in a call has left the common sequence; where the majority waits, the
    minority is missing. The majority is never blamed.
    """
    comm, seq = finding.comm, finding.seq
    if finding.role != "cause" or finding.kind not in WAITS or comm is None or finding.aligned:
        return finding
    if finding.awaited and finding.candidate_ranks:
        return finding  # the absent ranks wait for a key that the waiting ones may set
    waiting = tuple(
        number
        for number, pending in sorted(case.waits.pending_calls.items())
        if (pending.comm.key, pending.call.seq) == (comm.key, seq)
    )
    absent = tuple(rank for rank in comm.ranks if rank not in waiting)
    hidden = tuple(rank for rank in absent if _may_hide(case, rank, positions.get(rank), comm.key))
    if not waiting or not hidden:
        return finding
    gone = [rank for rank in absent if rank not in hidden]
    if gone and set(finding.diverging_ranks) <= set(gone):
        return finding  # these ranks are known to be elsewhere, and all others wait for them
    if finding.kind == "dead_rank" and len(waiting) > len(absent):
        return finding
    call = case.waits.pending_calls[waiting[0]].call
    where, doing = call_on(comm, call), _hidden_text(case, hidden, positions)
    sides = {"waiting": waiting, "where": where, "absent": absent, "doing": doing}
    short = _short_by_counts(case)
    evidence = (
        Wait.IN_IT.of(waiting=waiting, where=where, absent=absent),
        *(fact for fact in finding.facts[1:] if fact.subject is not None),
    )
    known = any(positions[rank].is_unrecorded for rank in hidden if rank in positions)
    wait = verb(hidden, "wait") if known else "may wait"
    common = replace(
        finding,
        peers=call,
        evidence=evidence,
        inferred=(Doubt.UNRECORDED.of(hidden, wait),),
    )
    if short and set(short) <= set(comm.ranks):
        return replace(
            common.naming(short),
            kind="missing_call",
            summary=Wait.LAUNCHED_FEWER.of(short=short, **sides),
            odd=None,
            evidence=(*evidence, *_ras_lines(case)),
        )
    if len(waiting) < len(absent):
        return replace(
            common.naming(waiting),
            kind="extra_call",
            odd=call,
            peers=None,
            summary=Wait.LEFT_SEQUENCE.of(
                who=who_text(case.run, waiting), alone="alone " * (len(waiting) == 1), **sides
            ),
        )
    if len(waiting) > len(absent):
        return replace(
            common.naming(absent),
            kind="not_joined",
            summary=Wait.NOT_JOINED.of(who=who_text(case.run, absent), **sides),
        )
    return replace(
        common.undecided(sorted(comm.ranks)),
        kind="not_joined",
        summary=Wait.NOT_POSTED.of(**sides),
    )


def _singled_out(case: Case, finding: Finding, seen: Sequence[Finding]) -> Finding:
    """Return a finding without diverging ranks, with those that stacks or counts identify.

    In the records, one waiting rank against one absent rank is a tie. A stack may show that the
    absent rank is stuck outside of any collective; that of a rank which waits in a recorded call
    shows no more than the record.
    """
    lacks_half = finding.kind == "p2p_mismatch" and None in (finding.odd, finding.peers)
    is_absence = (finding.kind in WAITS or lacks_half) and not finding.awaited
    undecided = is_absence or finding.kind == "stalled"
    if finding.role != "cause" or finding.diverging_ranks or not undecided:
        return finding
    for one in seen:
        ranks = set(one.diverging_ranks)
        if one.analyzer == FROM_STACKS and ranks <= case.waits.pending_calls.keys():
            continue
        if one.kind == "op_mismatch" and 2 * len(ranks) >= len(finding.candidate_ranks):
            continue  # of the candidates, as many are in the one call as in the other
        if one.role == "cause" and ranks and ranks < set(finding.candidate_ranks):
            return replace(
                _with_named(finding, one).naming(one.diverging_ranks),
                kind=one.kind,
                evidence=(*finding.evidence, *one.evidence),
                inferred=(*one.inferred, str(Doubt.SNAPSHOT)),
            )
    return finding


def _among_members(case: Case, finding: Finding) -> Iterable[Finding]:
    """Yield what stacks show of the members of a finding's communicator alone."""
    snapshot, members = case.run.snapshot, finding.comm.ranks if finding.comm is not None else ()
    if snapshot is None or finding.role != "cause" or finding.diverging_ranks:
        return
    motions = {one.rank: one for one in read_places(snapshot)}
    if len(members) < len(motions) and motions.keys() >= {*members}:
        for judged in judge_stacks([motions[rank] for rank in members], snapshot.gap):
            yield replace(finding_of(judged), analyzer=FROM_STACKS)


def _unless_serving(case: Case, finding: Finding, found: Sequence[Finding]) -> Finding:
    """Return a finding from stacks, as latent where a server waits for a message from any rank."""
    if not any(one.role == "latent" and _is_from_any(one.odd) for one in found):
        return finding
    servers = {rank.rank for rank in case.run.ranks if _is_from_any(rank.last_call(transfers=True))}
    return (
        replace(finding, role="latent") if servers.issuperset(finding.diverging_ranks) else finding
    )


def _is_from_any(call: Call | None) -> bool:
    """Return whether a call is a pending receive from any source."""
    if call is None or call.op != "recv" or call.peer is not None:
        return False
    return call.state is not State.COMPLETED


def _with_named(finding: Finding, one: Finding) -> Finding:
    """Return a finding with what identifies the diverging ranks in its summary."""
    if finding.kind != "stalled":
        return finding.with_note(sentence(one.summary))
    if finding.comm is None or finding.peers is None:
        return replace(finding, summary=sentence(one.summary))
    # The counts contradict the finding's own summary, that no rank diverged.
    where = numbered(finding.comm, finding.seq, finding.peers)
    waits = f"; {Wait.IN.of(ranks=finding.comm.ranks, where=where)}"
    return replace(finding, summary=sentence(one.with_clause(waits).summary))


def _may_hide(case: Case, number: int, position: Position | None, key: str) -> bool:
    """Return whether a rank waits, or may wait, in a call that is not recorded."""
    rank = case.run.by_rank.get(number)
    if position is None or rank is None or position.state in ("stopped", "idle"):
        return False
    if position.is_unrecorded:
        return True
    if position.state == "ended" and rank.ended_well:
        return False
    # A process may also have crashed inside a call that is not recorded.
    return position.state in ("unknown", "ended") and uses_unrecorded(rank, key)


def _hidden_text(case: Case, hidden: Sequence[int], positions: Mapping[int, Position]) -> str:
    """Return in which unrecorded calls ranks wait, as far as that is known."""
    places = []
    for rank in hidden:
        position = positions.get(rank)
        text = position.text if position is not None and position.is_unrecorded else ""
        places.append((text, rank))
    parts = []
    for text, ranks in by_words(places).items():
        noted, said = doing_in_common(case.run, ranks), Unrecorded.IN if text else Unrecorded.USE
        at = ""
        if text and noted is not None:
            said, at = Unrecorded.NOTED, "" if noted.name == STORE_WAIT else "in "
        parts.append(said.of(ranks=ranks, place=text, noted=f"{at}{noted and noted.text}"))
    return "; ".join(parts)


def _from_counts(case: Case) -> Iterable[Finding]:
    """Yield ranks that launched fewer calls than their peers, as NCCL's RAS counts them.

    Counts show how many calls of which function are missing, but not which ones.
    """
    found = _counts(case)
    if found is None or not found.odd:
        return
    ranks = found.ranks
    quiet = [case.quiet_seconds(rank) for rank in case.run.ranks if rank.logs]
    known = [seconds for seconds in quiet if seconds is not None]
    if not known or min(known) < case.live_stall_seconds:
        return  # calls are being posted, and RAS polls some ranks earlier than others
    everybody = tuple(rank.rank for rank in case.run.ranks)
    yield Finding(
        kind=found.kind,
        summary=Doubt.COUNTS.of(found.says),
        blame=Blame.on(ranks) if ranks else Blame.among(everybody),
        role="cause",
        analyzer=ANALYZER,
        evidence=(f"ras: {found.says}",),
        inferred=(str(Doubt.WHICH_CALL),),
    )


def _short_by_counts(case: Case) -> tuple[int, ...]:
    """Return the ranks that launched fewer calls than their peers; none where counts agree."""
    found = _counts(case)
    return found.ranks if found is not None and found.kind == "missing_call" else ()


def _ras_lines(case: Case) -> tuple[str, ...]:
    found = _counts(case)
    return () if found is None else (f"ras: {found.says}",)


def _counts(case: Case) -> Reading | None:
    snapshot = case.run.snapshot
    return None if snapshot is None else compare_ras_counts(snapshot)


def _placed(case: Case, finding: Finding, positions: Mapping[int, Position]) -> Finding:
    """Return a finding with the current frames of its diverging ranks, where stacks show them."""
    if finding.analyzer == FROM_STACKS:
        return finding
    asked = finding.diverging_ranks[:_SHOWN] if case.run.snapshot is not None else ()
    frames = {
        rank: position.frame
        for rank in asked
        if (position := positions.get(rank)) is not None and position.frame is not None
    }
    lines = tuple(Doubt.AT_NOW.of(rank, frame.site) for rank, frame in frames.items())
    absent = finding.kind in ("not_joined", "dead_rank") and finding.odd is not None
    return replace(
        finding,
        odd_is="last_call" if absent else finding.odd_is,
        at=next(iter(frames.values()), None),
        evidence=tuple(
            dict.fromkeys(
                (*finding.evidence, *lines, *_endings(case, finding), *_errors(case, finding))
            )
        ),
    )


def _left_by_exception(case: Case, finding: Finding) -> Finding:
    """Return a finding about a call with the ranks that posted it and have left it by an exception.

    Their call has not completed, but they wait in it no more.
    """
    comm, seq = finding.comm, finding.seq
    if comm is None or seq is None or finding.kind not in (*WAITS, "stalled"):
        return finding
    posted = {
        number: log.call(seq)
        for number, log in case.recorded(comm.key).items()
        if log.first <= seq <= log.calls
    }
    left = {
        number: what
        for number, call in posted.items()
        if call.state is not State.COMPLETED and (what := raised_in(case.run.by_rank[number], call))
    }
    if len(left) == len(posted):
        return finding  # they have all given it up, as after its timeout
    for number, what in left.items():
        finding = finding.with_note(Doubt.LEFT.of(number, what))
    return finding


def _errors(case: Case, finding: Finding) -> Iterable[str]:
    """Yield the exceptions that diverging ranks noted, which may be why they diverged."""
    for number in finding.diverging_ranks[:_SHOWN]:
        rank = case.run.by_rank.get(number)
        if rank is not None and (line := raised_line(case, rank)):
            yield line


def _endings(case: Case, finding: Finding) -> Iterable[str]:
    """Yield how a signal to the whole job ended diverging ranks, which is not why it hung."""
    for number in finding.diverging_ranks[:_SHOWN]:
        rank = case.run.by_rank.get(number)
        seconds = None if rank is None else interrupted_after(case, case.waits, rank)
        if rank is not None and seconds is not None:
            how = str(rank.details["ended_with"]).rstrip(": ")
            yield Doubt.NOT_THE_CAUSE.of(number, how, seconds)
