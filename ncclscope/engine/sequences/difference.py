"""One difference between the sequences of a communicator's members."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import Enum

from ncclscope.engine.repairs.rounds import LeftOut
from ncclscope.engine.sequences.edits import Edit
from ncclscope.model import Call, Communicator
from ncclscope.wording.names import ranks_text, same_part

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


@dataclass(frozen=True)
class Difference:
    """One difference between the sequences of a communicator's members.

    Attributes:
        comm: The communicator.
        seq: First differing call.
        exact: False where an earlier, overwritten call may have been the first to differ.
        odd: The diverging ranks; empty where the diverging side is unknown.
        peers: The ranks they differ from; where ``odd`` is empty, the candidates.
        odd_call: The call of the diverging ranks at ``seq``.
        peer_call: The call of the peers at ``seq``.
        edits: The edits that turn the peers' sequence into the diverging one, from ``seq`` on.
        aligned: Pairs of a peer's and a diverging rank's calls around ``seq``.
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
        other: Another, less likely edit that explains the same calls.
        rounds: The calls that the diverging ranks left out of their rounds; None where they are
            not known to.
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
    edits: tuple[Edit, ...]
    aligned: tuple[tuple[Call | None, Call | None], ...]
    basis: str
    item: Item | None = None
    noticed: int | None = None
    differing_calls: tuple[Call, Call] | None = None
    order: tuple[int, int] | None = None
    other: Edit | None = None
    rounds: LeftOut | None = None
    suspect: tuple[int, ...] = ()
    survived: int = 0
    after: int = 0
    equal: int = 0

    def undecided(self, ranks: Sequence[int], suspect: tuple[int, ...] = ()) -> Difference:
        """Return the difference without a diverging side.

        Args:
            ranks: All candidates.
            suspect: Those that broke a pattern.
        """
        return replace(self, odd=(), peers=tuple(sorted(ranks)), suspect=suspect)

    @property
    def decided(self) -> bool:
        """Whether the diverging side is known."""
        return bool(self.odd)

    @property
    def first(self) -> Edit:
        """The first edit."""
        return self.edits[0]

    @property
    def skipped(self) -> bool:
        """Whether the diverging ranks skipped a call and went on."""
        return self.first.inserted == 0 < self.first.deleted

    @property
    def has_few_after(self) -> bool:
        """Whether calls after the skip show no more than that it is one, and not an extra call.

        Who posts one call in place of skipping two has come to their next one as well.
        """
        return self.skipped and self.first.matched <= self.first.deleted and not self.item

    @property
    def inserted(self) -> bool:
        """Whether the diverging ranks posted a call that the others do not have."""
        return self.first.deleted == 0 < self.first.inserted

    @property
    def replaced(self) -> bool:
        """Whether the diverging ranks posted another call instead of the peers' call."""
        return self.first.inserted > 0 and self.first.deleted > 0

    @property
    def overwritten(self) -> bool:
        """Whether the kept calls agree, so that the difference lies before them."""
        same = self.odd_call.signature == self.peer_call.signature
        return same and not self.exact and not self.item

    @property
    def lines(self) -> tuple[str, str] | None:
        """The lines of both calls, where they differ and no later call shows that both are one."""
        odd, peer = self.odd_call, self.peer_call
        if not self.replaced or self.first.matched or self.order or self.item:
            return None
        if None in (odd.site, peer.site) or odd.site == peer.site:
            return None
        return f"{odd.site}", f"{peer.site}"

    @property
    def seqs(self) -> tuple[int, int] | None:
        """First and last number of the equal calls of which some were left out."""
        if not self.skipped:
            return None
        if self.equal:
            return self.seq - self.equal, self.seq + self.first.deleted - 1
        if self.rounds is None or self.rounds.rounds < 2:
            return None
        before = (self.rounds.rounds - 1) * self.rounds.calls
        return self.seq - before, self.seq + self.rounds.calls - 1

    @property
    def keeps_numbers(self) -> bool:
        """Whether each side posted one call for the other's, so that later numbers agree."""
        return self.replaced and self.order is None and not self.surplus

    @property
    def reason(self) -> str | None:
        """What identifies the diverging side, where that is inferred; None for a majority."""
        reason = _REASONS.get(self.basis)
        if reason is not None and self.suspect:
            reason = reason.format(suspect=ranks_text(self.suspect))
        if self.basis == "same_kind" and self.comm.part:
            return f"{reason}; {same_part(self.comm)}"
        return reason

    @property
    def certain(self) -> bool:
        """Whether the records alone show which ranks diverged and at which call."""
        concluded = (
            self.basis in ("same_kind", "new_call")
            or self.inferred
            or self.other is not None
            or self.differing_calls is not None
        )
        return bool(self.odd) and self.exact and not concluded

    @property
    def inferred(self) -> bool:
        """Whether all signatures agree, and only other recorded details differ."""
        return bool(self.item) and self.noticed is None

    @property
    def surplus(self) -> int:
        """Calls that the diverging ranks have more (positive) or fewer, as far as both go."""
        return sum(edit.inserted - edit.deleted for edit in self.edits)
