"""Sentences about calls that a rank left out, posted too many, or posted elsewhere."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ncclscope.model import Call, Communicator, Run
from ncclscope.wording.differences import Contrast, subject
from ncclscope.wording.names import (
    call_text,
    call_there,
    comm_text,
    have,
    placed,
    plural,
    rank_text,
    ranks_text,
    sentence,
    site_text,
    verb,
    who_text,
)

SHARED_BY_THREADS = "threads that share a group without a common order leave such records"
Placed = tuple[Communicator, Call]
_SHOWN = 6
"""Calls left out, or posted once more, that are listed."""


def on(comm: Communicator, call: Call) -> str:
    """Return a call with its communicator and line, without its number."""
    return f"{call_there(comm, call)}{site_text(call)}"


def extra(run: Run, one: Contrast, count: int, contrast: str) -> str:
    """Say who posted calls that the peers did not."""
    return (
        f"{subject(run, one)} posted {plural(count, 'call')} on {comm_text(one.comm)} that "
        f"{ranks_text(one.peers)} did not: {contrast}."
    )


def skipped(run: Run, one: Contrast, count: int, contrast: str) -> str:
    """Say who skipped calls and went on."""
    return (
        f"{subject(run, one)} skipped {plural(count, 'call')} on {comm_text(one.comm)} and went "
        f"on: {contrast}."
    )


def agree_again(count: int, matched: int, *, extra: bool) -> str:
    """Say how many calls agree without the extra calls, or after the skipped ones."""
    start = f"after skipping {plural(count, 'call')}"
    if extra:
        start = f"without {'it' if count == 1 else 'them'}"
    return f"{start}, {plural(matched, 'call')} {verb(range(matched), 'agree')} again"


def too_early(one: Contrast, later: Mapping[int, int]) -> str:
    """Say that peers posted the call after others, as which number of theirs."""
    return (
        f"{ranks_text([*later])} posted such a call as #{next(iter(later.values()))}: "
        f"{ranks_text(one.odd)} may have posted it too early, in the opposite order"
    )


def may_be_next(one: Contrast, *, usual: bool, always: bool) -> str:
    """Say that peers may post the call next, as they did before, or always did."""
    past = "may post such a call next"
    if usual:
        past = f"posted such a call next {'each time before' if always else 'before'}"
    return (
        f"{ranks_text(one.peers)} {past}: {ranks_text(one.odd)} may have posted it too early, in "
        f"the opposite order, or skipped calls before it"
    )


def other_places(one: Contrast, places: Mapping[int, int]) -> str:
    """Say as which number each rank posted a call that all of them posted."""
    where = ", ".join(f"as #{place} on rank {rank}" for rank, place in sorted(places.items()))
    return (
        f"The members of {comm_text(one.comm)} posted the same calls in different orders from call "
        f"{one.seq} on: {placed(one.odd_call)} comes {where}; the records do not show which order "
        f"diverged."
    )


def either(one: Contrast, off: int, *, by_habit: bool) -> str:
    """Say that one side skipped calls or the other posted extra ones."""
    where = comm_text(one.comm)
    how = (
        f"are {plural(off, 'call')} apart on {where} since call {one.seq}, "
        f"{call_text(one.peer_call)}: one side skipped calls or the other posted extra ones"
    )
    if by_habit:
        how = (
            f"are in different calls as call {one.seq} on {where}, {placed(one.odd_call)} and "
            f"{placed(one.peer_call)}: one side skipped calls, posted extra ones, or has them in "
            f"the opposite order"
        )
    return f"{sentence(ranks_text(one.peers))} {how}; the records do not show which."


def came_to_later(run: Run, one: Contrast, count: int) -> str:
    """Say who came to a later call of the peers, where no call after it shows a skip."""
    who = "it" if len(one.odd) == 1 else "they"
    them = "that call" if count == 1 else f"{plural(count, 'call')} from that one on"
    return (
        f"{subject(run, one)} came to {placed(one.odd_call)} as call {one.seq} on "
        f"{comm_text(one.comm)}, {ranks_text(one.peers)} to {placed(one.peer_call)}: {who} skipped "
        f"{them}, or would have posted it later, in the opposite order."
    )


def without_group(run: Run, one: Contrast) -> str:
    """Say who did not create a group. The rank may have created the next group instead."""
    return (
        f"{subject(run, one)} came to {call_text(one.odd_call)} without "
        f"{call_text(one.peer_call)}, which {ranks_text(one.peers)} created as call {one.seq} on "
        f"{comm_text(one.comm)}: it skipped that call, or would have posted it later."
    )


def round_fewer(run: Run, one: Contrast, count: int, *, equal: int, left: bool) -> str:
    """Say who made one of `equal` rounds fewer, and what it came to, also by leaving the loop."""
    came = "left the loop and came to" if left else "came to"
    what = f"one round of {plural(count, 'call')}" if equal > 1 else plural(count, "call")
    return (
        f"{subject(run, one)} left out {what} on {comm_text(one.comm)}: it {came} "
        f"{placed(one.odd_call)} as call {one.seq}, {ranks_text(one.peers)} to "
        f"{placed(one.peer_call)}."
    )


def which_of_equal(seqs: tuple[int, int] | None, rounds: int) -> str:
    """Say that of equal calls, or equal rounds, it is not known which one was left out."""
    if seqs is None:
        return ""
    are = f"are {plural(rounds, 'equal round')}" if rounds else "are equal in all that is recorded"
    return (
        f" Calls {seqs[0]} to {seqs[1]} {are}: which of them it left out, the records do not show."
    )


def why_skipped(op: str, *, left: bool) -> str:
    """Say what a skip is inferred from, where no call after it shows it."""
    if left:
        return f"the end of a loop: a {op} that one rank alone posts within it looks the same"
    return "the usual order, in which the missing call came first each time before"


def in_group(ranks: Sequence[int], comm: Communicator, odd: Call, peer: Call, length: int) -> str:
    """Say who posted the calls of an NCCL group in another order."""
    return (
        f"{sentence(ranks_text(ranks))} posted the {plural(length, 'call')} of a group on "
        f"{comm_text(comm)} in another order: call {odd.seq} is {call_text(odd)} there and "
        f"{call_text(peer)} on the others. NCCL sorts the calls of a group, so nothing hangs; "
        f"other libraries, or the same calls outside of a group, would hang."
    )


def one_group(comm: Communicator, first: int, last: int) -> str:
    """Say that calls form one NCCL group and differ in their order."""
    return (
        f"calls {first} to {last} on {comm_text(comm)} form one NCCL group and differ between "
        f"ranks only in their order"
    )


def swapped(
    run: Run, rank: int, comms: Sequence[Communicator], posted: Call, theirs: str, count: int
) -> str:
    """Say who made calls on the first of two communicators that belong on the other."""
    here, there = map(comm_text, comms)
    return (
        f"{sentence(rank_text(run, rank))} made {plural(count, 'call')} on {here} that "
        f"{verb(range(count), 'belong')} on {there}: call {posted.seq} on "
        f"{comms[0].label or 'it'} is {call_text(posted)} there, {theirs}."
    )


def of_peers(call: Call | None, peers: Sequence[int]) -> str:
    """Say what peers posted, if they have come that far."""
    if call is None:
        return f"which {ranks_text(peers)} {have(peers)} not reached"
    return f"{call_text(call)} on {ranks_text(peers)}"


def agree_until(comm: Communicator, seq: int) -> str:
    """Say that the calls on a communicator agree up to one."""
    return f"{comm_text(comm)}: all calls before #{seq} agree"


def posted_there(rank: int, posted: Call, theirs: str, site: str) -> str:
    """Say what a rank posted, and what its peers did."""
    return f"#{posted.seq}: rank {rank} posted {placed(posted)}, {theirs}{site}"


def exchanged(rank: int, other: Contrast, name: str) -> str:
    """Say that a rank posted on a second communicator what its peers posted on the first."""
    return (
        f"#{other.seq} on {comm_text(other.comm)}: rank {rank} posted {placed(other.odd_call)}, "
        f"{call_text(other.peer_call)} on {ranks_text(other.peers)}: exactly what its peers posted "
        f"on {name or 'the other communicator'}"
    )


def more_and_fewer(comms: Sequence[Communicator], count: int, missed: Call | None) -> str:
    """Say how many calls are too many on one communicator and missing on another."""
    here, there = map(comm_text, comms)
    instead = f" instead of {call_text(missed)}" if missed else ""
    return (
        f"{plural(count, 'call')} more on {here}, {count} fewer on {there}{instead}, counted in "
        f"sequence order"
    )


def departed(
    run: Run, ranks: Sequence[int], first: Placed, came: Placed, count: int, *, left_out: bool
) -> str:
    """Say which calls of their rounds ranks left out, or repeated, and what they came to."""
    did = f"posted {plural(count, 'call')} once more"
    opposite = ": it was skipped, or would have come later, in the opposite order"
    if left_out:
        did = f"left out {plural(count, 'call')}"
    alone = len(ranks) == 1
    return (
        f"{sentence(who_text(run, ranks))} {'' if alone else 'each '}{did}, "
        f"{'' if alone else f'rank {ranks[0]} '}from {on(*first)} on, and came to {on(*came)}"
        f"{opposite if left_out and count == 1 else ''}."
    )


def in_rounds_before(run: Run, rank: int, calls: Sequence[Call], *, left_out: bool) -> str:
    """List the calls that a rank posted in each of its rounds before."""
    shown = [
        f"{call_text(call)} on {run.communicators[call.comm].label}{site_text(call)}"
        for call in calls[:_SHOWN]
    ]
    more = [f"{len(calls) - _SHOWN} more"] if len(calls) > _SHOWN else []
    listed, times = ", then ".join([*shown, *more]), "" if left_out else " once"
    return f"in the rounds before, rank {rank} posted here{times}: {listed}"


def elsewhere(run: Run, ranks: Sequence[int], now: Placed, usual: Placed) -> str:
    """Say that a line posted on another communicator, or to another peer, than in its rounds."""
    return (
        f"{sentence(who_text(run, ranks))} {'' if len(ranks) == 1 else 'each '}posted {on(*now)}; "
        f"in each round before, that line posted {call_there(*usual)}."
    )


OTHERWISE_EARLY = "a call too many, or calls left out, would fit as well"


def before_its_turn(run: Run, ranks: Sequence[int], early: Placed, first: Placed) -> str:
    """Say that ranks posted a call before one that came first in each of their rounds."""
    return (
        f"{sentence(who_text(run, ranks))} {'' if len(ranks) == 1 else 'each '}posted {on(*early)} "
        f"before {call_there(*first)}; in each round before, it came after it."
    )


def did_not_make(
    run: Run, ranks: Sequence[int], made: Placed, group: Communicator, waiting: Sequence[int]
) -> str:
    """Say that ranks left out the creation of a group in which others wait."""
    return (
        f"{sentence(who_text(run, ranks))} did not make {comm_text(group)}, in which "
        f"{ranks_text(waiting)} {verb(waiting, 'wait')}: call {made[1].seq} was left out, "
        f"{on(*made)}."
    )


def kept_to_rounds(rank: int) -> str:
    """Say that a rank did the usual up to where it departed."""
    return f"rank {rank} kept to its rounds up to there"


def keep_to_rounds(ranks: Sequence[int]) -> str:
    """Say which ranks did the usual."""
    return f"{ranks_text(ranks)} came where the rounds before say"


def may_have_departed(ranks: Sequence[int]) -> str:
    """Say that ranks which departed from their rounds may be the cause."""
    return f"{ranks_text(ranks)} departed from the rounds before: that may be the cause"
