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
from ncclscope.ring.native_writer import open_writer
from ncclscope.tracing import identity


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
    found = {str(pid): status for pid, status in ends.items()}
    own = {"rank": -1, "world_size": 0, "launcher": launcher, "ends": found}
    # No tracer: a launcher makes no calls, and needs neither a guard nor marks on a GPU.
    with contextlib.suppress(NcclscopeError, OSError, ValueError):
        about = {**identity.describe_process(), **own, **details}
        open_writer(directory, capacity=layout.MIN_CAPACITY, about=about, device=False).finish()
