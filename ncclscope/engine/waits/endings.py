"""How processes ended: whether peers wait because of it, or it merely stopped the job."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import replace
from textwrap import shorten
from typing import TYPE_CHECKING

from ncclscope.model import Blame, Call, Fact, Finding, Rank, State
from ncclscope.model.activities import RAISED, STORE_PLACE, STORE_WAIT
from ncclscope.model.signature import BARRIERS, P2P_OPS
from ncclscope.model.text import status_text
from ncclscope.model.threads import precedes
from ncclscope.untrusted import printable
from ncclscope.wording.ends import End, Ending, Ends
from ncclscope.wording.names import call_on, numbered

if TYPE_CHECKING:
    from ncclscope.engine.records import Records
    from ncclscope.engine.waits.waits import Waits

_INTERRUPTS = ("KeyboardInterrupt", "SignalException")
"""The exceptions that end a process when a signal is sent to the whole job."""
_OF_OTHERS = ("TimeoutError", "queue.Empty", "subprocess.TimeoutExpired")
"""Exceptions of sockets, queues and stores of the program."""
_LONGEST = 240
"""Characters of an exception's text that are shown."""
_AT_ONCE_NS = 2_000_000_000
_LOST = re.compile(
    r"closed by (?:remote )?peer|reset by peer|broken pipe|ncclRemoteError|remote process exited"
    r"|(?:got|sent) 0 bytes|connection was likely closed",
    re.IGNORECASE,
)
"""How gloo, NCCL and torch's store report that the process on the other side is gone."""
_OF_STORE = "DistNetworkError"
_TIMED_OUT = re.compile(r"timed out|timeout", re.IGNORECASE)
"""How they report that it did not come."""


def failed(rank: Rank) -> bool:
    """Return whether a process ended with an exception that no peer can have caused."""
    error = str(rank.details.get("ended_with") or "")
    caused = error.startswith(_INTERRUPTS) or ended_by_peers(rank) or _TIMED_OUT.search(error)
    return bool(error) and not caused


def timed_out(rank: Rank) -> bool:
    """Return whether a process ended because a call of torch's had timed out."""
    error = str(rank.details.get("ended_with") or "")
    return bool(_TIMED_OUT.search(error)) and not error.startswith(_OF_OTHERS)


def was_interrupted(rank: Rank) -> bool:
    """Return whether a process ended because a signal was sent to the job."""
    return str(rank.details.get("ended_with") or "").startswith(_INTERRUPTS)


def ended_by_peers(rank: Rank) -> bool:
    """Return whether a process ended because a connection to another one did."""
    return bool(_LOST.search(str(rank.details.get("ended_with") or "")))


def lost_store(rank: Rank) -> bool:
    """Return whether a process ended because the one that served its store did."""
    return ended_by_peers(rank) and str(rank.details["ended_with"]).startswith(_OF_STORE)


def store_host(records: Records, waits: Waits, rank: Rank) -> Rank | None:
    """Return the rank that took the store of another one with it as it ended.

    Args:
        records: The records.
        waits: Which rank waits for which. A rank that waits was ended with the whole job.
        rank: A process that ended because it lost its store.
    """
    place = rank.activities.get(STORE_PLACE)
    if place is None or not lost_store(rank):
        return None
    served, unknown = [], []
    for one in records.run.ranks:
        theirs, last = one.activities.get(STORE_PLACE), one.activities.get(STORE_WAIT)
        if one.alive is not False or one.rank in {rank.rank, *waits.pending_calls}:
            continue
        if theirs is None or theirs.detail != place.detail or ended_by_peers(one):
            continue
        if last is not None and last.detail == f"serve {place.detail}":
            served.append(one)
        elif not one.exited and not (last and (last.detail or "").startswith("connect ")):
            unknown.append(one)  # its note on the store is overwritten by a later wait
    found = served or unknown
    return found[0] if len(found) == 1 else None


