"""Same call, different reduction."""

from ncclscope.analysis.mismatch import ParameterMismatch

__all__ = ["RedopMismatch"]


class RedopMismatch(ParameterMismatch):
    """One rank posted the call with another reduction than its peers."""

    name = "redop_mismatch"
    parameter = "redop"
