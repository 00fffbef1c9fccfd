"""Find one communicator's records in a ring by sequence number, without reading all of it."""

from __future__ import annotations

from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from ncclscope.ring.image import RECORD_DTYPE, Records
from ncclscope.ring.reader import CHUNK, RingFile, RingMarks, bracket


class CommRecords:
    """The collectives of one communicator in a ring file.

    Args:
        ring: The ring.
        number: The communicator's number in the ring.
    """

    def __init__(self, ring: RingFile, number: int) -> None:
        self._ring = ring
        self._number = number

    @cached_property
    def _marks(self) -> RingMarks:
        return self._ring.marks(self._number)

    def firsts(self, records: Records) -> NDArray[np.uint64]:
        """Return the sequence number of the first call of each record, `[records]`."""
        lasts: NDArray[np.uint64] = records["seq"]
        if self._ring.scale == 1:
            return lasts
        table = self._ring.graphs.table(self._number)
        return lasts - table.spans(records).astype(np.uint64) + np.uint64(1)

    def mark(self, seq: int) -> int | None:
        """Return the running hash after call `seq` if there is a mark at it, else None."""
        marks = self._marks
        place, _ = bracket(marks.seqs, seq)
        return int(marks.hashes[place]) if place >= 0 and marks.seqs[place] == seq else None

    def oldest(self) -> Records:
        """Return the oldest kept record, `[1]`; empty if none is kept."""
        ring = self._ring
        for start in range(ring.oldest, ring.head, CHUNK):
            found = ring.collectives(ring.window(start, start + CHUNK), self._number)
            if len(found):
                return found[:1]
        return np.empty(0, RECORD_DTYPE)

    def around(self, seq: int, first: int, last: int) -> Records:
        """Return the communicator's records in the chunk that holds a call.

        The chunk is between the marks around the call. They are far apart if the communicator is
        rarely used, so the search starts at the position that interpolation gives.

        Args:
            seq: Sequence number of the call.
            first: Sequence number of the oldest kept call.
            last: Sequence number of the newest call.

        Returns:
            The records; empty if no chunk holds the call.
        """
        seqs, positions, _ = self._marks
        before, after = bracket(seqs, seq)
        start, stop = self._ring.oldest, self._ring.head - 1
        if before >= 0:
            start, first = max(start, int(positions[before])), int(seqs[before])
        if after < len(positions):
            stop, last = int(positions[after]), int(seqs[after])
        low, high = start // CHUNK, stop // CHUNK
        place = low + (high - low) * (seq - first) // max(last - first, 1)
        step = 1  # doubles with each miss: a bad guess may be far off
        while low <= high:
            middle = number = max(low, min(place, high))
            found = self._ring.piece(number, self._number)
            while not len(found) and number > low:
                number -= 1
                found = self._ring.piece(number, self._number)
            if len(found) and seq < self.firsts(found[:1])[0]:
                high = number - 1
                place = number - step
            elif len(found) and seq <= found["seq"][-1]:
                return found
            else:
                low = middle + 1
                place = middle + step
            step *= 2
        return np.empty(0, RECORD_DTYPE)
