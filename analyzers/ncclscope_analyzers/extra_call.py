"""A call that nobody else made."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from ncclscope.engine.case import Case
from ncclscope.engine.findings import from_difference
from ncclscope.engine.mismatch import differing_parameter
from ncclscope.engine.sequences.difference import Difference
from ncclscope.engine.sequences.habit import followers, habit_of
from ncclscope.model import Finding
from ncclscope.wording import skips as say
from ncclscope.wording.differences import contrast

_NEAR = 8
"""Calls within which another order explains a call that one rank posted earlier."""


class ExtraCall:
    """One rank posted a call that its peers do not have, and went on."""

    name = "extra_call"

    def analyze(self, case: Case) -> Iterable[Finding]:
        """Yield a finding for each difference that begins with an inserted call."""
        for difference in case.described:
            if not difference.odd or not difference.inserted:
                continue
            first, later = difference.first, _later(case, difference)
            text = contrast(difference, difference.surplus, len(difference.edits))
            found = from_difference(
                case,
                difference,
                kind=self.name,
                summary=say.extra(case.run, difference, first.inserted, text),
                extent=first.inserted,
                inferred=(say.too_early(difference, later),) if later else _early(case, difference),
                evidence=(say.agree_again(first.inserted, first.matched, extra=True),),
            )
            yield (
                _reordered(case, difference, found, later) if len({*later.values()}) > 1 else found
            )


def _later(case: Case, difference: Difference) -> dict[int, int]:
    """Return where peers posted a call like the extra one, after those that agree again."""
    first, own, seq = difference.first, difference.odd_call, difference.seq
    if first.inserted > 1 or first.matched > _NEAR or len(difference.edits) > 1:
        return {}
    start, found = seq + first.matched, {}
    for number, log in case.logs(difference.comm.key).items():
        after = log.span(max(start, log.first), min(start + _NEAR, log.calls + 1))
        same = (one.seq for one in after if (one.signature, one.site) == (own.signature, own.site))
        if number not in difference.odd and (place := next(same, None)) is not None:
            found[number] = place
    return found


def _reordered(
    case: Case, difference: Difference, found: Finding, later: dict[int, int]
) -> Finding:
    """Describe a call that each rank posted at another place, as from a thread of its own."""
    own, ranks = difference.odd_call, tuple(case.logs(difference.comm.key))
    places = dict.fromkeys(difference.odd, difference.seq) | later
    return replace(
        found.undecided(ranks),
        kind=f"{differing_parameter(own, difference.peer_call)}_mismatch",
        summary=say.other_places(difference, places),
        inferred=(say.SHARED_BY_THREADS,),
    )


def _early(case: Case, difference: Difference) -> tuple[str, ...]:
    """Say if its peers, who have come no further, may post the call next."""
    first, log = difference.first, case.logs(difference.comm.key).get(difference.peers[0])
    if log is None or log.calls != difference.seq + first.matched - 1:
        return ()
    after = followers(log, log.calls)
    own = habit_of(difference.odd_call), difference.odd_call.site
    if own not in after and (after or first.matched > first.inserted):
        return ()
    always = {*after} == {own} and len(after) > 1
    return (say.may_be_next(difference, usual=own in after, always=always),)
