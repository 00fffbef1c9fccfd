"""Same call, different element type."""

from ncclscope.analysis.mismatch import ParameterMismatch

__all__ = ["DtypeMismatch"]


class DtypeMismatch(ParameterMismatch):
    """One rank posted the call with another element type than its peers."""

    name = "dtype_mismatch"
    parameter = "dtype"
