"""The device part of a ring that is being written: one slot for each communicator."""

from __future__ import annotations

import ctypes
import mmap

from ncclscope.ring import layout

__all__ = ["Slots"]


class Slots:
    """Where GPUs write how far they are, and the process what that count is worth.

    Args:
        buffer: The map of the file.
        geometry: Where its parts are.

    Attributes:
        address: Of the part, in this process.
        size: In bytes.
    """

    def __init__(self, buffer: mmap.mmap, geometry: layout.Geometry) -> None:
        self._start = ctypes.c_char.from_buffer(buffer, geometry.device)
        self._buffer = buffer
        self._offset = geometry.device
        self.address = ctypes.addressof(self._start)
        self.size = geometry.device_size
        size = geometry.device_size.to_bytes(8, "little")
        buffer[layout.HEADER_DEVICE_SIZE : layout.HEADER_DEVICE_SIZE + 8] = size

    def keep(self) -> None:
        """Hold the map until the process ends: a GPU may write to the last."""
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(self._start))

    def numbers(self, index: int) -> memoryview:
        """Return the slot of a communicator, by its number, as numbers of 64 bits."""
        start = self._offset + self.offset(index)
        with memoryview(self._buffer) as everything:
            return everything[start : start + layout.SLOT.size].cast("Q")

    def offset(self, index: int) -> int:
        """Return where the slot of a communicator begins in the part."""
        return (index - 1) * layout.SLOT.size

    def put(self, index: int, state: int, reason: int = 0, since: int = 0) -> None:
        """Say what the count of a communicator is worth from here on."""
        place = self._offset + self.offset(index) + layout.SLOT_STATE
        layout.SLOT_FATE.pack_into(self._buffer, place, state, reason, since)

    def put_clock(self, index: int, difference: int) -> None:
        """Say how far the host's clock is ahead of the GPU's, in nanoseconds."""
        place = self._offset + self.offset(index) + layout.SLOT_CLOCK
        self._buffer[place : place + 8] = difference.to_bytes(8, "little", signed=True)

    def put_enters(self, index: int) -> None:
        """Say that calls entered are counted, too."""
        place = self._offset + self.offset(index) + layout.SLOT_ENTERS
        self._buffer[place : place + 4] = (1).to_bytes(4, "little")
