"""A call that was skipped."""

from __future__ import annotations

from collections.abc import Iterable

from ncclscope.engine.case import Case
from ncclscope.engine.findings import contrast, from_difference, graphs_text, subject
from ncclscope.engine.sequences.difference import Difference
from ncclscope.model import Call, Finding
from ncclscope.wording.names import (
    call_text,
    comm_text,
    plural,
    ranks_text,
    sentence,
    site_text,
    verb,
)


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
            habit = _is_by_habit(difference)
            yield from_difference(
                case,
                difference,
                kind=self.name,
                analyzer=self.name,
                summary=_summary(case, difference),
                extent=count,
                evidence=() if habit else (proof,),
                inferred=(_why(difference),) if habit else (),
            )

    def _either(self, case: Case, difference: Difference) -> Finding:
        """Describe a pair in which one side skipped calls or the other posted extra ones."""
        how = (
            f"are {plural(abs(difference.surplus), 'call')} apart on {comm_text(difference.comm)} "
            f"since call {difference.seq}, {call_text(difference.peer_call)}: one side skipped "
            f"calls or the other posted extra ones"
        )
        if difference.suspect and _is_by_habit(difference):
            how = (
                f"are in different calls as call {difference.seq} on {comm_text(difference.comm)}, "
                f"{_placed(difference.odd_call)} and {_placed(difference.peer_call)}: one side "
                f"skipped calls, posted extra ones, or has them in the opposite order"
            )
        return from_difference(
            case,
            difference,
            kind=self.name,
            analyzer=self.name,
            summary=(
                f"{sentence(ranks_text(difference.peers))} {how}; the records do not show which."
            ),
            extent=max(difference.first.deleted, difference.first.inserted),
        )


def _summary(case: Case, difference: Difference) -> str:
    if difference.comm.creates_groups:
        return _without(case, difference)
    count = plural(difference.first.deleted, "call")
    rounds = difference.rounds
    if rounds is not None and _is_by_habit(difference) and (rounds.left or rounds.rounds > 1):
        return _left_out(case, difference)
    if _is_by_habit(difference) and not graphs_text(difference):
        who = "it" if len(difference.odd) == 1 else "they"
        them = "that call" if difference.first.deleted == 1 else f"{count} from that one on"
        return (
            f"{subject(case, difference)} came to {_placed(difference.odd_call)} as call "
            f"{difference.seq} on {comm_text(difference.comm)}, {ranks_text(difference.peers)} to "
            f"{_placed(difference.peer_call)}: {who} skipped {them}, or would have posted it "
            f"later, in the opposite order."
        )
    return (
        f"{subject(case, difference)} skipped {count} on {comm_text(difference.comm)} and went "
        f"on: {contrast(difference)}.{_which(difference)}"
    )


def _left_out(case: Case, difference: Difference) -> str:
    """Say that a rank made one round fewer, and what it came to."""
    assert difference.rounds is not None
    count = plural(difference.first.deleted, "call")
    came = "left the loop and came to" if difference.rounds.left else "came to"
    equal = difference.rounds.rounds
    what = f"one round of {count}" if equal > 1 else count
    return (
        f"{subject(case, difference)} left out {what} on {comm_text(difference.comm)}: it {came} "
        f"{_placed(difference.odd_call)} as call {difference.seq}, "
        f"{ranks_text(difference.peers)} to {_placed(difference.peer_call)}.{_which(difference)}"
    )


def _why(difference: Difference) -> str:
    """Say what a skip is inferred from, where no call after it shows it."""
    if difference.rounds is not None and difference.rounds.left:
        op = difference.odd_call.op
        return f"the end of a loop: a {op} that one rank alone posts within it looks the same"
    return "the usual order, in which the missing call came first each time before"


def _which(difference: Difference) -> str:
    """Say that the place of the calls left out is not known, where those before are equal."""
    if difference.seqs is None:
        return ""
    first, last = difference.seqs
    if difference.rounds is None:
        return (
            f" Calls {first} to {last} are equal in all that is recorded: which of them it left "
            f"out, the records do not show."
        )
    return (
        f" Calls {first} to {last} are {plural(difference.rounds.rounds, 'equal round')}: which of "
        f"them it left out, the records do not show."
    )


def _is_by_habit(difference: Difference) -> bool:
    """Return whether no call after the difference shows a skip, only what was usual before.

    The diverging rank may still post the missing call, so that both orders are possible.
    """
    return difference.first.matched == 0


def _placed(call: Call) -> str:
    return f"{call_text(call)}{site_text(call)}"


def _without(case: Case, difference: Difference) -> str:
    """Say that a rank did not create a group. The rank may have created the next group instead."""
    return (
        f"{subject(case, difference)} came to {call_text(difference.odd_call)} without "
        f"{call_text(difference.peer_call)}, which {ranks_text(difference.peers)} created as call "
        f"{difference.seq} on {comm_text(difference.comm)}: it skipped that call, or would have "
        f"posted it later."
    )
