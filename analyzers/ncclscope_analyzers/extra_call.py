"""A call that nobody else made."""

from __future__ import annotations

from collections.abc import Iterable

from ncclscope.analysis.case import Case
from ncclscope.analysis.findings import contrast, from_difference, subject
from ncclscope.analysis.sequences.difference import Difference
from ncclscope.analysis.sequences.habit import habit_of, usual_next
from ncclscope.analysis.wording import comm_text, plural, ranks_text, verb
from ncclscope.model import Finding

__all__ = ["ExtraCall"]


class ExtraCall:
    """One rank posted a call that its peers do not have, and went on."""

    name = "extra_call"

    def analyze(self, case: Case) -> Iterable[Finding]:
        """Yield a finding for each difference that begins with an inserted call."""
        for difference in case.described:
            if not difference.odd or not difference.inserted:
                continue
            count = difference.first.inserted
            yield from_difference(
                case,
                difference,
                kind=self.name,
                analyzer=self.name,
                summary=(
                    f"{subject(case, difference)} posted {plural(count, 'call')} on "
                    f"{comm_text(difference.comm)} that {ranks_text(difference.peers)} did not: "
                    f"{contrast(difference)}."
                ),
                extent=count,
                inferred=_early(case, difference),
                evidence=(
                    f"without {'it' if count == 1 else 'them'}, "
                    f"{plural(difference.first.matched, 'call')} "
                    f"{verb(range(difference.first.matched), 'agree')} again",
                ),
            )


def _early(case: Case, difference: Difference) -> tuple[str, ...]:
    """Say if the call is the one that its peers have posted next each time before."""
    first, log = difference.first, case.logs(difference.comm.key).get(difference.peers[0])
    own = habit_of(difference.odd_call), difference.odd_call.site
    if first.inserted > 1 or log is None or log.calls != difference.seq + first.matched - 1:
        return ()
    if usual_next(log, log.calls) != own:
        return ()
    return (
        f"{ranks_text(difference.peers)} posted such a call next each time before: "
        f"{ranks_text(difference.odd)} may have posted it too early, in the opposite order",
    )
