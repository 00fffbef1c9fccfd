"""Finds in a ring what is asked for, and reads no more.

A ring may be a thousand times larger than what a question needs, so nothing is read
before it is asked for: the end of the stream is found through the communicator table, a
call through the marks. A ring that is asked a second question must not have another answer,
so the first question copies all that is left of one that is still written.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ncclscope.errors import DamagedFileError
from ncclscope.model.signature import BASE_INVERSE
from ncclscope.ring import layout
from ncclscope.ring.graph_tables import GraphTables, read_graphs
from ncclscope.ring.image import RECORD_DTYPE, Circle, Records, RingImage, chosen, joined, whole

__all__ = [
    "CHUNK",
    "ChannelState",
    "RingFile",
    "RingMarks",
    "bracket",
    "collectives",
    "hash_before",
]

CHUNK = 1024
_PIECES_KEPT = 512
"""Chunks, and parts of them, that are kept of all rings together: 48 MB at most."""
_PINNED = 1 << 20
"""Records of a live ring that are copied at most: 96 MB."""
_SLICE = 1 << 16
_ATTEMPTS = 8


@dataclass(frozen=True, slots=True)
class ChannelState:
    """How far one communicator has come: collectives, running hash, point-to-point calls."""

    seq: int
    hash: int
    p2p: int


class RingMarks(NamedTuple):
    """RingMarks of one communicator, in order.

    Attributes:
        seqs: Numbers of the calls that they stand at.
        positions: Of these calls in the stream.
        hashes: Running hashes after them.
    """

    seqs: NDArray[np.uint64]
    positions: NDArray[np.uint64]
    hashes: NDArray[np.uint64]


_NO_MARKS = RingMarks(*(np.empty(0, np.uint64) for _ in range(3)))


class _Pieces:
    """What was read last of any ring. A ring of its own would keep little, a thousand much."""

    def __init__(self) -> None:
        self._kept: OrderedDict[tuple[int, ...], Records] = OrderedDict()

    def get(self, key: tuple[int, ...], read: Callable[[], Records]) -> Records:
        """Return what was read under this key, or read it."""
        piece = self._kept.pop(key, None)
        if piece is None:
            piece = read()
            if len(self._kept) >= _PIECES_KEPT:
                self._kept.popitem(last=False)
        self._kept[key] = piece
        return piece


_pieces = _Pieces()
_serials = count()


class RingFile(RingImage):
    """One ring, opened for reading.

    What it says of itself and how far its communicators have come is read at once; records
    are read when they are asked for.

    Args:
        path: The file. Symbolic links are not followed.
        owned: Refuse a ring that another user could have written.

    Attributes:
        about: The self-description.
        head: Records made.
        states: How far each communicator has come, by its number.
        activities: Fields of what the process does besides its calls.
        device: What GPUs had written before any record was looked at; empty where none do.
        scale: By which positions are multiplied to tell the calls of one replay apart; 1 in a
            ring without CUDA graphs.
        live: Set by whoever knows that the ring is still written, before asking for records.

    Raises:
        DamagedFileError: It is no ring, or its header contradicts its size.
        OSError: It cannot be opened.
    """

    def __init__(self, path: Path, *, owned: bool = False) -> None:
        super().__init__(path, owned=owned)
        self.live = False
        self.head = 0
        self.states: dict[int, ChannelState] = {}
        self.activities: list[tuple[int, ...]] = []
        self.device = b""
        self.scale = 1
        self._serial = next(_serials)
        self._pinned: Records | None = None
        # Less than a circle, so that the record before fits in with them.
        self._reach = min(layout.TABLE_EVERY + 256, self.geometry.capacity - 1)
        try:
            # Before the records: what has finished by now has been recorded.
            self.device = self.read_device()
            self._find_head()
            self.activities = self.read_activities()
            self.scale = layout.MOST_GRAPH_CALLS if self.graphs_used else 1
            if self.head * self.scale > layout.MOST:
                raise DamagedFileError(f"{path} is damaged: it speaks of {self.head} records")
            # After the records: what they refer to had been written before them.
            self.texts = self.read_texts()
            self.about = self.read_about()
        except BaseException:
            self.close()
            raise

    @property
    def lost(self) -> int:
        """Record that had been overwritten when the ring was opened."""
        return max(0, self.head - self.geometry.capacity)

    @property
    def oldest(self) -> int:
        """Position of the oldest record that may be left."""
        if self.live:
            return self.head - len(self._pin())
        return self.lost

    @cached_property
    def graphs(self) -> GraphTables:
        """What its CUDA graphs hold; read when it is asked for."""
        return read_graphs(self)

    # --- records ---------------------------------------------------------------------------

    def window(self, start: int, stop: int) -> Records:
        """Return the whole records at positions ``start`` to ``stop - 1``, oldest first.

        Records that are gone or torn are left out.
        """
        start, stop = max(start, self.oldest), min(stop, self.head)
        if start >= stop:
            return np.empty(0, RECORD_DTYPE)
        if self.live:
            pinned = self._pin()
            return pinned[start - self.oldest : stop - self.oldest]
        together = joined(
            [self._chunk(number) for number in range(start // CHUNK, (stop - 1) // CHUNK + 1)]
        )
        if start % CHUNK == 0 and (stop % CHUNK == 0 or stop == self.head):
            return together
        begins = together["begin"]
        low, high = np.searchsorted(begins, np.array([start + 1, stop + 1], np.uint64))
        return together[low:high]

    def piece(self, number: int, comm: int) -> Records:
        """Return a communicator's collectives among the records of a chunk.

        Args:
            number: The chunk: positions from ``number * CHUNK`` on.
            comm: The communicator's number.
        """

        def read() -> Records:
            return collectives(self.window(number * CHUNK, (number + 1) * CHUNK), comm)

        return _pieces.get((self._serial, number, comm), read)

    def marks(self, comm: int) -> RingMarks:
        """Return a communicator's marks, as far as the records are kept that they stand at."""
        low, high = np.searchsorted(self._marks["word"], np.array([comm, comm + 1], np.uint32))
        mine = self._marks[low:high]
        begins = mine["begin"]
        low, high = np.searchsorted(begins, np.array([self.lost + 1, self.head + 1], np.uint64))
        mine = mine[low:high]
        seqs = mine["seq"]
        if np.any(seqs[1:] <= seqs[:-1]):
            return _NO_MARKS  # damaged; records are found without them
        return RingMarks(seqs, mine["begin"] - np.uint64(1), mine["hash"])

    @cached_property
    def _marks(self) -> Circle:
        """RingMarks that are whole, by communicator and in order; read when they are asked for."""
        marks = self.read_circle(self.geometry.mark_area, self.geometry.marks)
        order = np.lexsort((marks["begin"], marks["word"]))
        marks = marks.take(order)
        found: Circle = marks.compress(marks["begin"] != 0)
        return found

    def _chunk(self, number: int) -> Records:
        """Return the whole records from position ``number * CHUNK`` to the next chunk."""

        def read() -> Records:
            start, stop = number * CHUNK, min((number + 1) * CHUNK, self.head)
            records, wanted = self.read_slots(start, stop)
            good = whole(records, wanted)
            return records if good.all() else chosen(records, good)

        return _pieces.get((self._serial, number), read)

    def _pin(self) -> Records:
        """Copy what is left of a ring that is still written, from the newest back to a gap."""
        if self._pinned is None:
            parts: list[Records] = []
            limit = max(self.lost, self.head - _PINNED)
            stop = self.head
            while stop > limit:
                part = self.read_stable(max(limit, stop - _SLICE), stop)
                wanted = np.arange(stop - len(part) + 1, stop + 1, dtype=np.uint64)
                gaps = np.flatnonzero(part["begin"] != wanted)
                part = part[gaps[-1] + 1 :] if len(gaps) else part
                parts.append(part)
                if len(part) < min(_SLICE, stop - limit):
                    break
                stop -= len(part)
            self._pinned = joined(parts[::-1])
            self.pin_heap()
        return self._pinned

    def _find_head(self) -> None:
        """Find how many records were made, and each communicator's state at that point."""
        for attempt in range(_ATTEMPTS):
            entries = self._read_table()
            sinces = sorted({int(entry["begin"]) - 1 for _, entry in entries}, reverse=True)
            self._follow(entries, self._believable(sinces, attempt))
            # While this was read, a fast writer may have gone round a small ring.
            newest = max((int(entry["begin"]) - 1 for _, entry in self._read_table()), default=0)
            if newest <= max([self.head, *sinces[:1]]):
                return

    def _read_table(self) -> list[tuple[int, Any]]:
        """Return communicators' numbers and their entries of both halves of the table."""
        table = self.read_circle(self.geometry.table, 2 * layout.MAX_COMMS)
        places = np.flatnonzero(table["begin"])
        return [(int(place) % layout.MAX_COMMS + 1, table[place]) for place in places]

    def _believable(self, sinces: list[int], attempt: int) -> int:
        """Return the newest of these heads that records bear witness to."""
        for since in sinces:
            if len(self.read_stable(max(since - 1, 0), since + self._reach)):
                return since
        # A table that has moved on each time is a writer's, however fast; else it is damaged.
        return sinces[0] if sinces and attempt == _ATTEMPTS - 1 else 0

    def _follow(self, entries: list[tuple[int, Any]], head: int) -> None:
        """Go on from a table to the end of the stream."""
        self.head = head
        while len(tail := self.read_stable(self.head, self.head + self._reach)):
            self.head = int(tail["begin"][-1])
        known: dict[int, Any] = {}
        for comm, entry in entries:
            begin = int(entry["begin"])
            if begin <= self.head + 1 and (comm not in known or begin > known[comm]["begin"]):
                known[comm] = entry
        self.states = {
            comm: ChannelState(int(entry["seq"]), int(entry["hash"]), int(entry["word"]))
            for comm, entry in known.items()
        }
        start = min((int(entry["begin"]) - 1 for entry in known.values()), default=0)
        self._count(self.read_stable(max(start, self.lost), self.head))

    def _count(self, records: Records) -> None:
        """Bring the states up to date with records that were made since."""
        fixed = records["fixed"]
        p2p = fixed & layout.FIXED_P2P != 0
        for kind in (~p2p, p2p):
            mine = chosen(records, kind & (fixed & layout.FIXED_STEP == 0))
            # The last of each communicator: unique() finds the first of the reversed.
            comms, places = np.unique(mine["comm"][::-1], return_index=True)
            for comm, last in zip(comms.tolist(), mine[::-1][places], strict=True):
                seq = int(last["seq"])
                state = self.states.get(comm, ChannelState(0, 0, 0))
                if last["fixed"] & layout.FIXED_P2P:
                    state = ChannelState(state.seq, state.hash, max(seq, state.p2p))
                elif seq > state.seq:
                    state = ChannelState(seq, int(last["hash"]), state.p2p)
                self.states[comm] = state


def hash_before(after: int, signature: int) -> int:
    """Return the running hash before a call from the one after it."""
    return (after - signature) * BASE_INVERSE & ((1 << 64) - 1)


def collectives(records: Records, comm: int) -> Records:
    """Return those records that are collectives of a communicator."""
    other = layout.FIXED_P2P | layout.FIXED_STEP
    return chosen(records, (records["comm"] == comm) & (records["fixed"] & other == 0))


def bracket(seqs: NDArray[np.uint64], seq: int) -> tuple[int, int]:
    """Return the places of the marks around a seq: the last at or before, the first after."""
    after = int(np.searchsorted(seqs, np.uint64(seq), "right"))
    return after - 1, after
