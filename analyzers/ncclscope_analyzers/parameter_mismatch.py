"""Same call, with another element type, reduction or root."""

from ncclscope.engine.mismatch import ParameterMismatch


class DtypeMismatch(ParameterMismatch):
    """One rank posted the call with another element type than its peers."""

    name = "dtype_mismatch"
    parameter = "dtype"


class RedopMismatch(ParameterMismatch):
    """One rank posted the call with another reduction than its peers."""

    name = "redop_mismatch"
    parameter = "redop"


class RootMismatch(ParameterMismatch):
    """One rank posted the call with another root than its peers."""

    name = "root_mismatch"
    parameter = "root"
