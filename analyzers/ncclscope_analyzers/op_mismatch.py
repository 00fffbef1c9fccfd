"""Different operations under the same number."""

from __future__ import annotations

from ncclscope.engine.case import Case
from ncclscope.engine.mismatch import ParameterMismatch
from ncclscope.engine.sequences.difference import Difference
from ncclscope.wording.differences import subject
from ncclscope.wording.mismatches import Unlike


class OpMismatch(ParameterMismatch):
    """One rank posted another operation than its peers."""

    name = "op_mismatch"
    parameter = "op"

    def _concerns(self, difference: Difference) -> bool:
        return difference.overwritten or super()._concerns(difference)

    def _summary(self, case: Case, difference: Difference) -> str:
        if difference.overwritten:
            return Unlike.OVERWRITTEN.of(who=subject(case.run, difference), one=difference)
        return super()._summary(case, difference)
