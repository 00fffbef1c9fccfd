"""Write the device section of a ring: one slot for each communicator."""

from __future__ import annotations

import ctypes
import mmap

from ncclscope.ring import layout


class Slots:
    """The slots in which GPUs count calls, and the process states whether a count is valid.

    Args:
        buffer: The mapped file.
        geometry: Offsets and sizes of its sections.

    Attributes:
        address: Address of the device section in this process.
        size: Its size in bytes.
    """

    def __init__(self, buffer: mmap.mmap, geometry: layout.Geometry) -> None:
        self._start = ctypes.c_char.from_buffer(buffer, geometry.device)
        self._buffer = buffer
        self._offset = geometry.device
        self.address = ctypes.addressof(self._start)
        self.size = geometry.device_size

    def keep(self) -> None:
        """Keep the map until the process ends: a GPU may write until then."""
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(self._start))

    def numbers(self, index: int) -> memoryview:
        """Return a communicator's slot as 64-bit integers; `index` is its number."""
        start = self._offset + self.offset(index)
        with memoryview(self._buffer) as everything:
            return everything[start : start + layout.SLOT.size].cast("Q")

    def offset(self, index: int) -> int:
        """Return the offset of a communicator's slot in the device section, in bytes."""
        return (index - 1) * layout.SLOT.size

    def put(self, index: int, state: int, reason: int = 0, since: int = 0) -> None:
        """Set whether a communicator's count is valid from here on.

        Args:
            index: The communicator's number.
            state: One of `layout.SLOT_*`.
            reason: Index into `layout.LOST`.
            since: Sequence number of the call since which this holds.
        """
        place = self._offset + self.offset(index) + layout.SLOT_STATE
        layout.SLOT_FATE.pack_into(self._buffer, place, state, reason, since)

    def put_clock(self, index: int, difference: int) -> None:
        """Store the difference of the host's and the GPU's clock in ns."""
        place = self._offset + self.offset(index) + layout.SLOT_CLOCK
        self._buffer[place : place + 8] = difference.to_bytes(8, "little", signed=True)

    def put_enters(self, index: int) -> None:
        """Note that the GPU also counts calls that it has entered."""
        place = self._offset + self.offset(index) + layout.SLOT_ENTERS
        self._buffer[place : place + 4] = (1).to_bytes(4, "little")
