"""How far each GPU is among the recorded calls, counted by the GPU itself.

Nothing of it is imported in a process that was not asked to count.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ncclscope.tracing.device.marks import DeviceMarks
    from ncclscope.tracing.tracer import Tracer

__all__ = ["mode", "open_marks"]

_NAME = "DEVICE_PROGRESS"


def mode() -> str:
    """Returns what the environment asks for: ``1``, ``entered``, or nothing."""
    # Ray's executors hand only names that begin with NCCL_ to their workers.
    found = os.environ.get(f"NCCLSCOPE_{_NAME}") or os.environ.get(f"NCCL_SCOPE_{_NAME}") or ""
    return "" if found == "0" else found


def open_marks(tracer: Tracer, wanted: str) -> DeviceMarks | None:
    """Returns what counts on the GPU for a tracer; None, said once, when it cannot be."""
    from ncclscope.tracing import session
    from ncclscope.tracing.device.marks import DeviceMarks

    if wanted not in ("1", "entered"):
        said = f"NCCLSCOPE_DEVICE_PROGRESS={wanted!r} is neither 1 nor entered"
        session.warn_once("device", f"{said}; nothing is counted on the device")
        return None
    slots = tracer.ring.slots
    return None if slots is None else DeviceMarks(tracer, slots, enters=wanted == "entered")
