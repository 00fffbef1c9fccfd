"""Record how the processes that a launcher started ended, in a ring of the launcher's own.

A process that a signal ends, or ``os._exit``, cannot record its end. The process that started it
knows, and knows which of them ended before it ended the others.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping

from ncclscope.errors import NcclscopeError
from ncclscope.ring import layout
from ncclscope.tracing.tracer import Tracer

__all__ = ["record_ends"]


def record_ends(
    directory: str | os.PathLike[str], launcher: str, ends: Mapping[int, int], **details: str
) -> None:
    """Record which processes ended by themselves, and how; without room, record nothing.

    Args:
        directory: Directory of the rings.
        launcher: Name of the program that started the processes.
        ends: Exit status by pid, as :mod:`subprocess` has it: negative for a signal.
        **details: Further text for the ring's description, such as the name of the run.
    """
    about = {**details, "launcher": launcher, "ends": {str(pid): ends[pid] for pid in ends}}
    with contextlib.suppress(NcclscopeError, OSError, ValueError):
        Tracer(
            directory, rank=-1, capacity=layout.MIN_CAPACITY, heartbeat=False, details=about
        ).close()
