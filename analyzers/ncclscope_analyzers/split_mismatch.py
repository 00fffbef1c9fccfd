"""Same v-collective or all_to_all, different sizes list."""

from ncclscope.analysis.mismatch import ParameterMismatch

__all__ = ["SplitMismatch"]


class SplitMismatch(ParameterMismatch):
    """One rank posted a v-collective with another sizes list than its peers."""

    name = "split_mismatch"
    parameter = "split"
