"""A call that nobody else made."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from ncclscope.engine.case import Case
from ncclscope.engine.findings import contrast, from_difference, subject
from ncclscope.engine.mismatch import differing_parameter
from ncclscope.engine.sequences.difference import Difference
from ncclscope.engine.sequences.habit import followers, habit_of
from ncclscope.model import Finding
from ncclscope.wording.names import (
    call_text,
    comm_text,
    plural,
    ranks_text,
    site_text,
    verb,
)

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
            count = difference.first.inserted
            later = _later(case, difference)
            found = from_difference(
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
                inferred=_too_early(difference, later) or _early(case, difference),
                evidence=(
                    f"without {'it' if count == 1 else 'them'}, "
                    f"{plural(difference.first.matched, 'call')} "
                    f"{verb(range(difference.first.matched), 'agree')} again",
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


def _too_early(difference: Difference, later: dict[int, int]) -> tuple[str, ...]:
    return tuple(
        f"{ranks_text([*later])} posted such a call as #{place}: {ranks_text(difference.odd)} may "
        f"have posted it too early, in the opposite order"
        for place in list(later.values())[:1]
    )


def _reordered(
    case: Case, difference: Difference, found: Finding, later: dict[int, int]
) -> Finding:
    """Describe a call that each rank posted at another place, as from a thread of its own."""
    own, ranks = difference.odd_call, tuple(case.logs(difference.comm.key))
    places = dict.fromkeys(difference.odd, difference.seq) | later
    where = ", ".join(f"as #{place} on rank {rank}" for rank, place in sorted(places.items()))
    return replace(
        found.undecided(ranks),
        kind=f"{differing_parameter(own, difference.peer_call)}_mismatch",
        summary=(
            f"The members of {comm_text(difference.comm)} posted the same calls in different "
            f"orders from call {difference.seq} on: {call_text(own)}{site_text(own)} comes "
            f"{where}; the records do not show which order diverged."
        ),
        inferred=("threads that share a group without a common order leave such records",),
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
    each = "each time before" if {*after} == {own} and len(after) > 1 else "before"
    past = f"posted such a call next {each}" if own in after else "may post such a call next"
    return (
        f"{ranks_text(difference.peers)} {past}: {ranks_text(difference.odd)} may have posted it "
        f"too early, in the opposite order, or skipped calls before it",
    )
