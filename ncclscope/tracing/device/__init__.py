"""Count the recorded calls that each GPU has finished, on the GPU itself.

The other modules of this package are imported only if counting is requested.
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
    """Return the requested mode: ``1``, ``entered``, or empty."""
    found = variable("DEVICE_PROGRESS")
    return "" if found == "0" else found


def open_marks(tracer: Host, wanted: str) -> DeviceMarks | None:
    """Return the GPU's call counter of a tracer; None, with one warning, for an unknown mode."""
    from ncclscope.tracing.device.markers import DeviceMarks

    if wanted not in ("1", "entered"):
        problem = f"NCCLSCOPE_DEVICE_PROGRESS={wanted!r} is neither 1 nor entered"
        warn_once("device", f"{problem}; nothing is counted on the device")
        return None
    slots = tracer.ring.slots
    return None if slots is None else DeviceMarks(tracer, slots, enters=wanted == "entered")
