"""Same call, different reduction."""

from ncclscope.engine.mismatch import ParameterMismatch


class RedopMismatch(ParameterMismatch):
    """One rank posted the call with another reduction than its peers."""

    name = "redop_mismatch"
    parameter = "redop"
