"""Sends and receives without another side."""

from __future__ import annotations

from collections.abc import Sequence

from ncclscope.model import Call, Communicator, Run
from ncclscope.wording.names import (
    call_text,
    call_there,
    comm_text,
    plural,
    rank_text,
    ranks_text,
    sentence,
    site_text,
    verb,
)
from ncclscope.wording.phrase import Phrase


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


class Half(Phrase):
    """That one half of a transfer is missing, and whose."""

    NO_SERVER = ": a server without requests looks the same"
    HELD_UP = "ranks that wait for a rank which waits itself are held up by this one"
    NEWEST = "rank {}: {}, its newest call"
    LAST_CALL = "the last call of rank {} is {} on {}, {}"
    NO_OTHER_SIDE = (
        "{who:^} {waiting:wait} in {one.call}{any} on {one.comm}{site}, and {peer} "
        "{one.peers:have} posted no {lack} for it."
    )
    FROM_ANY = " from any rank"
    SEVERAL_WAIT = "{} diverged: several ranks wait for it, and it waits in no transfer itself"
    COUNTS = "{} to rank {} from all ranks, {} there"
    STOPPED = (
        "{who:^} {ranks:are} {state}; {waiting} {waiting:wait} for {ranks:their} half of transfers "
        "on {comm}."
    )
    BY_SIGNAL = "stopped by a signal"
    NO_HEARTBEAT = "dead, gone or stopped (no heartbeat for seconds)"
    LACKS = (
        "rank {0.rank} is in {0.call}, transfer {0.number} between it and rank {0.peer}, which has "
        "posted no other half"
    )
    WAITS_IN_NONE = "it waits in no transfer itself"
    DIFFERS = (
        "it has posted up to transfer {} with its neighbours, {} than all others, which have "
        "reached {}"
    )
    SHORT_OF = (
        "it has posted {} of them, and all others have reached transfer {} with their neighbours"
    )


DOES = {"send": "sends to", "recv": "waits to receive from"}
LACKS = {"send": "receive", "recv": "send"}
BY_SIZE = "tags pair transfers here, and are not recorded; no send and receive of one size are left"
OPEN = "the records do not show which of them is wrong"
OPEN_PAIR = "the records do not show which of the two is wrong"
ONLY_SHARED = "it is the only rank that all transfers without a match share"


def pending(rank: int, call: Call) -> str:
    """Say what a rank posted, and how far that came."""
    return f"rank {rank}: {call_text(call)}, {call.state.word}{site_text(call)}"


def after_others(rank: int, call: Call, before: int, proof: str) -> str:
    """Say which transfer of a rank is stuck, after how many between the two, and why."""
    return f"{pending(rank, call)}; {plural(before, 'transfer')} before it between the two; {proof}"


def left_order(
    run: Run, rank: int, place: tuple[int, int], expected: str, now: str, *, skipped: bool
) -> str:
    """Say which rank left the order that its steps had before."""
    who, (step, number) = sentence(rank_text(run, rank)), place
    if skipped:
        return f"{who} skipped {expected}, in step {step}, and went on with {now}."
    where = f"call {number} of step {step}"
    return f"{who} posted {now} as {where}, where each step before had {expected}."


def order_left(
    rank: int, place: tuple[int, int], expected: tuple[str, Call], now: tuple[str, Call]
) -> tuple[str, str]:
    """Say what a rank posted in a step, and what in the steps before."""
    return (
        f"rank {rank}, call {place[1]} of step {place[0]}: {now[0]}{site_text(now[1])}",
        f"in each of the 3 steps before: {expected[0]}{site_text(expected[1])}",
    )


def others_kept_order(rank: int) -> str:
    """Say that a rank diverged, as the others kept the order of their steps."""
    return (
        f"rank {rank} diverged: all other ranks posted their calls in the same order as in the 3 "
        f"steps before"
    )


def cycle(ranks: Sequence[int], summary: str, *, collectives: bool) -> str:
    """Say which ranks wait for each other in transfers, or also in collectives."""
    what = "collectives, sends and receives" if collectives else "sends and receives"
    return f"{sentence(ranks_text(ranks))} wait for each other in a cycle of {what}. {summary}"


def waits_for(rank: int, awaited: int, comm: Communicator, call: Call) -> str:
    """Say for whom a rank waits, and in what."""
    return f"rank {rank} waits for rank {awaited}, in {call_there(comm, call)}"


def wait_for_it(rank: int, call: Call, number: int) -> str:
    """Say which transfer waits for a rank that has been named, and lacks its other half."""
    return (
        f"rank {rank} {DOES[call.op]} it, transfer {number} of that kind between them, and it has "
        f"posted no {LACKS[call.op]} for it"
    )


