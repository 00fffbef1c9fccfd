"""One difference between the sequences of a communicator's members."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from ncclscope.engine.repairs.rounds import LeftOut
from ncclscope.engine.sequences.align import Edit
from ncclscope.model import Call
from ncclscope.wording.differences import Contrast


@dataclass(frozen=True, kw_only=True)
class Difference(Contrast):
    """One difference between the sequences of a communicator's members.

    Attributes:
        edits: The edits that turn the peers' sequence into the diverging one, from ``seq`` on.
        aligned: Pairs of a peer's and a diverging rank's calls around ``seq``.
        other: Another, less likely edit that explains the same calls.
        rival: Another edit of no more calls that explains them as well.
        rounds: The calls that the diverging ranks left out of their rounds; None where they are
            not known to.
        outvoted: Whether nothing but a vote of two ranks against one shows which side diverged.
    """

    edits: tuple[Edit, ...]
    aligned: tuple[tuple[Call | None, Call | None], ...]
    other: Edit | None = None
    rival: Edit | None = None
    rounds: LeftOut | None = None
    outvoted: bool = False

    def undecided(self, ranks: Sequence[int], suspect: tuple[int, ...] = ()) -> Difference:
        """Return the difference without a diverging side.

        Args:
            ranks: All candidates.
            suspect: Those that broke a pattern.
        """
        return replace(self, odd=(), peers=tuple(sorted(ranks)), suspect=suspect)

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
    def certain(self) -> bool:
        """Whether the records alone show which ranks diverged and at which call."""
        concluded = (
            self.basis in ("same_kind", "new_call")
            or self.inferred
            or self.outvoted
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
