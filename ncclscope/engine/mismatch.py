"""The common base of analyzers for mismatched parameters."""

from __future__ import annotations

from collections.abc import Iterable

from ncclscope.engine.case import Case
from ncclscope.engine.findings import from_difference, subject
from ncclscope.engine.repairs.rounds import may_have_left_out
from ncclscope.engine.sequences.difference import Difference
from ncclscope.engine.sequences.habit import are_variants
from ncclscope.model import Call, Finding
from ncclscope.model.signature import CREATION_OPS, VECTOR_OPS
from ncclscope.wording.names import (
    call_text,
    comm_text,
    plural,
    ranks_text,
    sentence,
    sizes_text,
    verb,
)

PARAMETERS = (
    "op_mismatch",
    "size_mismatch",
    "split_mismatch",
    "dtype_mismatch",
    "redop_mismatch",
    "root_mismatch",
)
"""Kinds of findings in which one call replaces another."""


_ONE_CALL = (
    "which kind it is: the two calls come from different lines, so that one side may have skipped "
    "or repeated a call"
)


def differing_parameter(odd: Call, peer: Call) -> str:
    """Return the first parameter in which two calls of one number differ: op, dtype, redop, ..."""
    if odd.op != peer.op:
        # A gather with parts of one size is recorded without a list of sizes.
        return "split" if are_variants(odd, peer) else "op"
    if (odd.replay is None) != (peer.replay is None):
        return "captured"
    for parameter in ("captured", "dtype", "redop", "root"):
        if parameter == "redop" and None in (odd.redop, peer.redop):
            continue  # a reduction that was not recorded is no difference
        if getattr(odd, parameter) != getattr(peer, parameter):
            # Another group is another call: it has no tensor, and so no size or type.
            return "op" if odd.op in CREATION_OPS else parameter
    if odd.op in CREATION_OPS:
        return "op"
    return "split" if odd.op in VECTOR_OPS or odd.op == "all_to_all" else "size"


class ParameterMismatch:
    """Members of a communicator posted the same call with different parameters."""

    name = ""
    parameter = ""

    def analyze(self, case: Case) -> Iterable[Finding]:
        """Yield one finding for each difference in this parameter."""
        for difference in case.described:
            if self._concerns(difference):
                yield self._mismatch(case, difference)

    def _mismatch(self, case: Case, difference: Difference) -> Finding:
        reordered = difference.order is not None
        return from_difference(
            case,
            difference,
            kind=self.name,
            analyzer=self.name,
            summary=(
                self._opposite_order(case, difference)
                if reordered
                else self._summary(case, difference)
            ),
            extent=difference.first.inserted if reordered else 1,
            evidence=(_blocks_text(difference),) if reordered else (),
            inferred=(_ONE_CALL,) if self._may_be_a_skip(case, difference) else (),
        )

    def _opposite_order(self, case: Case, difference: Difference) -> str:
        first, then = self._text(difference.peer_call), self._text(difference.odd_call)
        if difference.order != (1, 1):
            first, then = f"the calls from {first} on", f"those from {then} on"
        where = f"{comm_text(difference.comm)}, from call {difference.seq} on"
        if not difference.odd:
            return (
                f"{sentence(ranks_text(difference.peers))} posted {first} and {then} in opposite "
                f"orders on {where}; the records do not show which order diverged."
            )
        return (
            f"{subject(case, difference)} posted {first} and {then} in the opposite order on "
            f"{where}: {self._text(difference.odd_call)} comes first there, "
            f"{self._text(difference.peer_call)} on {ranks_text(difference.peers)}."
        )

    def _concerns(self, difference: Difference) -> bool:
        if difference.overwritten:
            return False
        if difference.inferred or (
            (difference.odd or difference.suspect) and not difference.replaced
        ):
            return False
        calls = difference.differing_calls or (difference.odd_call, difference.peer_call)
        return differing_parameter(*calls) == self.parameter

    def _is_other_line(self, difference: Difference) -> bool:
        """Return whether two calls of one operation come from lines of their own."""
        same = difference.odd_call.op == difference.peer_call.op not in CREATION_OPS
        return same and self.parameter != "captured" and difference.lines is not None

    def _may_be_a_skip(self, case: Case, difference: Difference) -> bool:
        """Return whether calls left out before another one account for the difference as well."""
        if self._is_other_line(difference):
            return True
        if difference.lines is None or difference.odd_call.op in CREATION_OPS:
            return False
        log = case.logs(difference.comm.key)[difference.peers[0]]
        return may_have_left_out(log, difference.seq, difference.odd_call)

    def _summary(self, case: Case, difference: Difference) -> str:
        where = f"call {difference.seq} on {comm_text(difference.comm)}"
        if not difference.decided and difference.noticed is not None:
            return (
                f"{sentence(ranks_text(difference.peers))} came to {where} from different lines, "
                f"{difference.odd_call.site} and {difference.peer_call.site}, and posted different "
                f"calls from call {difference.noticed} on; the records do not show which side "
                f"diverged."
            )
        if difference.differing_calls is not None:
            odd, peer = difference.differing_calls
            return (
                f"{subject(case, difference)} came to {where} from {difference.odd_call.site}, "
                f"{ranks_text(difference.peers)} from {difference.peer_call.site}: another branch, "
                f"in which call {difference.noticed} is {self._text(odd)}, and {self._text(peer)} "
                f"on {ranks_text(difference.peers)}."
            )
        if not difference.odd:
            return (
                f"At {where} {ranks_text(difference.peers)} posted different calls, "
                f"{self._text(difference.odd_call)} and {self._text(difference.peer_call)}; "
                f"the records do not show which side diverged."
            )
        own, theirs = self._text(difference.odd_call), self._text(difference.peer_call)
        others = ranks_text(difference.peers)
        if difference.lines is not None and self._is_other_line(difference):
            own, theirs = f"{own} at {difference.lines[0]}", f"{theirs} at {difference.lines[1]}"
            others += ", from another line,"
        return f"{subject(case, difference)} posted {own} as {where}; {others} posted {theirs}."

    def _text(self, call: Call) -> str:
        """Return a call's text, with the parameter in question where that is omitted."""
        if self.parameter == "split" and call.sizes is not None:
            return f"{call_text(call)} with sizes {sizes_text(call.sizes)}"
        if self.parameter == "captured":
            return f"{call_text(call)}, {'captured' if call.captured else 'not captured'}"
        return call_text(call)


def _blocks_text(difference: Difference) -> str:
    """Say which two blocks of calls are in opposite order."""
    theirs, own = difference.order or (0, 0)
    seq, matched = difference.seq, difference.first.matched
    after = "no calls follow"
    if matched:
        after = f"{plural(matched, 'call')} after that {verb(range(matched), 'agree')}"
    return (
        f"#{seq} to #{seq + theirs + own - 1}: the same {plural(theirs + own, 'call')}, but the "
        f"first {theirs} of one side are the last {theirs} of the other; {after}"
    )
