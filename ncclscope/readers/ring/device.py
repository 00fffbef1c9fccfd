"""The device part of a ring -> how far each communicator is on the GPU.

What stands there was written by a GPU, or by anything else that had the file. A count that the
records contradict is no count.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from ncclscope.model import State
from ncclscope.model.device import DeviceProgress
from ncclscope.ring import layout
from ncclscope.ring.image import Records
from ncclscope.ring.reader import RingFile

__all__ = ["device_progress", "known_states", "read_stand", "with_states"]

_EARLY_NS = 1_000_000_000
"""So far before the process began, or after its last sign of life, clocks are not related."""


def device_progress(ring: RingFile) -> Mapping[int, DeviceProgress]:
    """Return how far the communicators are, by their number; without those not counted."""
    found = {}
    for index, state in ring.states.items():
        pending = read_stand(ring, index, state.seq)
        if pending is not None:
            found[index] = pending
    return found


def read_stand(ring: RingFile, index: int, posted: int) -> DeviceProgress | None:
    """Return how far one communicator is; None where nothing is counted.

    Args:
        ring: The ring, whose device part was read before its records were.
        index: The communicator's number.
        posted: Collectives recorded on it.
    """
    start = (index - 1) * layout.SLOT.size
    data = ring.device[start : start + layout.SLOT.size]
    if len(data) < layout.SLOT.size or not any(data):
        return None
    slot = layout.SLOT.unpack(data)
    finished, stamp, entered, _, launched, state, reason, since, clock, enters = slot
    if state == 0:
        return None
    unknown = ""
    if state == layout.SLOT_LOST:
        why = layout.LOST[reason] if 0 < reason < len(layout.LOST) else "for a reason unknown here"
        unknown = f"since call {min(since, posted)}: {why}"
    elif state == layout.SLOT_UNSETTLED and finished != posted:
        unknown = f"since call {min(since, posted)}: {layout.LOST[11]}"
    elif state not in (layout.SLOT_COUNTED, layout.SLOT_UNSETTLED):
        unknown = f"the slot is in no known state ({state})"
    elif finished > posted or launched > posted:
        most = max(finished, launched)
        unknown = f"the device counts {most} calls, and {posted} are recorded"
    elif enters and not finished <= entered <= posted:
        unknown = f"the device has entered {entered} calls and finished {finished} of {posted}"
    if unknown:
        return DeviceProgress(posted, unknown=unknown)
    return DeviceProgress(
        posted,
        finished,
        entered if enters else None,
        max(launched, finished),
        _host_time(ring, stamp, clock) if finished else None,
    )


def known_states(
    pending: DeviceProgress | None, seqs: NDArray[np.uint64], states: NDArray[np.uint8]
) -> NDArray[np.uint8]:
    """Return how far calls are, by their records and by the device."""
    if pending is None or pending.finished is None:
        return states
    entered = min(
        pending.finished if pending.entered is None else pending.entered, pending.handed_over
    )
    told = (seqs <= np.uint64(entered)).astype(np.uint8)
    told[seqs <= np.uint64(pending.finished)] = State.COMPLETED
    found: NDArray[np.uint8] = np.maximum(states, told)
    return found


def with_states(pending: DeviceProgress | None, records: Records) -> Records:
    """Return records of one communicator's collectives, as far as the device knows them."""
    if pending is None or pending.finished is None or not len(records):
        return records
    told = records.copy()
    told["state"] = known_states(pending, records["seq"], records["state"])
    return told


def _host_time(ring: RingFile, stamp: int, clock: int) -> int | None:
    """Return a time of the GPU by the host's clock, unless it cannot be true."""
    if not clock or not stamp:
        return None
    found = stamp + clock
    began = ring.about.get("started_ns")
    if not isinstance(began, int) or found < began - _EARLY_NS:
        return None
    return found if found <= ring.heartbeat_ns + _EARLY_NS else None
