"""Sends and receives without another side."""

from __future__ import annotations

from collections.abc import Sequence

from ncclscope.model import Call, Communicator, Run
from ncclscope.wording.names import (
    be,
    call_text,
    comm_text,
    have,
    its,
    plural,
    ranks_text,
    sentence,
    site_text,
    verb,
    who_text,
)
from ncclscope.wording.phrase import Phrase

_LACKS = {"send": "receive", "recv": "send"}
NO_SERVER = ": a server without requests looks the same"
NOT_KNOWN = "the records do not show which of them is wrong"
HELD_UP = "ranks that wait for a rank which waits itself are held up by this one"
WAITS_IN_NONE = "it waits in no transfer itself"


class Stuck(Phrase):
    """Why a transfer is stuck, with the numbers of ranks."""

    TIMEOUT_ENDED = "its timeout ended rank {}"
    ENDED_WITHOUT = "rank {} ended normally without its half"
    GAVE_UP = "rank {} did not complete it within its timeout"
    QUIET = "{} have made no call for {:.0f} s"
    DUMPED_AT_TIMEOUT = "the dumps were written when a call timed out"
    ALL_QUIET = "all dumps were written long after the last call"
    WAITS_FOR_IT = "rank {} waits for rank {} itself, in another call"
    OTHERS_COMPLETED = "rank {} has completed all transfers before it that its ring kept"


def newest(rank: int, call: Call) -> str:
    """Say in which newest call a rank waits."""
    return f"rank {rank}: {call_text(call)}, {call.state.word}{site_text(call)}, its newest call"


def last_call(comm: Communicator, rank: int, call: Call) -> str:
    """Say what the last call of a rank is."""
    return (
        f"the last call of rank {rank} is {call_text(call)} on {comm_text(comm)}, "
        f"{call.state.word}{site_text(call)}"
    )


def unanswered(
    run: Run, comm: Communicator, call: Call, waiting: Sequence[int], peers: Sequence[int]
) -> str:
    """Say that ranks wait in a transfer for which peers have posted no other side."""
    any_rank = "" if call.peer is not None else " from any rank"
    return (
        f"{sentence(who_text(run, waiting))} {verb(waiting, 'wait')} in {call_text(call)}{any_rank}"
        f" on {comm_text(comm)}{site_text(call)}, and {who_text(run, peers)} {have(peers)} posted "
        f"no {_LACKS[call.op]} for it."
    )


def all_wait_for(diverging: Sequence[int]) -> str:
    """Say why a rank diverged for which several ranks wait."""
    return (
        f"{ranks_text(diverging)} diverged: several ranks wait for it, and it waits in no "
        f"transfer itself"
    )


def counts(receiver: int, sent: int, received: int) -> str:
    """Say how many sends to a rank there are, and how many receives."""
    return (
        f"{plural(sent, 'send')} to rank {receiver} from all ranks, "
        f"{plural(received, 'receive')} there"
    )


def stopped(
    run: Run, comm: Communicator, ranks: Sequence[int], waiting: Sequence[int], *, known: bool
) -> str:
    """Say that ranks wait for transfers with some that are stopped; `known`: by a signal."""
    state = "stopped by a signal" if known else "dead, gone or stopped (no heartbeat for seconds)"
    return (
        f"{sentence(who_text(run, ranks))} {be(ranks)} {state}; {ranks_text(waiting)} "
        f"{verb(waiting, 'wait')} for {its(ranks)} half of transfers on {comm_text(comm)}."
    )


def lacks_half(rank: int, call: Call, number: int, peer: int) -> str:
    """Say in which transfer a rank is whose other half was not posted."""
    return (
        f"rank {rank} is in {call_text(call)}, transfer {number} between it and rank {peer}, which "
        f"has posted no other half"
    )


def differs_in_number(own: int, common: int) -> str:
    """Say that a rank has posted another number of transfers than all others."""
    side = "fewer" if own < common else "more"
    return (
        f"it has posted up to transfer {own} with its neighbours, {side} than all others, which "
        f"have reached {common}"
    )


def short_of(own: int, common: int) -> str:
    """Say that a rank has posted fewer transfers than all others have reached."""
    return (
        f"it has posted {own} of them, and all others have reached transfer {common} with their "
        f"neighbours"
    )