def status_of(rank: Rank) -> str:
    """Return how the launcher saw a process end that recorded no end; empty where none saw it."""
    status = rank.details.get("exit_status")
    return "" if not status or rank.exited else status_text(status)


def without_note(rank: Rank) -> Ending:
    """Return how a process ended that recorded no end."""
    status = status_of(rank)
    return Ending(End.WITH, status) if status else Ending(End.NOT_NOTED)


def ended_by(call: Call, rank: Rank, how: Callable[[Rank], bool] = failed) -> bool:
    """Return whether a process ended with an exception that this call raised on its own line.

    The call is recorded before it is made, so that a rank that failed in it appears to be in it.

    Args:
        call: The last call of the process.
        rank: The process.
        how: What is to be true of its exception.
    """
    raised = rank.activities.get(RAISED)
    if call.state is State.COMPLETED or raised is None or not how(rank):
        return False
    place = (raised.detail or "").partition(" at ")[2]
    return bool(place) and place in (call.site, call.user_site, call.full_site)


def timed_out_in_transfer(rank: Rank) -> bool:
    """Return whether the timeout of a send or receive ended a process."""
    last = rank.last_call(transfers=True) if timed_out(rank) else None
    return last is not None and last.op in P2P_OPS and ended_by(last, rank, timed_out)


def given_up_after(rank: Rank, call: Call) -> float | None:
    """Return for how many seconds a rank was in a barrier before it went on without it.

    A barrier blocks its caller: if it is not completed and another call follows, it timed out.
    """
    last = rank.last_call(transfers=True)
    if call.op not in BARRIERS or call.state is State.COMPLETED or call.captured or last is None:
        return None
    log = rank.logs[call.comm]
    after = log.call(call.seq + 1) if log.first <= call.seq < log.calls else last
    if not precedes(call, after) or None in (after.time_ns, call.time_ns):
        return None
    return ((after.time_ns or 0) - (call.time_ns or 0)) / 1e9


def is_last(rank: Rank | None, call: Call) -> bool:
    """Return whether a rank is, as far as is known, in a call of its peer or in a later one."""
    last = None if rank is None else rank.last_call()
    return (
        last is not None
        and last.comm == call.comm
        and last.seq >= call.seq
        and last.state is not State.COMPLETED
    )


def interrupted_after(records: Records, waits: Waits, rank: Rank) -> float | None:
    """Return how long peers had waited when a signal to the job ended a rank.

    Ctrl-C reaches all ranks. It ends a rank that runs Python code; ranks that wait in a collective
    live on until they are killed. They do not wait because that rank ended. A launcher that is
    killed takes the store with it, and ends the ranks that ask it for keys.

    Args:
        records: The records.
        waits: Which rank waits for which.
        rank: The rank that ended.

    Returns:
        Seconds from the last call of the rank to its end; None where no signal ended it, or
        no rank had waited for it by then.
    """
    stopped = lost_store(rank) and store_host(records, waits, rank) is None
    if not (stopped or was_interrupted(rank)):
        return None
    quiet = records.quiet_seconds(rank)
    return quiet if quiet is not None and quiet >= records.stall_seconds else None


