"""Same call, different element type."""

from ncclscope.engine.mismatch import ParameterMismatch


class DtypeMismatch(ParameterMismatch):
    """One rank posted the call with another element type than its peers."""

    name = "dtype_mismatch"
    parameter = "dtype"
