"""How far each GPU is among the recorded calls, counted by the GPU itself.

Nothing of it is imported in a process that was not asked to count.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ncclscope.settings import variable
from ncclscope.tracing.warning import warn_once

if TYPE_CHECKING:
    from ncclscope.tracing.device.markers import DeviceMarks
    from ncclscope.tracing.host import Host

__all__ = ["mode", "open_marks"]


def mode() -> str:
    """Return what the environment asks for: ``1``, ``entered``, or nothing."""
    found = variable("DEVICE_PROGRESS")
    return "" if found == "0" else found


def open_marks(tracer: Host, wanted: str) -> DeviceMarks | None:
    """Return what counts on the GPU for a tracer; None, with one warning, when it cannot be."""
    from ncclscope.tracing.device.markers import DeviceMarks

    if wanted not in ("1", "entered"):
        said = f"NCCLSCOPE_DEVICE_PROGRESS={wanted!r} is neither 1 nor entered"
        warn_once("device", f"{said}; nothing is counted on the device")
        return None
    slots = tracer.ring.slots
    return None if slots is None else DeviceMarks(tracer, slots, enters=wanted == "entered")