def lost_by_peers(
    records: Records,
    waits: Waits,
    rank: Rank,
    *,
    closers: Collection[int],
    explained: Collection[int],
) -> bool:
    """Return whether peers failed at once in a call that a process had not posted when it died.

    The kernel closes the connections of a process that is killed, so that its peers fail within
    milliseconds. Heartbeats are too far apart to show that it ended before them.

    Args:
        records: The records.
        waits: Which rank waits for which.
        rank: A process that recorded no end.
        closers: Ranks without a recorded end, each of which accounts for the lost connections.
        explained: Ranks whose lost connections recorded failures account for.
    """
    if rank.exited or rank.alive or rank.details.get("beating"):
        return False
    if {*closers} == {rank.rank}:
        return True
    errors, absent = [], {rank.rank}
    for number, pending in waits.pending_calls.items():
        peer = records.run.by_rank[number]
        raised = peer.activities.get(RAISED)
        # A peer that was killed while it handled the error has noted where it was raised.
        error = peer.details.get("ended_with") or (raised and raised.detail)
        at_once = raised and 0 <= raised.since_ns - (pending.call.time_ns or 0) < _AT_ONCE_NS
        if rank.rank not in pending.absent or not (error and at_once):
            continue
        if _LOST.search(str(error)) and number not in explained:
            return True
        errors.append(str(error))
        absent.update(pending.absent)
    # A call fails at once for other reasons, too: of one rank, and its peers are killed for it.
    return len(errors) > len(absent)


def noted_error(rank: Rank) -> str:
    """Return the newest exception that a process noted, and its line; empty without one."""
    noted = rank.activities.get(RAISED)
    return printable((noted and noted.detail) or "")


def failed_inside(case: Records, analyzer: str) -> Iterator[Finding]:
    """Yield ranks that failed in a call that all members have posted.

    Args:
        case: The case.
        analyzer: Name of the analyzer that reports them.
    """
    ranks = case.run.by_rank
    inside: dict[tuple[str, int], list[int]] = {}
    for rank in filter(failed, case.run.ranks):
        if (call := rank.last_call()) is not None and ended_by(call, rank):
            inside.setdefault((call.comm, call.seq), []).append(rank.rank)
    for (key, seq), failing in inside.items():
        comm, theirs = case.run.communicators[key], ranks[failing[0]].last_call()
        others = [number for number in comm.ranks if number not in failing]
        if theirs is None or len(others) < len(failing):
            continue
        if not all(is_last(ranks.get(number), theirs) for number in others):
            continue
        past = [n for n in others if (last := ranks[n].last_call()) and last.seq > seq]
        if comm.backend == "gloo" and len(past) == len(others):
            continue  # no rank waits in that call: they wait in the one that these ranks lack
        ended = [ranks[number] for number in failing]
        how = "; ".join(dict.fromkeys(str(rank.details["ended_with"]) for rank in ended))
        yield Finding(
            kind="dead_rank",
            summary=Ends.FAILED_IN.of(
                failing=failing,
                where=call_on(comm, theirs),
                how=printable(shorten(how, _LONGEST, placeholder=" ...")),
                others=others,
                later=Ends.OR_LATER if past else "",
            ),
            comm=comm,
            seq=seq,
            blame=Blame.on(failing),
            odd=theirs,
            peers=ranks[others[0]].last_call(),
            role="cause",
            analyzer=analyzer,
            evidence=(
                Fact.of_call(Ends.ALL_POSTED.of(comm.ranks, call_on(comm, theirs)), comm.ranks),
                *(
                    Fact.of_rank(one.rank, Ends.RAISED.of(one.rank, noted_error(one)))
                    for one in ended
                ),
            ),
            inferred=(str(Ends.FROM_LINE),),
        )


def have_gone_on(case: Records, rank: Rank, finding: Finding, waiting: Sequence[int]) -> bool:
    """Return whether all exited in order, and those that were in the call caught its failure."""
    peers = [case.run.by_rank[own] for own in waiting]
    blocks = finding.peers is not None and finding.peers.op in BARRIERS
    caught = blocks or all(RAISED in peer.activities for peer in peers)
    return caught and all(one.ended_well for one in (rank, *peers))


def given_up(finding: Finding, waiting: Sequence[int]) -> Finding:
    """Describe a call that nobody waits in: its ranks gave it up, went on, and exited in order."""
    (number,) = finding.diverging_ranks
    where = numbered(finding.comm, finding.seq, finding.peers)
    summary = Ends.GIVEN_UP.of(rank=number, where=where, waiting=waiting)
    return replace(finding, summary=summary, role="latent")
