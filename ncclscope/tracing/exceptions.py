"""Note exceptions in the ring: the type and the line, and nothing that a message may hold.

A rank that handles an exception goes on to other calls, or to none, while its peers wait in the
call that it left. Its process lives, so nothing else in the ring says that it failed.
"""

from __future__ import annotations

import contextlib
import sys
from types import TracebackType

from ncclscope.model import sites
from ncclscope.model.activities import RAISED
from ncclscope.tracing import callsite, session
from ncclscope.tracing.notes import Notes

_notes = Notes(RAISED)


def note_here(error: BaseException) -> None:
    """Note an exception that torch.distributed raises, at the program's line; never raise."""
    with contextlib.suppress(Exception):
        _note(type(error), callsite.user_line(sys._getframe(1)))


def note_traced(
    kind: type[BaseException], trace: TracebackType | None, *, ended: bool = False
) -> None:
    """Note an exception at the innermost line of the program; never raise.

    Args:
        kind: Its type.
        trace: Its traceback.
        ended: Whether it ends a thread.
    """
    with contextlib.suppress(Exception):
        if not issubclass(kind, SystemExit):
            _note(kind, _line_of(trace), int(ended))


def _note(kind: type[BaseException], line: str | None, ended: int = 0) -> None:
    if session.opened() is None:
        return
    name = kind.__name__
    _notes.note(f"{name} at {line}" if line else name, name, ended)


def _line_of(trace: TracebackType | None) -> str | None:
    found, of_program = None, False
    while trace is not None:
        code = trace.tb_frame.f_code
        base, role = code.co_filename.rpartition("/")[2], sites.role(code.co_filename)
        # A server may have no line but those of installed packages.
        if found is None or role == sites.OWN or (role == sites.INSTALLED and not of_program):
            found = f"{base}:{trace.tb_lineno} {code.co_name}"
        of_program = of_program or role == sites.OWN
        trace = trace.tb_next
    return found
