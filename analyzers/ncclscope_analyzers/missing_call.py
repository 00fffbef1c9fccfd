"""A call that was skipped."""

from __future__ import annotations

from collections.abc import Iterable

from ncclscope.engine.case import Case
from ncclscope.engine.findings import from_difference
from ncclscope.engine.sequences.difference import Difference
from ncclscope.model import Finding
from ncclscope.wording import skips as say
from ncclscope.wording.differences import contrast, graphs_text


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
            first, rounds = difference.first, difference.rounds
            habit, left = _is_by_habit(difference), rounds is not None and rounds.left
            proof = say.agree_again(first.deleted, first.matched, extra=False)
            why = say.why_skipped(difference.odd_call.op, left=left)
            yield from_difference(
                case,
                difference,
                kind=self.name,
                summary=_summary(case, difference),
                extent=first.deleted,
                evidence=() if habit else (proof,),
                inferred=(why,) if habit else (),
            )

    def _either(self, case: Case, difference: Difference) -> Finding:
        """Describe a pair in which one side skipped calls or the other posted extra ones."""
        return from_difference(
            case,
            difference,
            kind=self.name,
            summary=say.either(
                difference,
                abs(difference.surplus),
                by_habit=bool(difference.suspect) and _is_by_habit(difference),
            ),
            extent=max(difference.first.deleted, difference.first.inserted),
        )


def _summary(case: Case, difference: Difference) -> str:
    run, count, rounds = case.run, difference.first.deleted, difference.rounds
    if difference.comm.creates_groups:
        return say.without_group(run, difference)
    which = say.which_of_equal(difference.seqs, 0 if rounds is None else rounds.rounds)
    if not _is_by_habit(difference) or graphs_text(difference):
        text = contrast(difference, difference.surplus, len(difference.edits))
        return say.skipped(run, difference, count, text) + which
    if rounds is not None and (rounds.left or rounds.rounds > 1):
        equal, left = rounds.rounds, rounds.left
        return say.round_fewer(run, difference, count, equal=equal, left=left) + which
    return say.came_to_later(run, difference, count)


def _is_by_habit(difference: Difference) -> bool:
    """Return whether no call after the difference shows a skip, only what was usual before.

    The diverging rank may still post the missing call, so that both orders are possible.
    """
    return difference.first.matched == 0
