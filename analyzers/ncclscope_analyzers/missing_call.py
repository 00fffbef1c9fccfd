"""A call that was skipped."""

from __future__ import annotations

from collections.abc import Iterable

from ncclscope.analysis.case import Case
from ncclscope.analysis.findings import contrast, from_difference, subject
from ncclscope.analysis.sequences.difference import Difference
from ncclscope.analysis.wording import call_text, comm_text, plural, ranks_text, sentence, verb
from ncclscope.model import Finding

__all__ = ["MissingCall"]


class MissingCall:
    """One rank skipped a call that its peers posted, and went on."""

    name = "missing_call"

    def analyze(self, case: Case) -> Iterable[Finding]:
        """Yield a finding for each difference that begins with a deleted call."""
        for difference in case.described:
            concluded = difference.inferred or (difference.suspect and not difference.replaced)
            if concluded and not difference.odd:
                yield self._either(case, difference)
            if not difference.odd or not difference.skipped:
                continue
            count = difference.first.deleted
            proof = (
                f"after skipping {plural(count, 'call')}, "
                f"{plural(difference.first.matched, 'call')} "
                f"{verb(range(difference.first.matched), 'agree')} again"
            )
            habit = difference.first.matched == 0
            yield from_difference(
                case,
                difference,
                kind=self.name,
                analyzer=self.name,
                summary=_without(case, difference)
                if difference.comm.creates_groups
                else (
                    f"{subject(case, difference)} skipped {plural(count, 'call')} on "
                    f"{comm_text(difference.comm)} and went on: {contrast(difference)}."
                ),
                extent=count,
                evidence=() if habit else (proof,),
                inferred=(
                    ("a skip, since the diverging call followed the missing one each time before",)
                    if habit
                    else ()
                ),
            )

    def _either(self, case: Case, difference: Difference) -> Finding:
        """Describe a pair in which one side skipped calls or the other posted extra ones."""
        return from_difference(
            case,
            difference,
            kind=self.name,
            analyzer=self.name,
            summary=(
                f"{sentence(ranks_text(difference.peers))} are "
                f"{plural(abs(difference.surplus), 'call')} apart on {comm_text(difference.comm)} "
                f"since call {difference.seq}, {call_text(difference.peer_call)}: one side skipped "
                f"calls or the other posted extra ones; the records do not show which."
            ),
            extent=max(difference.first.deleted, difference.first.inserted),
        )


def _without(case: Case, difference: Difference) -> str:
    """Say that a rank did not create a group. The rank may have created the next group instead."""
    return (
        f"{subject(case, difference)} came to {call_text(difference.odd_call)} without "
        f"{call_text(difference.peer_call)}, which {ranks_text(difference.peers)} created as call "
        f"{difference.seq} on {comm_text(difference.comm)}: it skipped that call, or would have "
        f"posted it later."
    )
