"""What one group of ranks did differently on one communicator."""

from __future__ import annotations

from dataclasses import dataclass

from ncclscope.analysis.sequences.edits import Edit
from ncclscope.analysis.wording import ranks_text, same_part
from ncclscope.model import Call, Communicator

__all__ = ["Difference"]

_REASONS = {
    "other communicators": "the odd side was told by another communicator, which has a majority",
    "habit": "{suspect} broke the rhythm that both had kept until then",
    "steps": "{suspect} posted another number of calls in one step than both had in each step "
    "before it",
    "same kind": "the odd side was told by what the other communicators of its kind did",
}


@dataclass(frozen=True)
class Difference:
    """What one group of ranks did differently on one communicator.

    Attributes:
        comm: The communicator.
        seq: First differing call.
        exact: False where it may have been an earlier one that has been overwritten.
        odd: The ranks that differ; empty where nothing says which side is odd.
        peers: The ranks they differ from; where ``odd`` is empty, the candidates.
        odd_call: What the odd ranks posted at ``seq``.
        peer_call: What the others posted there.
        edits: How the odd sequence differs from there on.
        aligned: A peer's calls and the odd rank's around it, side by side.
        basis: Why they and not the others are held to be odd: ``majority``,
            ``other communicators``, ``same kind``, or nothing; of a suspect ``habit`` or
            ``steps``.
        witness: What tells that they differ in a call which equals the peers' in all that
            members must agree in; empty where the calls themselves differ.
        noticed: Where ``witness`` only tells that they differ earlier: the first call that
            differs by itself. None where none does.
        telling: Where the calls at ``seq`` differ in their lines alone: the odd ranks' call and the
            peers' at ``noticed``.
        order: Where two neighbouring blocks of calls are the other way round: how many calls the
            peers' first one has, and the odd ranks' first one.
        other: Another reading of the same calls that fits as well, though it is less likely.
        suspect: Where ``odd`` is empty: the member of a pair that broke a rhythm. That singles out
            nobody.
        survived: Calls after it that all members are known to have completed, at least; 0 where
            that is known of none.
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
    item: str = ""
    noticed: int | None = None
    telling: tuple[Call, Call] | None = None
    order: tuple[int, int] | None = None
    other: Edit | None = None
    suspect: tuple[int, ...] = ()
    survived: int = 0

    @property
    def first(self) -> Edit:
        """The first edit."""
        return self.edits[0]

    @property
    def skipped(self) -> bool:
        """Whether the odd ranks left a call out and went on."""
        return self.first.put == 0 < self.first.left

    @property
    def inserted(self) -> bool:
        """Whether the odd ranks put a call in that the others do not have."""
        return self.first.left == 0 < self.first.put

    @property
    def replaced(self) -> bool:
        """Whether the odd ranks posted something else in place of a call."""
        return self.first.put > 0 and self.first.left > 0

    @property
    def reason(self) -> str | None:
        """Why the odd side is held to be odd, where that is a conclusion; None for a majority."""
        reason = _REASONS.get(self.basis)
        if reason is not None and self.suspect:
            reason = reason.format(suspect=ranks_text(self.suspect))
        if self.basis == "same kind" and self.comm.part:
            return f"{reason}; {same_part(self.comm)}"
        return reason

    @property
    def certain(self) -> bool:
        """Whether the records alone say who is odd and since when."""
        concluded = (
            self.basis == "same kind"
            or self.inferred
            or self.other is not None
            or self.telling is not None
        )
        return bool(self.odd) and self.exact and not concluded

    @property
    def inferred(self) -> bool:
        """Whether no call differs by itself, and where they come from is all that tells."""
        return bool(self.item) and self.noticed is None

    @property
    def surplus(self) -> int:
        """Calls the odd ranks have more (positive) or fewer, as far as both go."""
        return sum(edit.put - edit.left for edit in self.edits)
