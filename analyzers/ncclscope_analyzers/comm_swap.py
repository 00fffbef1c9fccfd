"""Calls that went to another communicator."""

from __future__ import annotations

from collections.abc import Iterable

from ncclscope.analysis.case import Case
from ncclscope.analysis.findings import from_difference, subject
from ncclscope.analysis.wording import call_text, comm_text, plural, ranks_text
from ncclscope.model import Finding

__all__ = ["CommSwap"]


class CommSwap:
    """One rank posted calls on one communicator that its peers posted on another."""

    name = "comm_swap"

    def analyze(self, case: Case) -> Iterable[Finding]:
        """Yields a finding where calls are too many here and as many too few there."""
        for swap in case.swaps:
            more, count = swap.more, swap.count
            here, there = comm_text(more.comm), comm_text(swap.fewer)
            missed = f" instead of {call_text(swap.missed)}" if swap.missed else ""
            yield from_difference(
                case,
                more,
                kind=self.name,
                analyzer=self.name,
                summary=(
                    f"{subject(case, more)} made {plural(count, 'call')} on {here} that belong on "
                    f"{there}: call {more.seq} on {more.comm.label or 'it'} is "
                    f"{call_text(more.odd_call)} there, {call_text(more.peer_call)} on "
                    f"{ranks_text(more.peers)}."
                ),
                extent=count,
                evidence=(
                    f"{count} more on {here}, {count} fewer on {there}{missed}, "
                    f"counted in order and not as totals",
                ),
            )
