"""A call that was skipped."""

from __future__ import annotations

from collections.abc import Iterable

from ncclscope.analysis.case import Case
from ncclscope.analysis.findings import from_difference, subject
from ncclscope.analysis.wording import call_text, comm_text, plural, ranks_text
from ncclscope.model import Finding

__all__ = ["MissingCall"]


class MissingCall:
    """One rank skipped a call that its peers posted, and went on."""

    name = "missing_call"

    def analyze(self, case: Case) -> Iterable[Finding]:
        """Yields a finding for each difference that begins with a call left out."""
        for difference in case.differences:
            if not difference.odd or not difference.skipped:
                continue
            if case.is_half_of_a_swap(difference):
                continue  # the calls were made, elsewhere
            count = difference.first.left
            proof = (
                f"after leaving out {plural(count, 'call')}, "
                f"{plural(difference.first.met, 'call')} agree again"
            )
            habit = difference.first.met == 0
            yield from_difference(
                case,
                difference,
                kind=self.name,
                analyzer=self.name,
                summary=(
                    f"{subject(case, difference)} skipped {plural(count, 'call')} on "
                    f"{comm_text(difference.comm)} and went on: call {difference.seq}, "
                    f"{call_text(difference.peer_call)} on {ranks_text(difference.peers)}, "
                    f"is {call_text(difference.odd_call)} there."
                ),
                extent=count,
                evidence=() if habit else (proof,),
                inferred=(
                    (
                        "a skip, since the odd call is what followed the missing one each time "
                        "before",
                    )
                    if habit
                    else ()
                ),
            )
