"""The common base of analyzers for mismatched parameters."""

from __future__ import annotations

from collections.abc import Iterable

from ncclscope.engine.case import Case
from ncclscope.engine.findings import from_difference
from ncclscope.engine.repairs.rounds import may_have_left_out
from ncclscope.engine.sequences.difference import Difference
from ncclscope.engine.sequences.habit import are_variants
from ncclscope.model import Call, Finding
from ncclscope.model.signature import CREATION_OPS, VECTOR_OPS
from ncclscope.wording.mismatches import Unlike, mismatch, opposite_order
from ncclscope.wording.names import plural

PARAMETERS = (
    "op_mismatch",
    "size_mismatch",
    "split_mismatch",
    "dtype_mismatch",
    "redop_mismatch",
    "root_mismatch",
)
"""Kinds of findings in which one call replaces another."""


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
        first, reordered = difference.first, difference.order is not None
        return from_difference(
            case,
            difference,
            kind=self.name,
            summary=(
                opposite_order(case.run, difference, self.parameter)
                if reordered
                else self._summary(case, difference)
            ),
            extent=first.inserted if reordered else 1,
            evidence=(_blocks(difference),) if reordered else (),
            inferred=(Unlike.ONE_CALL.of(),) if self._may_be_a_skip(case, difference) else (),
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
        lines = difference.lines if self._is_other_line(difference) else None
        return mismatch(case.run, difference, self.parameter, lines)


def _blocks(difference: Difference) -> str:
    """Return which two blocks of calls are in opposite order, and how many calls agree after."""
    (theirs, own), matched = difference.order or (0, 0), difference.first.matched
    after = Unlike.NO_CALLS.of()
    if matched:
        after = Unlike.AGREE.of(plural(matched, "call"), range(matched))
    return Unlike.BLOCKS.of(
        first=difference.seq,
        last=difference.seq + theirs + own - 1,
        calls=plural(theirs + own, "call"),
        theirs=theirs,
        after=after,
    )
