"""Sentences about two sides that posted different calls as one number of a communicator."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from ncclscope.model import Call, Communicator, Run
from ncclscope.wording.names import (
    call_text,
    comm_text,
    placed,
    plural,
    ranks_text,
    same_part,
    sentence,
    who_text,
)

OPEN = "the records do not show which side diverged"
OPEN_ORDER = "the records do not show which order diverged"
IN_PLACE_FITS = "one call in place of another would fit the calls here as well"
WENT_ON = "All members went on and completed calls after it."
IS_HOLE = (
    "it did not cause a hang: the job went on, so the record has a hole there, or members may "
    "differ in this call"
)
LEFT_WRONG_DATA = (
    "these calls were matched with each other and left wrong data: they completed, as small calls "
    "of equal size do"
)
_REASONS = {
    "other_communicators": "another communicator's majority identifies the diverging ranks",
    "habit": "{suspect} broke the pattern of calls that both ranks had repeated until then",
    "pattern": "{suspect} broke the pattern of calls that all ranks had repeated until then; the "
    "others are fewer, and kept it",
    "steps": "{suspect} posted another number of calls in one step than both ranks did in every "
    "step before it",
    "new_call": "a majority identifies the diverging ranks, but its own call is new there: each "
    "time before, the diverging ranks' call came next, so that the majority may have diverged",
    "same_kind": "the majority of other communicators of its kind identifies the diverging ranks",
}


class Item(Enum):
    """A recorded detail that distinguishes equal calls; the value is its wording."""

    LINES = "the lines they came from"
    STEPS = "the steps they belong to"
    SHAPES = "the shapes of their tensors"
    GRAPHS = "the graphs that replayed them"
    OTHER_CALLS = "the calls between them on other communicators"
    LIKE_CALLS = "the calls between them on communicators of the same kinds"

    def __str__(self) -> str:
        return self.value


@dataclass(frozen=True, kw_only=True)
class Contrast:
    """Two sides that posted different calls as one number of a communicator.

    Attributes:
        comm: The communicator.
        seq: First differing call.
        exact: False where an earlier, overwritten call may have been the first to differ.
        odd: The diverging ranks; empty where the diverging side is unknown.
        peers: The ranks they differ from; where ``odd`` is empty, the candidates.
        odd_call: The call of the diverging ranks at ``seq``.
        peer_call: The call of the peers at ``seq``.
        basis: The evidence that identifies the diverging ranks: ``majority``,
            ``new_call`` (a majority that posted what none had posted before),
            ``other_communicators``, ``same_kind``, or empty; for suspects ``habit``,
            ``pattern`` or ``steps``.
        item: The recorded detail in which calls with equal signatures differ, such as their
            lines; None where the signatures differ.
        noticed: Where ``item`` moved the difference back: the first call whose signature differs.
            None where no signature differs.
        differing_calls: Where the calls at ``seq`` differ only in their lines: the diverging
            ranks' call and the peers' call at ``noticed``.
        order: Where two neighbouring blocks of calls are in opposite order: the length of the
            peers' first block, and of the diverging ranks' first block.
        suspect: Where ``odd`` is empty: the member of a pair that broke a pattern. It does not
            count as diverging.
        survived: Number of later calls that all members are known to have completed at least.
        after: The difference before it on the communicator, which all survived; 0 for none.
        equal: Number of calls right before ``seq`` of which any may be the one left out.
    """

    comm: Communicator
    seq: int
    exact: bool
    odd: tuple[int, ...]
    peers: tuple[int, ...]
    odd_call: Call
    peer_call: Call
    basis: str
    item: Item | None = None
    noticed: int | None = None
    differing_calls: tuple[Call, Call] | None = None
    order: tuple[int, int] | None = None
    suspect: tuple[int, ...] = ()
    survived: int = 0
    after: int = 0
    equal: int = 0

    @property
    def decided(self) -> bool:
        """Whether the diverging side is known."""
        return bool(self.odd)

    @property
    def reason(self) -> str | None:
        """What identifies the diverging side, where that is inferred; None for a majority."""
        reason = _REASONS.get(self.basis)
        if reason is not None and self.suspect:
            reason = reason.format(suspect=ranks_text(self.suspect))
        if self.basis == "same_kind" and self.comm.part:
            return f"{reason}; {same_part(self.comm)}"
        return reason


def subject(run: Run, one: Contrast) -> str:
    """Return who diverged: ``Rank 6 (node-15, pid 3408431)``, ``One side of ranks 2 3``."""
    return sentence(who_text(run, one.odd)) if one.odd else f"One side of {ranks_text(one.peers)}"


def contrast(one: Contrast, surplus: int, edits: int) -> str:
    """Return ``call 5, all_reduce sum [8] on ranks 0-2, is all_gather [8] there``."""
    odd, peer, peers = call_text(one.odd_call), call_text(one.peer_call), ranks_text(one.peers)
    theirs, graphs = f"call {one.seq}, {peer}", graphs_text(one)
    if odd != peer:
        return f"{theirs} on {peers}, is {odd} there" + (f": {graphs}" if graphs else "")
    if one.item is Item.GRAPHS and graphs:
        return f"{theirs}, is the first that differs: {graphs}"
    lines = one.odd_call.site, one.peer_call.site
    if None not in lines and lines[0] != lines[1]:
        return f"{theirs}, comes from {lines[1]} on {peers}, from {lines[0]} there"
    side, off = "behind" if surplus < 0 else "ahead of", plural(abs(surplus), "call")
    if edits > 1 and surplus:
        return f"from {theirs}, on it is {side} {peers}, finally by {off}"
    return f"from {theirs}, on it is {off} {side} {peers}"


def graphs_text(one: Contrast) -> str:
    """Return ``graph 1 has 3 calls there, that of ranks 0 2 has 4``; empty where both have as many.

    Empty, too, where one of the calls was not replayed from a graph.
    """
    own, other = one.odd_call.replay, one.peer_call.replay
    if own is None or other is None or own.calls == other.calls:
        return ""
    return (
        f"graph {one.odd_call.graph} has {plural(own.calls, 'call')} there, "
        f"that of {ranks_text(one.peers)} has {plural(other.calls, 'call')}"
    )


def before(one: Contrast) -> str:
    """Say what is known of the calls before a difference."""
    known = f"all calls after another difference, #{one.after}, and before #{one.seq} agree"
    if not one.exact:
        known = f"the members already differ in overwritten records, at #{one.seq} or before"
    elif not one.after:
        known = f"all calls before #{one.seq - one.equal} agree"
    elif one.after + 1 == one.seq:
        known = f"#{one.seq} follows another difference, #{one.after}"
    return f"{comm_text(one.comm)}: {known}"


def posted(one: Contrast, sides: Sequence[Sequence[int]]) -> str:
    """Say what each of two sides posted; without them, that they are of equal size."""
    own, theirs = placed(one.odd_call), placed(one.peer_call)
    if not sides:
        return f"#{one.seq}: two sides of equal size posted {own} and {theirs}"
    return f"#{one.seq}: {ranks_text(sides[0])} posted {own}, {ranks_text(sides[1])} {theirs}"


def shifted(one: Contrast, off: int, *, further: bool) -> str:
    """Say how a detail shows by how many calls equal calls are shifted."""
    until = "on, and further later" if further else "to the end"
    return (
        f"which call it is: the calls here have equal operation, type and size, but "
        f"{one.item} match the peers' shifted by {off}, from #{one.seq} {until}"
    )


def noticed_later(one: Contrast) -> str:
    """Say from where on the calls differ, and from where on a detail of them."""
    return f"the calls themselves differ from #{one.noticed} on, {one.item} from #{one.seq} on"


def would_fit(inserted: int, deleted: int, *, in_place: bool) -> str:
    """Say which other edit explains the same calls."""
    if inserted and deleted:
        return IN_PLACE_FITS
    what = plural(inserted or deleted, "extra call" if inserted else "missing call")
    return f"{what} would fit as well" + (
        "" if in_place else ", with more calls unmatched at the end"
    )


def after_equal_calls(one: Contrast) -> str:
    """Say that one of the equal calls before a difference may be missing, or one too many."""
    return (
        f"{ranks_text(one.odd)} may have posted another number of the equal calls before "
        f"#{one.seq}, and be elsewhere in the program since then"
    )


def another_round(one: Contrast) -> str:
    """Say that a call in place of another may be one of another round."""
    return (
        f"{ranks_text(one.odd)} may have come to another round of the loop: such calls were posted "
        f"before"
    )


def no_majority(one: Contrast) -> str:
    """Say that those taken to be right are only most of those that posted the call."""
    return (
        f"{ranks_text(one.peers)} are right: they are most of those that posted the call, but no "
        f"majority of the {len(one.comm.ranks)} members"
    )


def completed_after(one: Contrast) -> str:
    """Say how many calls all members completed after a difference."""
    return f"all members completed at least {plural(one.survived, 'call')} after it"


def enqueued_after(calls: int) -> str:
    """Say that a difference is a cause although all members enqueued calls after it."""
    return (
        f"it is the cause: all members posted at least {calls} calls after it, which the launch "
        f"queues of the devices can hold"
    )


def more_later(count: int) -> str:
    """Say how many differences follow on the communicator."""
    return f"later on the same communicator: {plural(count, 'more difference')}"
