"""A call that was skipped."""

from __future__ import annotations

from collections.abc import Iterable

from ncclscope.engine.case import Case
from ncclscope.engine.findings import from_difference, newest_of_peers
from ncclscope.engine.sequences.difference import Difference
from ncclscope.engine.sequences.replays import replays_left_out
from ncclscope.model import Finding
from ncclscope.wording.differences import contrast, graphs_text, subject
from ncclscope.wording.names import plural
from ncclscope.wording.skips import Skip


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
            count, matched = plural(first.deleted, "call"), plural(first.matched, "call")
            proof = Skip.AFTER.of(count, matched, range(first.matched))
            why = Skip.END_OF_LOOP.of(difference.odd_call.op) if left else Skip.BY_HABIT.of()
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
        by_habit = difference.suspect and _is_by_habit(difference)
        code = Skip.EITHER_BY_HABIT if by_habit else Skip.EITHER
        return from_difference(
            case,
            difference,
            kind=self.name,
            summary=code.of(one=difference, off=plural(abs(difference.surplus), "call")),
            extent=max(difference.first.deleted, difference.first.inserted),
        )


def _summary(case: Case, difference: Difference) -> str:
    who, rounds = subject(case.run, difference), difference.rounds
    count = _count(case, difference)
    if difference.comm.creates_groups:
        return Skip.WITHOUT_GROUP.of(who=who, one=difference)
    if not _is_by_habit(difference) or graphs_text(difference):
        text = contrast(difference, difference.surplus, len(difference.edits))
        which = _which(case, difference)
        return Skip.SKIPPED.of(who=who, count=count, one=difference, contrast=text, which=which)
    if rounds is not None and (rounds.left or rounds.rounds > 1):
        what = Skip.ONE_ROUND.of(count) if rounds.rounds > 1 else count
        came = Skip.LEFT_LOOP if rounds.left else Skip.CAME
        return Skip.ROUND.of(
            who=who, what=what, came=came, one=difference, which=_which(case, difference)
        )
    came = Skip.CAME_AGAIN if difference.first.deleted > 1 else Skip.CAME_LATER
    return came.of(who=who, one=difference, count=count)


def _count(case: Case, difference: Difference) -> str:
    """Say how many calls were left out, and of how many replays they are the whole."""
    calls = plural(difference.first.deleted, "call")
    replays = replays_left_out(case, difference)
    if not replays:
        return calls
    return Skip.REPLAYS.of(
        replays=plural(replays, "replay"), call=difference.peer_call, calls=calls
    )


def _which(case: Case, difference: Difference) -> str:
    """Say that the place of the calls left out is not known, where those before are equal."""
    if difference.seqs is None:
        return ""
    first, last = difference.seqs
    if difference.rounds is None:
        return Skip.EQUAL.of(first, last)
    rounds = plural(difference.rounds.rounds, "equal round")
    if last > (known := newest_of_peers(case, difference)):
        return Skip.BEGUN_ROUNDS.of(first, known, rounds, difference.peers)
    return Skip.EQUAL_ROUNDS.of(first, last, rounds)


def _is_by_habit(difference: Difference) -> bool:
    """Return whether no call after the difference shows a skip, only what was usual before.

    The diverging rank may still post the missing call, so that both orders are possible.
    """
    return difference.first.matched == 0
