"""Findings about ranks that wait in calls which no probe records.

Activities show which ranks are inside of code that posts such calls. The ends of processes show
which rank had left before its peers lost the connection to it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from ncclscope.engine.case import Case
from ncclscope.engine.coverage import uses_unrecorded
from ncclscope.engine.processes.positions import Position, is_inside_unrecorded
from ncclscope.engine.waits.waits import failed, status_of
from ncclscope.model import Blame, Finding, Rank, State
from ncclscope.untrusted import printable
from ncclscope.wording.ends import Ends
from ncclscope.wording.names import call_on, rank_text, site_text, who_text
from ncclscope.wording.waits import Place, Unrecorded, Wait

ANALYZER = "decision"

_LOST = re.compile(
    r"connection (?:closed|reset|refused|aborted)|broken pipe|socket (?:timeout|closed)|"
    r"remote process (?:exited|has)|peer .*(?:closed|exited)|ncclRemoteError|"
    r"application timeout caused pair closure",
    re.IGNORECASE,
)
"""Errors of a process that ends because a peer is gone."""
_SHOWN = 120


def waiting_unrecorded(case: Case, positions: Mapping[int, Position]) -> Iterator[Finding]:
    """Yield which ranks block those that wait in calls which no probe records.

    An activity or a stack shows that these ranks wait; the records hold no call for it.
    """
    if case.run.snapshot is not None or not any(map(is_inside_unrecorded, case.run.ranks)):
        return
    hidden = [
        one
        for one in positions.values()
        if one.is_unrecorded and _is_stalled(case, one.rank, one.seconds)
    ]
    if not hidden or case.waits.pending_calls:
        return
    waiting = tuple(sorted(one.rank for one in hidden))
    rest = [one for one in positions.values() if one.rank not in waiting]
    if any(one.state in ("moving", "idle") for one in rest):
        return
    seconds = min(one.seconds or 0.0 for one in hidden)
    where = hidden[0].text
    ended = tuple(sorted(one.rank for one in rest if one.state == "ended"))
    others = tuple(sorted(one.rank for one in rest if one.state != "ended"))
    evidence = (Unrecorded.BEEN_IN.of(waiting=waiting, where=where, seconds=seconds),)
    base = Finding(
        kind="stalled",
        summary=Unrecorded.WHO_LEFT.of(waiting=waiting, where=where, seconds=seconds),
        blame=Blame.among(sorted(positions)),
        role="cause",
        analyzer=ANALYZER,
        evidence=evidence,
        inferred=(str(Unrecorded.WAITS),),
    )
    if ended:
        is_few = len(ended) < len(waiting)
        yield replace(
            base.naming(ended) if is_few else base.undecided(sorted(positions)),
            kind="dead_rank",
            summary=Unrecorded.FOR_ENDED.of(
                who=who_text(case.run, ended),
                ended=ended,
                waiting=waiting,
                where=where,
                seconds=seconds,
            ),
            evidence=(*evidence, *(Ends.HAS_ENDED.of(rank) for rank in ended)),
        )
    elif others and len(others) != len(waiting):
        few = min(others, waiting, key=len)
        kind = "not_joined" if few == others else "extra_call"
        yield replace(
            base.naming(few),
            kind=kind,
            summary=Unrecorded.FEW_LEFT.of(
                waiting=waiting, where=where, seconds=seconds, others=others, few=few
            ),
        )
    else:
        yield base


def left_inside(case: Case, positions: Mapping[int, Position]) -> Iterator[Finding]:
    """Yield a minority in unrecorded calls, where all others failed in a recorded call.

    Had this minority made the same calls, it would have reached that call and failed in it, too.
    """
    pending_calls = list(case.waits.pending_calls.values())
    comm = pending_calls[0].comm if pending_calls else None
    if comm is None or len({(one.comm.key, one.call.seq) for one in pending_calls}) != 1:
        return
    failed = tuple(sorted(one.rank for one in pending_calls))
    absent = tuple(rank for rank in comm.ranks if rank not in failed)
    inside = [positions[rank] for rank in absent if rank in positions]
    ranks = [case.run.by_rank[number] for number in failed]
    if not 0 < len(inside) == len(absent) < len(failed):
        return
    if not all(rank.alive is False or _error(rank) for rank in ranks):
        return
    if not any(_LOST.search(_error(rank)) for rank in ranks):
        return  # a signal may have killed them all
    if not all(one.is_unrecorded and _is_stalled(case, one.rank, one.seconds) for one in inside):
        return
    call = pending_calls[0].call
    where = call_on(comm, call)
    yield Finding(
        kind="not_joined",
        summary=Ends.IN_CALL.of(
            failed=failed,
            where=f"{where}{site_text(call)}",
            who=who_text(case.run, absent),
            absent=absent,
            at=inside[0].text,
        ),
        comm=comm,
        seq=call.seq,
        blame=Blame.on(absent),
        peers=call,
        role="cause",
        analyzer=ANALYZER,
        evidence=(
            Wait.POSTED.of(posted=failed, where=where, absent=absent),
            *(f"rank {rank.rank} {_ending(rank)}" for rank in ranks),
            *(Unrecorded.IS_IN.of(one.rank, one.text) for one in inside),
        ),
        inferred=(Unrecorded.LEFT.of(absent),),
    )


def lost_connections(case: Case) -> Iterator[Finding]:
    """Yield ranks that had ended when their peers lost the connection to them.

    Only where none of the others waits in a recorded call: otherwise the records show which rank
    is missing, and in which call. A rank that alone waited in a call and ended there was matched
    with an unrecorded call of its peers: a library aborts a process that receives data of another
    size.
    """
    errors = {rank.rank: text for rank in case.run.ranks if (text := _error(rank))}
    lost = tuple(sorted(rank for rank, text in errors.items() if _LOST.search(text)))
    first = tuple(rank.rank for rank in case.run.ranks if rank.rank not in lost and not rank.alive)
    if not lost or len(lost) + len(first) < len(case.run.ranks):
        return
    if not any(rank.last_call(transfers=True) for rank in case.run.ranks):
        return  # they were still connecting: there was nothing to lose
    if not any(failed(case.run.by_rank[n]) or status_of(case.run.by_rank[n]) for n in first):
        peers = _peers(case, lost)
        first = tuple(rank for rank in first if rank in peers) or first
    named = _ended_by_themselves(case, first, lost)
    alone = 0 < len(first) < len(lost)
    first = named or first
    blames = alone or len(named) == 1
    unseen = case.losses.closers.difference(case.run.by_rank)
    # Where all others exited in order, who lost the connection may have posted one call more.
    in_order = all(case.run.by_rank[n].ended_well for n in first)
    candidates = tuple(sorted({*first, *lost, *unseen})) if in_order or len(first) < 2 else first
    if case.waits.pending_calls:
        hidden = [rank for rank in lost if uses_unrecorded(case.run.by_rank[rank])]
        if alone and hidden and set(case.waits.pending_calls) == set(first):
            yield _alone_in_a_call(case, first, hidden, errors)
        return
    how = [f"{rank_text(case.run, n)} {_ending(case.run.by_rank[n])}" for n in first[:4]]
    last = [case.run.by_rank[rank].last_call(transfers=True) for rank in lost]
    inside = any(call is not None and call.state is not State.COMPLETED for call in last)
    yield Finding(
        kind="dead_rank",
        summary=Ends.THEN_LOST.of(how="; ".join(how), lost=lost, error=errors[lost[0]])
        if how
        else Ends.ALL_LOST.of(lost),
        blame=Blame.on(first) if blames else Blame.among(candidates),
        role="cause",
        analyzer=ANALYZER,
        evidence=tuple(Ends.WITH.of(rank, text) for rank, text in errors.items()),
        inferred=() if inside else (str(Unrecorded.LOST),),
    )


def _peers(case: Case, lost: Sequence[int]) -> set[int]:
    """Return the peers of the sends and receives in which all of some ranks lost a connection."""
    last = [case.run.by_rank[rank].last_call(transfers=True) for rank in lost]
    if not all(
        call and call.peer is not None and call.state is not State.COMPLETED for call in last
    ):
        return set()
    calls = [(case.run.communicators[call.comm].ranks, call.peer) for call in last if call]
    return {ranks[peer] for ranks, peer in calls if peer is not None and peer < len(ranks)}


def _ended_by_themselves(case: Case, first: Sequence[int], lost: Sequence[int]) -> tuple[int, ...]:
    """Return the ranks that failed by themselves, where a launcher may have ended the others.

    Without an exception or a status, those that were not seen after the first lost connection.
    """
    ranks = case.run.by_rank
    known = tuple(n for n in first if failed(ranks[n]) or status_of(ranks[n]))
    if known:
        return known
    hosts = {ranks[n].host for n in (*first, *lost)}
    seen = {n: ranks[n].last_seen_ns or 0 for n in (*first, *lost)}
    earliest = min(seen[n] for n in lost)
    before = tuple(n for n in first if seen[n] <= earliest)
    return before if len(hosts) == 1 and 0 < len(before) < len(first) else ()


def _alone_in_a_call(
    case: Case, alone: tuple[int, ...], hidden: Sequence[int], errors: Mapping[int, str]
) -> Finding:
    pending = case.waits.pending_calls[alone[0]]
    comm, call = pending.comm, pending.call
    where = call_on(comm, call)
    return Finding(
        kind="extra_call",
        summary=Ends.ALONE_IN_CALL.of(who_text(case.run, alone), f"{where}{site_text(call)}"),
        comm=comm,
        seq=call.seq,
        blame=Blame.on(alone),
        odd=call,
        role="cause",
        analyzer=ANALYZER,
        evidence=(
            Wait.ALONE.of(posted=alone, where=where),
            *(Ends.WITH.of(rank, text) for rank, text in sorted(errors.items())),
        ),
        inferred=(Unrecorded.ABORTED.of(hidden),),
        extent=1,
    )


def _error(rank: Rank) -> str:
    return printable(str(rank.details.get("ended_with") or ""))


def _ending(rank: Rank) -> str:
    if error := _error(rank):
        return Place.ENDED_WITH.of(error[:_SHOWN].rstrip(": "))
    return str(Place.ENDED_WELL if rank.exited else Place.ENDED)


def _is_stalled(case: Case, number: int, seconds: float | None) -> bool:
    rank = case.run.by_rank[number]
    return seconds is not None and seconds >= (
        case.live_stall_seconds if rank.alive else case.stall_seconds
    )
