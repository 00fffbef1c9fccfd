"""A call that nobody else made."""

from __future__ import annotations

from collections.abc import Iterable

from ncclscope.analysis.case import Case
from ncclscope.analysis.findings import contrast, from_difference, subject
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
                evidence=(
                    f"without {'it' if count == 1 else 'them'}, "
                    f"{plural(difference.first.matched, 'call')} "
                    f"{verb(range(difference.first.matched), 'agree')} again",
                ),
            )
