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
from ncclscope.wording.differences import contrast, subject
from ncclscope.wording.names import plural
from ncclscope.wording.skips import Skip

_NEAR = 8
"""Calls within which another order explains a call that one rank posted earlier."""

_OFTEN = 3
"""Times that other calls followed the peers' newest one, so that the extra one was not next."""


class ExtraCall:
    """One rank posted a call that its peers do not have, and went on."""

    name = "extra_call"

    def analyze(self, case: Case) -> Iterable[Finding]:
        """Yield a finding for each difference that begins with an inserted call."""
        for difference in case.described:
            if not difference.odd or not difference.inserted:
                continue
            first, later = difference.first, _later(case, difference)
            found = from_difference(
                case,
                difference,
                kind=self.name,
                summary=Skip.EXTRA.of(
                    who=subject(case.run, difference),
                    count=plural(first.inserted, "call"),
                    one=difference,
                    contrast=contrast(difference, difference.surplus, len(difference.edits)),
                ),
                extent=first.inserted,
                inferred=_too_early(case, difference, later),
                evidence=(
                    Skip.WITHOUT.of(
                        range(first.inserted), plural(first.matched, "call"), range(first.matched)
                    ),
                ),
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
    where = ", ".join(Skip.PLACE.of(place, rank) for rank, place in sorted(places.items()))
    return replace(
        found.undecided(ranks),
        kind=f"{differing_parameter(own, difference.peer_call)}_mismatch",
        summary=Skip.OTHER_PLACES.of(difference, where),
        inferred=(Skip.BY_THREADS.of(),),
    )


def _too_early(case: Case, difference: Difference, later: dict[int, int]) -> tuple[str, ...]:
    """Say if its peers posted the call later, or, having come no further, may post it next."""
    if later:
        return (Skip.TOO_EARLY.of(later, next(iter(later.values())), difference.odd),)
    first, log = difference.first, case.logs(difference.comm.key).get(difference.peers[0])
    if log is None or log.calls != difference.seq + first.matched - 1:
        return ()
    after = followers(log, log.calls)
    own = habit_of(difference.odd_call), difference.odd_call.site
    if own not in after and (len(after) >= _OFTEN or first.matched > first.inserted):
        return ()
    past = Skip.ALWAYS_NEXT if {*after} == {own} and len(after) > 1 else Skip.WAS_NEXT
    return (Skip.NEXT.of(one=difference, past=past if own in after else Skip.MAY_BE_NEXT),)
