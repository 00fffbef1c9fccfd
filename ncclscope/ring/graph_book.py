"""Write the graphs section of a ring: the calls of each CUDA graph, once."""

from __future__ import annotations

import mmap
import threading
from collections.abc import Sequence
from typing import NamedTuple

from ncclscope.ring import entries, layout
from ncclscope.ring.channel import Channel
from ncclscope.ring.room import Room


class GraphCall(NamedTuple):
    """One call of a graph.

    Attributes:
        channel: The communicator on which it was enqueued.
        fixed: Its parameters as packed by :meth:`Interner.fixed`.
        signature: Hash of what members must agree in; 0 for a send or receive.
        group: Number of the NCCL group in which it was enqueued; 0 outside a group.
        sizes: Its sizes list, as in the heap.
    """

    channel: Channel
    fixed: bytes
    signature: int
    group: int = 0
    sizes: tuple[int, ...] | None = None


class GraphBook:
    """Writes the graphs section of one ring.

    Graphs of one model are similar, so equal calls and equal lists of calls are written once.

    Args:
        buffer: The mapped file.
        geometry: Offsets and sizes of its sections.
        room: What is reserved of it.
    """

    def __init__(self, buffer: mmap.mmap, geometry: layout.Geometry, room: Room) -> None:
        self._buffer: mmap.mmap | None = buffer
        self._geometry = geometry
        self._room = room
        self._lock = threading.RLock()
        self._used = 0
        self._numbers: dict[int, dict[bytes, int]] = {layout.GRAPH_CALL: {}, layout.GRAPH_LIST: {}}
        self._made = dict.fromkeys((layout.GRAPH_CALL, layout.GRAPH_LIST, layout.GRAPH), 0)

    def add(self, number: int, calls: Sequence[GraphCall]) -> bool:
        """Write the calls of a graph.

        Returns:
            Whether there was room for them.
        """
        if len(calls) > layout.MOST_GRAPH_CALLS:
            return False
        with self._lock:
            items = []
            for call in calls:
                place = self._number(layout.GRAPH_CALL, _packed(call))
                if not place:
                    return False
                group = call.group and (call.group - 1) % 0xFFFF + 1
                items.append(layout.GRAPH_ITEM.pack(place, group, 0))
            place = self._number(layout.GRAPH_LIST, b"".join(items))
            if not place:
                return False
            head = layout.GRAPH_HEAD.pack(number & 0xFFFFFFFF, place)
            return self._append(layout.GRAPH, head)

    def detach(self) -> None:
        """Stop writing to the file."""
        self._buffer = None
        self._lock = threading.RLock()

    def _number(self, kind: int, data: bytes) -> int:
        """Return the number of an entry; 0 if there is no room for it."""
        numbers = self._numbers[kind]
        known = numbers.get(data)
        if known is None and self._append(kind, data):
            known = numbers[data] = len(numbers) + 1
        return known or 0

    def _append(self, kind: int, data: bytes) -> bool:
        buffer, section = self._buffer, self._geometry.graphs
        end = self._used + entries.size_of(data)
        if buffer is None or end > self._geometry.graphs_size or len(data) > layout.LONGEST_ENTRY:
            return False
        if not self._room.has(section, end):
            return False
        self._made[kind] += 1
        for start in (section + layout.pages(self._geometry.graphs_size), section):
            entries.put(buffer, start + self._used, kind, self._made[kind], data)
        self._used = end
        layout.put_word(buffer, layout.HEADER_GRAPHS_USED, end)
        return True


def _packed(call: GraphCall) -> bytes:
    fixed = bytearray(call.fixed)
    fixed[layout.FIXED_SIZES] = bytes(4)  # the heap's copy will be overwritten
    sizes = [size.to_bytes(8, "little", signed=True) for size in call.sizes or ()]
    return b"".join((fixed, layout.GRAPH_SIGNATURE.pack(call.signature), *sizes))
