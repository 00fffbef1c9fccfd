"""Sentences about two sides that posted different calls as one number of a communicator."""

from __future__ import annotations

from dataclasses import dataclass

from ncclscope.model import Call, Communicator, Run
from ncclscope.wording.names import (
    call_text,
    plural,
    ranks_text,
    same_part,
    sentence,
    who_text,
)
from ncclscope.wording.phrase import Phrase

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


class Item(Phrase):
    """A recorded detail that distinguishes equal calls."""

    LINES = "the lines they came from"
    STEPS = "the steps they belong to"
    SHAPES = "the shapes of their tensors"
    GRAPHS = "the graphs that replayed them"
    OTHER_CALLS = "the calls between them on other communicators"
    LIKE_CALLS = "the calls between them on communicators of the same kinds"


class Differ(Phrase):
    """What the two sides of a difference posted, and what else may be so."""

    OVERWRITTEN = (
        "{0.comm}: the members already differ in overwritten records, at #{0.seq} or before"
    )
    AGREE = "{}: all calls before #{} agree"
    FOLLOWS = "{0.comm}: #{0.seq} follows another difference, #{0.after}"
    AGREE_AFTER = (
        "{0.comm}: all calls after another difference, #{0.after}, and before #{0.seq} agree"
    )
    POSTED = "#{one.seq}: {odd} posted {one.odd_call:@}, {peers} {one.peer_call:@}"
    EQUAL_SIDES = "#{0.seq}: two sides of equal size posted {0.odd_call:@} and {0.peer_call:@}"
    SHIFTED = (
        "which call it is: the calls here have equal operation, type and size, but {one.item} "
        "match the peers' shifted by {off}, from #{one.seq} {until}"
    )
    TO_END = "to the end"
    FURTHER = "on, and further later"
    NOTICED = "the calls themselves differ from #{0.noticed} on, {0.item} from #{0.seq} on"
    ANOTHER_FITS = "one call in place of another would fit the calls here as well"
    FITS = "{} would fit as well"
    FITS_UNMATCHED = "{} would fit as well, with more calls unmatched at the end"
    EQUAL_CALLS = (
        "{0.odd} may have posted another number of the equal calls before #{0.seq}, and be "
        "elsewhere in the program since then"
    )
    ANOTHER_ROUND = "{} may have come to another round of the loop: such calls were posted before"
    SIZE_IS_NEW = (
        "{} may have come to another round of the loop: no call before shows that its line always "
        "posts one size"
    )
    NO_MAJORITY = (
        "{} are right: they are most of those that posted the call, but no majority of the {} "
        "members"
    )
    OUTVOTED = (
        "{} are right: they are two against one, and neither earlier calls nor other groups show "
        "that they did not make the same mistake"
    )
    OPEN = "the records do not show which side diverged"
    COMPLETED = "all members completed at least {} after it"
    WENT_ON = "{} All members went on and completed calls after it."
    IS_HOLE = (
        "it did not cause a hang: the job went on, so the record has a hole there, or members may "
        "differ in this call"
    )
    WRONG_DATA = (
        "these calls were matched with each other and left wrong data: they completed, as small "
        "calls of equal size do"
    )
    ENQUEUED = (
        "it is the cause: all members posted at least {} calls after it, which the launch queues "
        "of the devices can hold"
    )
    LATER = "later on the same communicator: {}"


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
