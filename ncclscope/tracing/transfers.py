"""The transfers table of this process, created with the first transfer."""

from __future__ import annotations

from ncclscope.errors import NcclscopeError
from ncclscope.ring.transfers import TransferTable
from ncclscope.tracing import session
from ncclscope.tracing.warning import warn_once

__all__ = ["table"]

_table: TransferTable | None = None
_failed = False


def table() -> TransferTable | None:
    """Return the table of this process's ring.

    Returns:
        None if tracing is off or the table cannot be created; the latter is reported once.
    """
    global _table, _failed
    if _table is not None or _failed:
        return _table
    tracer = session.current()
    if tracer is None:
        return None
    try:
        _table = TransferTable(tracer.ring.path, tracer.ring.geometry)
    except (NcclscopeError, OSError) as error:
        _failed = True
        warn_once("transfers", f"transfers are not recorded in this process: {error}")
    return _table


def _forget() -> None:
    global _table, _failed
    _table = None
    _failed = False


session.on_reset(_forget)
