"""Same call, different number of elements."""

from ncclscope.analysis.mismatch import ParameterMismatch

__all__ = ["SizeMismatch"]


class SizeMismatch(ParameterMismatch):
    """One rank posted the call with another number of elements than its peers."""

    name = "size_mismatch"
    parameter = "size"
