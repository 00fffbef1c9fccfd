"""The same call, captured into a CUDA graph on some ranks only."""

from __future__ import annotations

from ncclscope.analysis.case import Case
from ncclscope.analysis.difference import Difference
from ncclscope.analysis.findings import subject
from ncclscope.analysis.mismatch import ParameterMismatch
from ncclscope.analysis.wording import call_text, comm_text, ranks_text

__all__ = ["CaptureMismatch"]


class CaptureMismatch(ParameterMismatch):
    """One rank captured a call into a CUDA graph that its peers carried out, or the reverse."""

    name = "capture_mismatch"
    parameter = "captured"

    def _summary(self, case: Case, difference: Difference) -> str:
        if not difference.odd:
            return super()._summary(case, difference)
        did, instead = ("captured", "carried it out")
        if not difference.odd_call.captured:
            did, instead = ("carried out", "captured it into a CUDA graph")
        return (
            f"{subject(case, difference)} {did} call {difference.seq} on "
            f"{comm_text(difference.comm)}, {call_text(difference.odd_call)}; "
            f"{ranks_text(difference.peers)} {instead}."
        )
