"""Read each communicator's progress on the GPU from the device section of a ring.

A GPU wrote these counters, but any process with access to the file could have. A counter that
contradicts the records is reported as unknown.
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

_EARLY_NS = 1_000_000_000
"""GPU times this much before the process's start or after its last heartbeat are discarded."""


def device_progress(ring: RingFile) -> Mapping[int, DeviceProgress]:
    """Return the progress of each counted communicator by its number."""
    found = {}
    for index, state in ring.states.items():
        pending = read_progress(ring, index, state.seq)
        if pending is not None:
            found[index] = pending
    return found


def read_progress(ring: RingFile, index: int, posted: int) -> DeviceProgress | None:
    """Return the progress of one communicator; None if it is not counted.

    Args:
        ring: The ring; its device section must be read before its records.
        index: The communicator's number.
        posted: Number of collectives recorded on it.
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
        why = layout.LOST[reason] if 0 < reason < len(layout.LOST) else "unknown reason"
        unknown = f"since call {min(since, posted)}: {why}"
    elif state == layout.SLOT_UNSETTLED and finished != posted:
        unknown = f"since call {min(since, posted)}: {layout.LOST[11]}"
    elif state not in (layout.SLOT_COUNTED, layout.SLOT_UNSETTLED):
        unknown = f"its counter has an unknown state ({state})"
    elif finished > posted or launched > posted:
        most = max(finished, launched)
        unknown = f"the device counts {most} calls, but {posted} are recorded"
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
    """Combine the states in records with the GPU's counters.

    Args:
        pending: The communicator's progress on the GPU; None if it is not counted.
        seqs: Sequence number of each call, `[calls]`.
        states: State of each call in its record, `[calls]`.

    Returns:
        State of each call, `[calls]`: the more advanced of both.
    """
    if pending is None or pending.finished is None:
        return states
    entered = min(
        pending.finished if pending.entered is None else pending.entered, pending.handed_over
    )
    counted = (seqs <= np.uint64(entered)).astype(np.uint8)
    counted[seqs <= np.uint64(pending.finished)] = State.COMPLETED
    found: NDArray[np.uint8] = np.maximum(states, counted)
    return found


def with_states(pending: DeviceProgress | None, records: Records) -> Records:
    """Return one communicator's collectives with states updated from the GPU's counters."""
    if pending is None or pending.finished is None or not len(records):
        return records
    updated = records.copy()
    updated["state"] = known_states(pending, records["seq"], records["state"])
    return updated


def _host_time(ring: RingFile, stamp: int, clock: int) -> int | None:
    """Convert a GPU time to the host's clock (ns); None if the result is implausible."""
    if not clock or not stamp:
        return None
    found = ring.shifted(stamp + clock)
    began = ring.started_ns(ring.about)
    if not began or found < began - _EARLY_NS:
        return None
    return found if found <= ring.heartbeat_ns + _EARLY_NS else None
