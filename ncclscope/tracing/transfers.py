"""The transfers table of this process, created with the first transfer."""

from __future__ import annotations

from typing import Any

from ncclscope.errors import NcclscopeError
from ncclscope.model import Transfer
from ncclscope.ring.transfers import TransferTable
from ncclscope.tracing import session
from ncclscope.tracing.warning import warn_once

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


def find(direction: str, request: str) -> Transfer | None:
    """Return a transfer of this process; None if it is not known or transfers are not recorded."""
    own = table()
    return None if own is None else own.find(direction, request)


def put(transfer: Transfer) -> None:
    """Record a transfer, if transfers are recorded."""
    own = table()
    if own is not None:
        own.put(transfer)


def change(direction: str, request: str, **changed: Any) -> None:
    """Change a transfer that is known and has not ended, if transfers are recorded.

    Args:
        direction: ``send`` or ``recv``.
        request: Id of the request.
        **changed: New values of its fields.
    """
    own = table()
    if own is not None:
        own.change(direction, request, **changed)


def _forget() -> None:
    global _table, _failed
    _table = None
    _failed = False


session.on_reset(_forget)
