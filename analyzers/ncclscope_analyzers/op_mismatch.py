"""Different operations under the same number."""

from __future__ import annotations

from ncclscope.engine.case import Case
from ncclscope.engine.findings import subject
from ncclscope.engine.mismatch import ParameterMismatch
from ncclscope.engine.sequences.difference import Difference
from ncclscope.wording.names import comm_text


class OpMismatch(ParameterMismatch):
    """One rank posted another operation than its peers."""

    name = "op_mismatch"
    parameter = "op"

    def _concerns(self, difference: Difference) -> bool:
        if difference.overwritten:
            return True
        return super()._concerns(difference)

    def _summary(self, case: Case, difference: Difference) -> str:
        if difference.overwritten:
            return (
                f"{subject(case, difference)} left the common sequence of "
                f"{comm_text(difference.comm)} at call {difference.seq} or before; the call itself "
                f"has been overwritten."
            )
        return super()._summary(case, difference)
