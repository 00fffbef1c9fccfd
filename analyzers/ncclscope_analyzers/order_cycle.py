"""Two communicators entered in opposite order."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from ncclscope.analysis.case import Case
from ncclscope.analysis.wording import call_text, comm_text, rank_text, ranks_text, sentence
from ncclscope.model import Finding

__all__ = ["OrderCycle"]


class OrderCycle:
    """Ranks wait for each other in a circle, each in another communicator's call."""

    name = "order_cycle"

    def analyze(self, case: Case) -> Iterable[Finding]:
        """Yields one finding for the shortest circle, where all calls themselves agree."""
        cycle = case.waits.cycle
        if not cycle or case.differences or not case.stalled:
            return
        stands = case.waits.stands
        edges = [
            f"rank {number} stands in #{stands[number].call.seq} on "
            f"{comm_text(stands[number].comm)}, {call_text(stands[number].call)}, and waits for "
            f"rank {cycle[(place + 1) % len(cycle)]}"
            for place, number in enumerate(cycle)
        ]
        odd = self._odd(case, cycle)
        first = stands[odd[0] if odd else cycle[0]]
        peer = next(
            (stands[number] for number in cycle if stands[number].comm.key != first.comm.key),
            first,
        )
        who = sentence(rank_text(case.run, odd[0])) if odd else sentence(ranks_text(cycle))
        yield Finding(
            kind=self.name,
            summary=(
                f"{who} entered {comm_text(first.comm)} before {comm_text(peer.comm)} and "
                f"{ranks_text(set(cycle) - set(odd)) if odd else 'others'} the other way round: "
                f"each waits for the next in a circle of {len(cycle)}."
            ),
            comm=first.comm,
            seq=first.call.seq,
            diverging_ranks=odd,
            candidate_ranks=() if odd else tuple(sorted(cycle)),
            odd=first.call,
            peers=peer.call,
            confidence="certain" if odd else "ambiguous",
            analyzer=self.name,
            evidence=tuple(edges),
            extent=len(cycle),
        )

    def _odd(self, case: Case, cycle: tuple[int, ...]) -> tuple[int, ...]:
        """The one rank of the circle that stands where most ranks of its kind do not.

        In a circle of two nothing in the circle itself says who is odd; but all ranks that
        play the same part stand in the same kind of communicator, and the odd one does not.
        """
        kinds = {number: stand.comm.kind for number, stand in case.waits.stands.items()}
        usual = Counter(kinds.values()).most_common(2)
        if len(usual) < 2 or usual[0][1] == usual[1][1]:
            return ()
        odd = tuple(number for number in cycle if kinds[number] != usual[0][0])
        return odd if len(odd) == 1 else ()
