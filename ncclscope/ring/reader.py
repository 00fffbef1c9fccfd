"""Read only the requested parts of a ring.

A ring may be a thousand times larger than what a query needs, so parts are read on demand. The
communicator table locates the end of the stream, and marks locate a call. Repeated queries must
give the same answer. So the first query copies all remaining records of a ring that is still
being written.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
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
from ncclscope.ring.image import (
    ENTRY_DTYPE,
    RECORD_DTYPE,
    Entries,
    Records,
    RingImage,
    chosen,
    joined,
    whole,
)
from ncclscope.untrusted import number, parse_object

CHUNK = 1024
_PIECES_KEPT = 512
"""Most cached chunks, and parts of them, of all rings together: 48 MB."""
_PINNED = 1 << 20
"""Most records copied from a live ring: 96 MB."""
_SLICE = 1 << 16
_COMMS_READ = 128
"""Entries of the table that are read at once: a page."""
_ATTEMPTS = 8
_OVER_NS = 10**10
"""Age of a heartbeat after which the process completes no record while its ring is read."""


@dataclass(frozen=True, slots=True)
class ChannelState:
    """Progress of one communicator.

    Attributes:
        seq: Number of collectives.
        hash: Running hash after them.
        p2p: Number of sends and receives.
    """

    seq: int
    hash: int
    p2p: int


class RingMarks(NamedTuple):
    """Marks of one communicator, in order.

    Attributes:
        seqs: Sequence numbers of the marked calls, `[marks]`.
        positions: Positions of these calls in the stream, `[marks]`.
        hashes: Running hashes after them, `[marks]`.
    """

    seqs: NDArray[np.uint64]
    positions: NDArray[np.uint64]
    hashes: NDArray[np.uint64]


_NO_MARKS = RingMarks(*(np.empty(0, np.uint64) for _ in range(3)))


class _Pieces:
    """Cache of recently read chunks, shared by all rings, so that its size is bounded."""

    def __init__(self) -> None:
        self._kept: OrderedDict[tuple[int, ...], Records] = OrderedDict()

    def get(self, key: tuple[int, ...], read: Callable[[], Records]) -> Records:
        """Return the cached records of a key, or read them."""
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

    The process description and the communicators' progress are read at once, records on demand.

    Args:
        path: The file. Symbolic links are not followed.
        owned: Refuse a ring that another user could have written.

    Attributes:
        about: The process description.
        head: Number of records made.
        states: Progress of each communicator, by its number.
        activities: Fields of the process's activities.
        device: The device section, read before any record; empty if there is none.
        carried: Number of collectives that NCCL reported, by communicator; without those of none.
        since: Number of records before a communicator took over the number of another one.
        holes: Positions of records that do not fit their check, since the newest table.
        uncertain: Numbers of the communicators on which these may have been calls.
        scale: Factor on positions that leaves room for the calls of a replay; 1 in a ring without
            CUDA graphs.
        live: Whether the ring is still being written; set it before reading records.

    Raises:
        DamagedFileError: The file is not a ring, or its header contradicts its size.
        OSError: It cannot be opened.
    """

    def __init__(self, path: Path, *, owned: bool = False) -> None:
        super().__init__(path, owned=owned)
        self.live = False
        self.head = 0
        self.states: dict[int, ChannelState] = {}
        self.activities: list[tuple[int, ...]] = []
        self.device = b""
        self.carried: dict[int, int] = {}
        self.since: dict[int, int] = {}
        self.holes: list[int] = []
        self.uncertain: frozenset[int] = frozenset()
        self.scale = 1
        self._serial = next(_serials)
        self._pinned: Records | None = None
        # Less than the capacity, so that the preceding record is still there.
        self._reach = min(layout.TABLE_EVERY + 256, self.capacity - 1)
        try:
            # Before the records: a call that has been counted or has finished is recorded.
            self.device = self.read_device()
            carried = self._read_carried()
            self._find_head()
            self.carried = {n: count for n, count in carried.items() if n in self.states}
            self.activities = self.read_activities()
            self.scale = layout.MOST_GRAPH_CALLS if self.graphs_used else 1
            if self.head * self.scale > layout.MOST:
                raise DamagedFileError(f"{path} is damaged: it claims {self.head} records")
            # After the records: texts are written before the records that refer to them.
            self.texts = self.read_texts()
            self.about = self.read_about()
            self.since = sinces(self.texts)
            if self.since:
                self._find_head()
        except BaseException:
            self.close()
            raise

    @property
    def lost(self) -> int:
        """Number of records that had been overwritten when the ring was opened."""
        return max(0, self.head - self.capacity)

    @property
    def is_torn(self) -> bool:
        """Whether the newest record is not whole, as where its writer was killed in it."""
        records, _ = self.read_slots(self.head, self.head + 1)
        before = max(self.head + 1 - self.capacity, 0)
        return bool(np.any(records["begin"] != before) or np.any(records["end"] != before))

    @property
    def oldest(self) -> int:
        """Position of the oldest record that may still exist."""
        if self.live:
            return self.head - len(self._pin())
        return self.lost

    @cached_property
    def graphs(self) -> GraphTables:
        """The calls of its CUDA graphs, read on demand."""
        return read_graphs(self)

    def _read_carried(self) -> dict[int, int]:
        if not self.geometry.checked:
            data = self.read_bytes(layout.OLD_CARRIED, 4 * layout.OLD_COMMS)
            counts = np.frombuffer(data[: len(data) // 4 * 4], "<u4").tolist()
            return {number: count for number, count in enumerate(counts, 1) if count}
        data = self.read_bytes(self.geometry.carried, 8 * self.geometry.comms)
        pairs = np.frombuffer(data[: len(data) // 8 * 8], "<u4").reshape(-1, 2)
        used = np.flatnonzero(pairs.any(axis=1))
        found = {}
        for place, (made, other) in zip(used.tolist(), pairs[used].tolist(), strict=True):
            if made == other ^ 0xFFFFFFFF:
                found[place + 1] = made
            else:
                self.damage.add("carried")
        return found

    # --- records ---------------------------------------------------------------------------

    def window(self, start: int, stop: int) -> Records:
        """Return the complete records at positions ``start`` to ``stop - 1``, oldest first.

        Overwritten and incomplete records are left out.
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
            number: Number of the chunk, which begins at position ``number * CHUNK``.
            comm: The communicator's number.
        """

        def read() -> Records:
            return self._filled(
                self.collectives(self.window(number * CHUNK, (number + 1) * CHUNK), comm)
            )

        return _pieces.get((self._serial, number, comm), read)

    def collectives(self, records: Records, comm: int) -> Records:
        """Return the records that are collectives of communicator number `comm`."""
        other = layout.FIXED_P2P | layout.FIXED_STEP
        own = (records["comm"] == comm) & (records["fixed"] & other == 0)
        if comm in self.since:
            own &= records["begin"] > self.since[comm]
        return chosen(records, own)

    def _filled(self, records: Records) -> Records:
        """Return a communicator's records with a blank one for each that is damaged.

        A blank one has only position and sequence number, and the state of the one before, as a
        later call was posted. Of two damaged ones in a row, not even that is known for each.
        """
        seqs, begins = records["seq"], records["begin"]
        two = np.uint64(2)
        gaps = np.flatnonzero((np.diff(seqs) == two) & (np.diff(begins) >= two))
        if not len(gaps) or self.scale != 1 or not self.geometry.checked:
            return records
        blank = np.zeros(len(gaps), RECORD_DTYPE)
        blank["begin"] = blank["end"] = begins[gaps] + np.uint64(1)
        blank["seq"] = seqs[gaps] + np.uint64(1)
        blank["ndim"] = layout.NO_SHAPE
        blank["root"] = -1
        for name in ("comm", "time", "state"):
            blank[name] = records[name][gaps]
        filled: Records = np.insert(records, gaps + 1, blank)
        return filled

    def marks(self, comm: int) -> RingMarks:
        """Return a communicator's marks whose records are still kept."""
        low, high = np.searchsorted(self._marks["word"], np.array([comm, comm + 1], np.uint32))
        mine = self._marks[low:high]
        begins = mine["begin"]
        oldest = max(self.lost, self.since.get(comm, 0))
        low, high = np.searchsorted(begins, np.array([oldest + 1, self.head + 1], np.uint64))
        mine = mine[low:high]
        seqs = mine["seq"]
        if np.any(seqs[1:] <= seqs[:-1]):
            return _NO_MARKS  # damaged; records can be found without marks
        return RingMarks(seqs, mine["begin"] - np.uint64(1), mine["hash"])

    @cached_property
    def _marks(self) -> Entries:
        """All complete marks, sorted by communicator and position, read on demand."""
        marks = self.read_entries(self.geometry.mark_area, self.geometry.marks)
        order = np.lexsort((marks["begin"], marks["word"]))
        marks = marks.take(order)
        found: Entries = marks.compress(marks["begin"] != 0)
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
        """Copy the records of a ring that is still being written, from the newest to a gap."""
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
        """Find the number of records made, and each communicator's state at that point."""
        attempts = range(_ATTEMPTS)
        for attempt in (0, attempts[-1]) if self._is_over() else attempts:
            made = self.count
            entries = self._read_table()
            sinces = sorted({int(entry["begin"]) - 1 for _, entry in entries}, reverse=True)
            self._follow(entries, *self._believable(sinces, made, attempt), made)
            if self.holes:
                continue
            if made >= 0 and self.count == made:
                break
            # Meanwhile a fast writer may have lapped a small ring.
            newest = max((int(entry["begin"]) - 1 for _, entry in self._read_table()), default=0)
            if newest <= max([self.head, *sinces[:1]]):
                break
        if self.holes or self._is_torn_before():
            self.damage.add("records")
        if self.geometry.checked and 0 <= self.count < self.head - layout.COUNT_SLACK:
            self.damage.add("count")
        if self.lost and self.geometry.checked:
            # Records are overwritten, and with them what only the table still says.
            known = {comm for comm, _ in entries}
            if not known or max(known) > len(known):
                self.damage.add("table")

    def _is_over(self) -> bool:
        """Return whether a record that is missing now cannot be one that is being written."""
        return bool(self.exited_ns) or abs(time.time_ns() - self.heartbeat_ns) > _OVER_NS

    def _is_torn_before(self) -> bool:
        """Return whether one of the newest records before the newest table is damaged."""
        # A fast writer laps a small ring while half of it is read.
        start = max(self.lost, self.head - min(layout.TABLE_EVERY, self.capacity // 2))
        found = self.read_stable(start, self.head) if self.geometry.checked else ()
        return self.geometry.checked and len(found) < self.head - start

    def _read_table(self) -> list[tuple[int, Any]]:
        """Return pairs of communicator number and entry, from both halves of the table."""
        comms, size = self.geometry.comms, ENTRY_DTYPE.itemsize
        found: list[tuple[int, Any]] = []
        for start in range(0, comms, _COMMS_READ):
            count = min(_COMMS_READ, comms - start)
            is_used = False
            for half in (0, comms):
                table = self.read_entries(self.geometry.table + (half + start) * size, count)
                places = np.flatnonzero(table["begin"]).tolist()
                found += [(start + place + 1, table[place]) for place in places]
                is_used |= bool(places)
            if not is_used:  # numbers are given in order
                break
        return found

    def _believable(self, sinces: list[int], made: int, attempt: int) -> tuple[int, Records]:
        """Return the newest of these heads that the records confirm, and the records after it.

        Args:
            sinces: Numbers of records when tables were written.
            made: Number of records by the header; -1 if it is not known.
            attempt: Number of earlier attempts.
        """
        for since in sinces:
            if len(found := self.read_stable(max(since - 1, 0), since + self._reach)):
                return since, found
        # If the table changed at each attempt, the writer is fast; otherwise it is damaged.
        head = sinces[0] if sinces and attempt == _ATTEMPTS - 1 else 0
        if made > 0 and len(self.read_stable(made - 1, made)):
            head = made
        return head, self.read_stable(head, head + self._reach)

    def _follow(self, entries: list[tuple[int, Any]], head: int, tail: Records, made: int) -> None:
        """Read from a table entry to the end of the stream.

        Args:
            entries: The entries of the table.
            head: Number of records at one of them.
            tail: The records after it, as far as one read goes; the one before it may be first.
            made: Number of records by the header; -1 if it is not known.
        """
        self.head = head
        while len(tail) and tail["begin"][-1] > self.head:
            self.head = int(tail["begin"][-1])
            tail = self.read_stable(self.head, self.head + self._reach)
        known: dict[int, Any] = {}
        for comm, entry in entries:
            begin = int(entry["begin"])
            if begin <= self.since.get(comm, 0):
                continue
            if begin <= self.head + 1 and (comm not in known or begin > known[comm]["begin"]):
                known[comm] = entry
        self.states = {
            comm: ChannelState(int(entry["seq"]), int(entry["hash"]), int(entry["word"]))
            for comm, entry in known.items()
        }
        start = min((int(entry["begin"]) - 1 for entry in known.values()), default=0)
        start = max(start, self.lost)
        records = self.read_stable(start, self.head)
        self._count(records)
        self.states.pop(0, None)  # calls on communicators without room
        self.holes = []
        end = min(max(self.head, made), self.head + self.capacity)
        if self.geometry.checked and len(records) < end - start:
            begins = records["begin"].astype(np.int64) - 1
            self.holes = np.setdiff1d(np.arange(start, end), begins).tolist()
            newest = {comm: int(entry["begin"]) - 2 for comm, entry in known.items()}
            newest.update(zip(records["comm"].tolist(), begins.tolist(), strict=True))
            last = self.holes[-1]
            self.uncertain = frozenset(comm for comm in self.states if newest.get(comm, -1) < last)

    def _count(self, records: Records) -> None:
        """Update the states with newer records."""
        for comm, since in self.since.items():
            records = chosen(records, (records["comm"] != comm) | (records["begin"] > since))
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
    """Return the running hash before a call, given the one after it and its signature."""
    return (after - signature) * BASE_INVERSE & ((1 << 64) - 1)


def sinces(texts: Mapping[int, Sequence[str]]) -> dict[int, int]:
    """Return the number of records before each communicator that has taken over a number."""
    return {
        index: number(parse_object(text).get("since"))
        for index, text in enumerate(texts.get(layout.KIND_COMM, ()), 1)
        if '"since"' in text
    }


def bracket(seqs: NDArray[np.uint64], seq: int) -> tuple[int, int]:
    """Return the indices of the marks around `seq`: the last at or before, the first after."""
    after = int(np.searchsorted(seqs, np.uint64(seq), "right"))
    return after - 1, after
