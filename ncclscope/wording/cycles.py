"""Sentences about ranks that wait for each other in a cycle."""

from __future__ import annotations

from collections.abc import Sequence

from ncclscope.model import Call, Communicator, Run
from ncclscope.wording.differences import OPEN_ORDER
from ncclscope.wording.names import (
    call_on,
    call_text,
    comm_text,
    placed,
    rank_text,
    ranks_text,
    sentence,
    site_text,
    verb,
)

Pending = tuple[Communicator, Call]
_SWAPPED = (
    "a rank that mixes up two communicators, for example because it created them in another "
    "order, looks the same"
)
NEW_ORDER = f"the order differs, although such calls are new there: {_SWAPPED}"
NEW_CALLS = f"which of the two it is, as such calls are new there: {_SWAPPED}"
ON_ONE_STREAM = (
    "calls run in the order in which a rank posted them, as on one stream, and have not "
    "completed: the backend does not report completion"
)


def open_cycle(ranks: Sequence[int], here: Pending, there: Pending, *, posted: bool) -> str:
    """Say which ranks wait for each other, some on one communicator first, some on another."""
    return (
        f"{sentence(ranks_text(ranks))} wait for each other in a cycle: some "
        f"{'posted to' if posted else 'entered'} {comm_text(here[0])} first, some "
        f"{comm_text(there[0])}; {OPEN_ORDER}."
    )


def posted_before(run: Run, rank: int, here: Pending, there: Pending, *, one_stream: bool) -> str:
    """Say which rank posted two calls in the opposite order, so that neither completes."""
    own, theirs = (
        f"call {call.seq}, {call_text(call)} on {comm_text(comm)}" for comm, call in (here, there)
    )
    return (
        f"{sentence(rank_text(run, rank))} posted {own} before {theirs}, its peers in the opposite "
        f"order: {'on one stream ' if one_stream else ''}neither completes, since each waits for "
        f"the other."
    )


def entered_before(
    run: Run, rank: int, here: Pending, there: Pending, waiting: Sequence[int]
) -> str:
    """Say which rank entered two communicators in the opposite order, and who waits in which."""
    own, theirs = (f"call {call.seq}, {call_text(call)}" for _, call in (here, there))
    return (
        f"{sentence(rank_text(run, rank))} entered {comm_text(here[0])} before "
        f"{comm_text(there[0])}, its peers in the opposite order: it waits in {own}, and "
        f"{ranks_text(waiting)} in {theirs}, each for the other."
    )


def never_joined(
    run: Run, named: int | None, own: Sequence[int], waiting: Sequence[int],
    here: Pending, there: Pending,
) -> str:  # fmt: skip
    """Say who, a named rank if any, never joined the call `there`, and waits in `here`."""
    who, waits, either = ranks_text(own), verb(own, "wait"), "one side skipped the other's call"
    if named is not None:
        who, waits, either = rank_text(run, named), "waits", "it skipped that call"
    return (
        f"{sentence(who)} never joined {call_on(*there)}, in which {ranks_text(waiting)} "
        f"{verb(waiting, 'wait')}, but {waits} in {call_on(*here)}: {either}, or would have posted "
        f"it later."
    )


def long_cycle(
    cycle: Sequence[int], own: Sequence[int], waiting: Sequence[int], here: Pending, there: Pending
) -> str:
    """Say which ranks wait, each in a call that the next one has not posted."""
    return (
        f"{sentence(ranks_text(cycle))} wait for each other in a cycle, each in a call that the "
        f"next has not posted: {ranks_text(waiting)} in {call_on(*there)}, {ranks_text(own)} in "
        f"{call_on(*here)}, and so on. Some skipped a call, or posted two in another order."
    )


def waits_for(rank: int, awaited: int, comm: Communicator, call: Call) -> str:
    """Say in which call a rank waits, and for whom."""
    return (
        f"rank {rank} is in #{call.seq} on {comm_text(comm)}, {placed(call)}, and waits for rank "
        f"{awaited}"
    )


def orders(majority: Sequence[int], rare: Sequence[int]) -> str:
    """Say which ranks have the two calls in which order."""
    return (
        f"the order of the two calls is the same on {ranks_text(majority)}, and the opposite on "
        f"{ranks_text(rare)}"
    )


def other_members(rank: int, come: int, theirs: Sequence[int]) -> str:
    """Say that a rank creates a group of other members than most of these do."""
    return (
        f"rank {rank} gave another list of ranks on the same line: {come} of {len(theirs)} members "
        f"create the group of {ranks_text(theirs)}"
    )


def in_order(rank: int, first: Pending, then: Pending) -> str:
    """Say from where a rank posted two calls, one after the other."""
    own, next_one = (
        f"#{call.seq} on {comm_text(comm)}{site_text(call)}" for comm, call in (first, then)
    )
    return f"rank {rank} posted {own}, and after it {next_one}"


def unusual(rank: int, here: Communicator, due: Communicator) -> str:
    """Say that a rank went to two communicators in another order than each time before."""
    return (
        f"rank {rank} went to {comm_text(here)} before {comm_text(due)}, and each time until then "
        f"it was the other way round"
    )
