"""Same call, different root."""

from ncclscope.engine.mismatch import ParameterMismatch


class RootMismatch(ParameterMismatch):
    """One rank posted the call with another root than its peers."""

    name = "root_mismatch"
    parameter = "root"