def late(run: Run, rank: int, comm: Communicator, halves: str, joins: Sequence[int]) -> str:
    """Say who is in no call while neighbours wait in transfers, and others in a collective."""
    more = f"; {ranks_text(joins)} {verb(joins, 'wait')} for it in a collective" if joins else ""
    return (
        f"{sentence(rank_text(run, rank))} is in no {'call' if joins else 'transfer'}, and its "
        f"{'peers' if joins else 'neighbours'} wait for it on {comm_text(comm)}: {halves}{more}."
    )


def unlike_neighbours(run: Run, rank: int, comm: Communicator, halves: str) -> str:
    """Say whose transfers do not match those of its neighbours."""
    return (
        f"The transfers of {rank_text(run, rank)} do not match its neighbours' on "
        f"{comm_text(comm)}: {halves}."
    )


def why(rank: int, reason: str, *, is_late: bool = False) -> str:
    """Say why a rank is taken to have diverged, or to be late."""
    return f"rank {rank} {'is late' if is_late else 'diverged'}: {reason}"


def missing(
    run: Run, comm: Communicator, call: Call, rank: int, peer: int, transfer: tuple[int, int, int]
) -> str:
    """Say who posted a transfer, as which number from whom to whom, and who not its other half."""
    number, sender, receiver = transfer
    return (
        f"{sentence(rank_text(run, rank))} posted {call_there(comm, call)}, transfer {number} from "
        f"rank {sender} to rank {receiver}, and {rank_text(run, peer)} has posted no "
        f"{LACKS[call.op]} for it."
    )


def counts(sender: int, receiver: int, sends: int, receives: int, paired: int) -> str:
    """Say how many sends and receives there are between two ranks."""
    return (
        f"{plural(sends, 'send')} from rank {sender} to rank {receiver}, "
        f"{plural(receives, 'receive')} there; {paired} of them form pairs"
    )


def last_collective(rank: int, comm: Communicator, last: Call) -> str:
    """Say which the last collective of a rank is."""
    return (
        f"the last collective of rank {rank} is #{last.seq} on {comm_text(comm)}, "
        f"{call_text(last)}, {last.state.word}{site_text(last)}"
    )


def with_unseen(rank: int, unseen: Sequence[int]) -> str:
    """Say that a rank waits for ranks without whole records."""
    return (
        f"rank {rank} waits in a transfer with {ranks_text(unseen)}, of which records are missing "
        f"or damaged"
    )


def not_received(sender: int, sends: int, receives: int) -> str:
    """Say how often a rank has sent to another one that has posted fewer receives."""
    return (
        f"rank {sender} has sent it {plural(sends, 'time')}, and it has posted "
        f"{plural(receives, 'receive')} from there"
    )


def misdirected(
    run: Run, diverging: int, comm: Communicator, halves: Sequence[tuple[int, int, Call]]
) -> str:
    """Say which transfers lack their other half because of one rank."""
    texts = []
    for place, (rank, peer, call) in enumerate(halves):
        who, whom = (
            rank_text(run, one) if place == 0 and one == diverging else f"rank {one}"
            for one in (rank, peer)
        )
        texts.append(f"{who} {DOES[call.op]} {whom}, which has posted no {LACKS[call.op]} for it")
    return f"{sentence('; '.join(texts))} (on {comm_text(comm)})."


def never_received(peer: int) -> str:
    """Say that a rank waits for a sender that it never received from."""
    return f"it has never received from rank {peer}, and lacks a receive elsewhere"


def new_pair(peer: int, waiting: int) -> str:
    """Say that a rank posted a transfer that is new, and for which another rank waits."""
    return (
        f"it never had such a transfer with rank {peer} before, and rank {waiting} waits for just "
        f"this one"
    )


def unfit(
    run: Run, comm: Communicator, ends: tuple[int, int], sent: Call, received: Call, number: int
) -> str:
    """Say which send and receive are a pair and do not match, with their number."""
    return (
        f"{sentence(rank_text(run, ends[0]))} posted {call_there(comm, sent)}, and "
        f"{rank_text(run, ends[1])} {call_text(received)}: transfer {number} between them does "
        f"not match."
    )


def match_until(sender: int, receiver: int, number: int) -> str:
    """Say how many transfers before one match."""
    if number > 1:
        return f"transfers 1 to {number - 1} from rank {sender} to rank {receiver} match"
    return f"it is the first transfer from rank {sender} to rank {receiver}"
