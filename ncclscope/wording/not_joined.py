"""Sentences about calls in which ranks wait, and which others have not posted."""

from __future__ import annotations

from collections.abc import Sequence

from ncclscope.model import Call, Communicator, Run
from ncclscope.model.signature import P2P_OPS
from ncclscope.wording.names import (
    call_on,
    call_text,
    comm_text,
    ranks_text,
    sentence,
    site_text,
    verb,
    who_text,
)

MOST_DO_NOT = "most ranks do not make this call here"
NO_TIMES = "no rank moves: the input does not say how long any rank has waited"
POSTED_NOTHING = "; it has posted nothing"


def posted(ranks: Sequence[int], comm: Communicator, call: Call, rest: str = "") -> str:
    """Say which call ranks posted, and what follows from it."""
    return f"{ranks_text(ranks)} posted {call_on(comm, call)}{rest}"


def posted_and_wait(ranks: Sequence[int], comm: Communicator, call: Call) -> str:
    """Say from where ranks posted a call in which they wait."""
    return posted(ranks, comm, call, f"{site_text(call)}, and {verb(ranks, 'wait')} in it")


def not_posted(rank: int) -> str:
    """Say that a rank did not post the call."""
    return f", and rank {rank} did not"


def no_record(rank: int) -> str:
    """Say that a rank is not among the input."""
    return f"no record of rank {rank} was found"


def only_completed(ranks: Sequence[int]) -> str:
    """Say which ranks completed a call."""
    return f"; {f'only {ranks_text(ranks)}' if ranks else 'none'} completed it"


def wait_for(waiting: Sequence[int], whom: str, comm: Communicator, call: Call) -> str:
    """Say in which call ranks wait for others."""
    return f"{ranks_text(waiting)} {verb(waiting, 'wait')} for {whom} in {call_on(comm, call)}"


def never_joined(
    run: Run, ranks: Sequence[int], comm: Communicator, call: Call, *, waits: str, late: bool
) -> str:
    """Say who never joined a call, or was late for it, and who waits in it."""
    joined = f"{'does' if len(ranks) == 1 else 'do'} not reach" if late else "never joined"
    return f"{sentence(who_text(run, ranks))} {joined} {call_on(comm, call)}, in which {waits}."


def never_joined_by(
    waiting: Sequence[int], comm: Communicator, call: Call, absent: Sequence[int]
) -> str:
    """Say which call ranks posted that others never joined."""
    return f"{sentence(posted(waiting, comm, call))}, which {ranks_text(absent)} never joined."


def wait_alone(
    run: Run, ranks: Sequence[int], comm: Communicator, call: Call, absent: Sequence[int], why: str
) -> str:
    """Say which few ranks wait in a call that most never posted."""
    return (
        f"{sentence(who_text(run, ranks))} {verb(ranks, 'wait')} in {call_on(comm, call)}"
        f"{site_text(call)}, which {ranks_text(absent)} never posted: {why}."
    )


def wait_in(ranks: Sequence[int], what: str, seconds: float) -> str:
    """Say in what ranks wait instead, and for how long."""
    who = "it" if len(ranks) == 1 else "they"
    return f"{who} {verb(ranks, 'wait')} {what} for {seconds:.0f} s"


def unknown_outside(ranks: Sequence[int]) -> str:
    """Say that ranks may do what is not recorded."""
    return f"activity of {ranks_text(ranks)} outside of recorded calls is unknown"


def extra_or_held_up(waiting: Sequence[int], absent: Sequence[int]) -> str:
    """Say that those who wait or those who are absent may have diverged."""
    return (
        f"{ranks_text(waiting)} may have posted an extra call, or {ranks_text(absent)} may be held "
        f"up before it: they made no call since"
    )


def key_not_set(waiting: Sequence[int], absent: Sequence[int], key: str) -> str:
    """Say that ranks may have left out to set a key, or others may wait for the wrong one."""
    named = f"key '{key}'" if key else "their keys"
    return (
        f"{ranks_text(waiting)} may have gone on without setting {named}, or {ranks_text(absent)} "
        f"may wait for {'a key' if key else 'keys'} that nobody sets"
    )


def stayed_alive(rank: int, seconds: float) -> str:
    """Say for how long a rank lived on."""
    return f"rank {rank} stayed alive for {seconds:.0f} s after that"


def stopped(ranks: Sequence[object]) -> str:
    """Say that a signal has stopped the processes of ranks."""
    return f"; a signal has stopped {'its process' if len(ranks) == 1 else 'their processes'}"


def idle(ranks: Sequence[object]) -> str:
    """Say that engines wait for requests."""
    return f"; {'it is' if len(ranks) == 1 else 'they are'} idle, in dequeue"


def thread_ended(error: str) -> str:
    """Say with what a thread ended."""
    return f"; a thread of it ended with {error}"


def raised_before(error: str, seconds: float) -> str:
    """Say what a rank raised before it went silent."""
    return f"; it raised {error} {seconds:.0f} s ago, and posted nothing since"


def last_was(run: Run, call: Call) -> str:
    """Say what the last call of a rank is."""
    label = run.communicators[call.comm].label
    return f"; its last call, {call_text(call)} on {label}, is {call.state.word}"


def not_on_device(rank: int, comm: Communicator, seq: int) -> str:
    """Say that a rank has posted a call which its device has not reached."""
    return (
        f"rank {rank} posted it, too, but its device has not reached call {seq} on "
        f"{comm_text(comm)}: earlier work blocks its stream"
    )


def not_completed_since(rank: int, comm: Communicator, head: Call) -> str:
    """Say that a rank has posted a call, and is in an earlier one."""
    return (
        f"rank {rank} posted it, too, but has completed no call since #{head.seq} on "
        f"{comm_text(comm)}, {call_text(head)}, which all members have joined"
    )


def posted_there(rank: int, count: int) -> str:
    """Say how many calls a rank posted on a communicator."""
    return f"rank {rank} posted {count} calls there"


def last_call(run: Run, rank: int, last: Call | None) -> str:
    """Say what the last call of a rank is, and where it was posted."""
    if last is None:
        return f"rank {rank} has no call under way"
    seq = "" if last.op in P2P_OPS else f"#{last.seq} "
    return (
        f"the last call of rank {rank} is {seq}on {comm_text(run.communicators[last.comm])}, "
        f"{call_text(last)}, {last.state.word}" + (f", posted at {last.site}" if last.site else "")
    )
