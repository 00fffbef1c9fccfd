"""Write a ring by the core in C, which NCCL's profiler plugin shares.

The writer in Python is the reference: both write the same bytes for the same calls.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ncclscope.clock import CLOCK
from ncclscope.errors import RingError
from ncclscope.model.signature import MASK
from ncclscope.native import core as native_core
from ncclscope.ring import layout
from ncclscope.ring.channel import Channel
from ncclscope.ring.graph_book import GraphCall
from ncclscope.ring.intern import Interner
from ncclscope.ring.place import RingPlace
from ncclscope.ring.replays import parts_of, powers
from ncclscope.ring.writer import RingWriter


def open_writer(directory: str | os.PathLike[str], **options: Any) -> RingWriter:
    """Create a ring with the writer that serves here.

    Args:
        directory: Directory of the file.
        options: Those of :class:`RingWriter`.

    Raises:
        RingError: No directory had room for the ring.
    """
    return (RingWriter if native_core() is None else NativeWriter)(directory, **options)


class NativeInterner(Interner):
    """Writes the strings section and the heap by the core.

    Args:
        ring: The core's ring.
    """

    def __init__(self, ring: Any) -> None:
        self._ring = ring
        self.text = ring.text  # type: ignore[method-assign]
        self.sizes = ring.sizes  # type: ignore[method-assign]

    @property
    def refused(self) -> int:  # type: ignore[override]
        """Number of texts and sizes lists not written since the file is detached."""
        return int(self._ring.refused)

    def holds_sizes(self, fixed: bytes) -> bool:
        """Return whether the sizes list of packed parameters will not be overwritten soon."""
        return bool(self._ring.holds(_place(fixed)))

    def sizes_of(self, fixed: bytes) -> tuple[int, ...] | None:
        """Return the sizes list of packed parameters; None if there is none or it has expired."""
        found: tuple[int, ...] | None = self._ring.sizes_of(_place(fixed))
        return found

    def detach(self) -> None:
        """Do nothing: the core's ring is detached as a whole."""

    def _is_scarce(self, site: str) -> bool:
        scarce = self._ring.sites_used > layout.MOST_SITES * 2 // 3
        return scarce and not self._ring.knows(layout.KIND_SITE, site)


class NativeWriter(RingWriter):
    """One process's ring, written by the core in C.

    Methods that record take the core's lock, for as long as a record takes, since NCCL's profiler
    plugin records in threads that do not hold the GIL.
    """

    def _open(self, place: RingPlace, buffer: mmap.mmap, device: bool) -> Interner:
        core = native_core()
        assert core is not None
        path = os.fsencode(place.path)
        self.core = core.open_ring(place.descriptor, self.capacity, device, path, CLOCK & MASK)
        self._part = core.part
        self._activity = self.core.activity
        for name in (
            "post",
            "post_p2p",
            "post_replay",
            "post_step",
            "advance",
            "withdraw",
            "store_heartbeat",
            "finish",
        ):
            setattr(self, name, getattr(self.core, name))
        return NativeInterner(self.core)

    def _publish(self) -> None:
        self.core.publish()
        self.core.set_current()

    @property
    def position(self) -> int:  # type: ignore[override]
        """Number of records made so far."""
        return int(self.core.position)

    @property
    def capture(self) -> Callable[[Channel, bytes, int, int], int]:
        """Take a captured call; see :class:`RingWriter`."""
        taken: Callable[[Channel, bytes, int, int], int] = self.core.capture
        return taken

    @capture.setter
    def capture(self, capture: Callable[[Channel, bytes, int, int], int]) -> None:
        self.core.capture = capture

    def parts_of(self, calls: Sequence[GraphCall], number: int) -> list[Any]:
        """Return the collectives of a graph by communicator, for :meth:`post_replay`."""
        return [
            self._part(
                part.channel,
                powers(len(part.hashes) - 1),
                tuple(part.hashes),
                part.packed[4],
            )
            for part in parts_of(calls, number)
        ]

    def detach(self) -> None:
        """Stop writing to the file, without changing it; later records are discarded."""
        self.core.detach()
        super().detach()

    def close_channel(self, channel: Channel) -> None:
        """Let a communicator's number be used again, since the communicator was destroyed."""
        self.core.close_channel(channel)

    def reopen_channel(self, channel: Channel) -> None:
        """Take back that a communicator was destroyed: it is used again."""
        self.core.reopen_channel(channel)

    def _update(self, channel: Channel, text: str) -> None:
        self.core.update_channel(channel, text)

    def _open_channel(self, text: str, about: Mapping[str, Any]) -> Channel:
        members = about.get("ranks") or range(*about.get("range", (0, 0, 1)))
        found: Channel = self.core.channel(text, len(members))
        return found

    def _store_about(self, data: bytes) -> None:
        if not self.core.describe(data):
            raise RingError("the process description is too long")


def _place(fixed: bytes) -> int:
    return int.from_bytes(fixed[layout.FIXED_SIZES], "little")
