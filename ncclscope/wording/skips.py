"""Sentences about calls that a rank left out, posted too many, or posted elsewhere."""

from __future__ import annotations

from collections.abc import Sequence

from ncclscope.model import Call, Communicator, Run
from ncclscope.wording.names import call_there, site_text
from ncclscope.wording.phrase import Phrase

_SHOWN = 6
"""Calls left out, or posted once more, that are listed."""


class Skip(Phrase):
    """Calls that one side of a difference, ``one``, does not have."""

    EXTRA = "{who:^} posted {count} on {one.comm} that {one.peers} did not: {contrast}."
    SKIPPED = "{who:^} skipped {count} on {one.comm} and went on: {contrast}.{which}"
    REPLAYS = "{replays} of graph {call.graph} ({calls})"
    AFTER = "after skipping {}, {} {:agree} again"
    WITHOUT = "without {0:them}, {1} {2:agree} again"
    TOO_EARLY = (
        "{} posted such a call as #{}: {} may have posted it too early, in the opposite order"
    )
    NEXT = (
        "{one.peers} {past}: {one.odd} may have posted it too early, in the opposite order, or "
        "skipped calls before it"
    )
    MAY_BE_NEXT = "may post such a call next"
    WAS_NEXT = "posted such a call next before"
    ALWAYS_NEXT = "posted such a call next each time before"
    OTHER_PLACES = (
        "The members of {0.comm} posted the same calls in different orders from call {0.seq} on: "
        "{0.odd_call:@} comes {1}; the records do not show which order diverged."
    )
    PLACE = "as #{} on rank {}"
    BY_THREADS = "threads that share a group without a common order leave such records"
    EITHER = (
        "{one.peers:^} are {off} apart on {one.comm} since call {one.seq}, {one.peer_call}: one "
        "side skipped calls or the other posted extra ones; the records do not show which."
    )
    EITHER_BY_HABIT = (
        "{one.peers:^} are in different calls as call {one.seq} on {one.comm}, {one.odd_call:@} "
        "and {one.peer_call:@}: one side skipped calls, posted extra ones, or has them in the "
        "opposite order; the records do not show which."
    )
    CAME_LATER = (
        "{who:^} came to {one.odd_call:@} as call {one.seq} on {one.comm}, {one.peers} to "
        "{one.peer_call:@}: {one.odd:they} skipped that call, or would have posted it later, in "
        "the opposite order."
    )
    CAME_AGAIN = (
        "{who:^} came to {one.odd_call:@} as call {one.seq} on {one.comm}, {one.peers} to "
        "{one.peer_call:@}: {one.odd:they} skipped {count} from that one on, posted this one once "
        "more, or would have posted that one later, in the opposite order."
    )
    WITHOUT_GROUP = (
        "{who:^} came to {one.odd_call} without {one.peer_call}, which {one.peers} created as call "
        "{one.seq} on {one.comm}: it skipped that call, or would have posted it later."
    )
    ROUND = (
        "{who:^} left out {what} on {one.comm}: it {came} {one.odd_call:@} as call {one.seq}, "
        "{one.peers} to {one.peer_call:@}.{which}"
    )
    ONE_ROUND = "one round of {}"
    CAME = "came to"
    LEFT_LOOP = "left the loop and came to"
    EQUAL = (
        " Calls {} to {} are equal in all that is recorded: which of them it left out, the records "
        "do not show."
    )
    EQUAL_ROUNDS = " Calls {} to {} are {}: which of them it left out, the records do not show."
    BEGUN_ROUNDS = (
        " Calls {} to {} are {}, the last of which {} have begun: which of them it left out, the "
        "records do not show."
    )
    END_OF_LOOP = "the end of a loop: a {} that one rank alone posts within it looks the same"
    BY_HABIT = "the usual order, in which the missing call came first each time before"
    IN_GROUP = (
        "{ranks:^} posted the {count} of a group on {swap.comm} in another order: call {swap.seq} "
        "is {swap.odd_call} there and {swap.peer_call} on the others. NCCL sorts the calls of a "
        "group, so nothing hangs; other libraries, or the same calls outside of a group, would "
        "hang."
    )
    ONE_GROUP = (
        "calls {0.seq} to {0.end} on {0.comm} form one NCCL group and differ between ranks only in "
        "their order"
    )


class Elsewhere(Phrase):
    """Calls of a rank on another communicator than its peers', or out of its rounds."""

    SWAP = (
        "{who:^} made {count} on {swap.comm} that {calls:belong} on {swap.fewer}: call {swap.seq} "
        "on {name} is {swap.odd_call} there, {theirs}."
    )
    NOT_REACHED = "which {0} {0:have} not reached"
    OF_PEERS = "{} on {}"
    POSTED = "#{}: rank {} posted {:@}, {}{}"
    EXCHANGED = (
        "#{other.seq} on {other.comm}: rank {rank} posted {other.odd_call:@}, {other.peer_call} on "
        "{other.peers}: exactly what its peers posted on {name}"
    )
    THE_OTHER = "the other communicator"
    MORE = "{} more on {}, {} fewer on {}{}, counted in sequence order"
    INSTEAD = " instead of {}"
    LEFT_OUT = "{who:^} {each}left out {count}, {begins}from {first} on, and came to {came}."
    LEFT_OUT_ONE = (
        "{who:^} {each}left out {count}, {begins}from {first} on, and came to {came}: it was "
        "skipped, or would have come later, in the opposite order."
    )
    ONCE_MORE = (
        "{who:^} {each}posted {count} once more, {begins}from {first} on, and came to {came}."
    )
    ROUNDS_BEFORE = "in the rounds before, rank {} posted here: {}"
    ROUNDS_BEFORE_ONCE = "in the rounds before, rank {} posted here once: {}"
    OTHER_TARGET = (
        "{who:^} {each}posted {now}; in each round before, that line posted {usual} on {before}."
    )
    EARLY = (
        "{who:^} {each}posted {now} before {usual} on {there}; in each round before, it came after "
        "it."
    )
    ONCE_MORE_AS_WELL = "a call too many of {} would fit as well"
    EARLY_AS_WELL = "a call too many, or calls left out, would fit as well"
    NOT_MADE = (
        "{who:^} did not make {group}, in which {waiting} {waiting:wait}: call {made.seq} was left "
        "out, {where}."
    )
    NOT_MADE_YET = "a call too many of {} before the creation would fit as well"
    KEPT = "rank {} kept to its rounds up to there"
    KEEP = "{} came where the rounds before say"
    MAY_HAVE_DEPARTED = "{} departed from the rounds before: that may be the cause"


def there(comm: Communicator, call: Call) -> str:
    """Return a call with its communicator and line, without its number."""
    return f"{call_there(comm, call)}{site_text(call)}"


def listed(run: Run, calls: Sequence[Call]) -> str:
    """Return the first of some calls, with their communicators and lines."""
    shown = [
        Elsewhere.OF_PEERS.of(call, run.communicators[call.comm].label) + site_text(call)
        for call in calls[:_SHOWN]
    ]
    more = [f"{len(calls) - _SHOWN} more"] if len(calls) > _SHOWN else []
    return ", then ".join([*shown, *more])
