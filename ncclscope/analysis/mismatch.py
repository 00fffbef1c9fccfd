"""What the analyzers of mismatched parameters have in common."""

from __future__ import annotations

from collections.abc import Iterable

from ncclscope.analysis.case import Case
from ncclscope.analysis.difference import Difference
from ncclscope.analysis.findings import from_difference, subject
from ncclscope.analysis.wording import call_text, comm_text, ranks_text, sizes_text
from ncclscope.model import Call, Finding
from ncclscope.signature import CREATION_OPS, VECTOR_OPS

__all__ = ["ParameterMismatch", "differing_parameter"]


def differing_parameter(odd: Call, peer: Call) -> str:
    """Returns in what two calls with the same number differ first: op, dtype, redop, ..."""
    if odd.op != peer.op:
        return "op"
    if (odd.replay is None) != (peer.replay is None):
        return "captured"
    for parameter in ("captured", "dtype", "redop", "root"):
        if getattr(odd, parameter) != getattr(peer, parameter):
            # Another group is another call: nothing of it has the size or type of a tensor.
            return "op" if odd.op in CREATION_OPS else parameter
    if odd.op in CREATION_OPS:
        return "op"
    return "split" if odd.op in VECTOR_OPS or odd.op == "all_to_all" else "size"


class ParameterMismatch:
    """Members of a communicator posted the same call with different parameters."""

    name = ""
    parameter = ""

    def analyze(self, case: Case) -> Iterable[Finding]:
        """Yields one finding for each difference that is one of this parameter."""
        for difference in case.differences:
            if case.is_half_of_a_swap(difference) or not self._concerns(difference):
                continue
            if case.other_graph(difference) is not None:
                continue  # whatever the calls differ in: see CaptureMismatch
            yield from_difference(
                case,
                difference,
                kind=self.name,
                analyzer=self.name,
                summary=self._summary(case, difference),
                extent=1,
            )

    def _concerns(self, difference: Difference) -> bool:
        if difference.inferred or (difference.odd and not difference.replaced):
            return False
        found = differing_parameter(difference.odd_call, difference.peer_call)
        return found == self.parameter

    def _summary(self, case: Case, difference: Difference) -> str:
        where = f"call {difference.seq} on {comm_text(difference.comm)}"
        if not difference.odd:
            return (
                f"At {where} {ranks_text(difference.peers)} posted different calls, "
                f"{self._text(difference.odd_call)} and {self._text(difference.peer_call)}; "
                f"the records do not tell which is odd."
            )
        return (
            f"{subject(case, difference)} posted {self._text(difference.odd_call)} as {where}; "
            f"{ranks_text(difference.peers)} posted {self._text(difference.peer_call)}."
        )

    def _text(self, call: Call) -> str:
        """A call in words, with the parameter in question where they leave it out."""
        if self.parameter == "split" and call.sizes is not None:
            return f"{call_text(call)} with sizes {sizes_text(call.sizes)}"
        if self.parameter == "captured":
            return f"{call_text(call)}, {'captured' if call.captured else 'not captured'}"
        return call_text(call)
