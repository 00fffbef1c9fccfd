"""One communicator's records in a ring, found by number without reading all of it."""

from __future__ import annotations

import numpy as np

from ncclscope.ring import layout
from ncclscope.ring.image import RECORD_DTYPE, Records
from ncclscope.ring.reader import CHUNK, RingFile, bracket

__all__ = ["Strand"]

PIECES_KEPT = 4
"""Chunks of which a strand keeps its own records."""


class Strand:
    """The collectives of one communicator, as they lie in the file.

    Args:
        ring: The ring.
        number: The communicator's in the ring.
    """

    def __init__(self, ring: RingFile, number: int) -> None:
        self._ring = ring
        self._number = number
        self._seqs, self._positions, self._hashes = ring.marks(number)
        self._pieces: dict[int, Records] = {}

    def mark(self, seq: int) -> int | None:
        """The running hash after a call that a mark stands at; None where none does."""
        place, _ = bracket(self._seqs, seq)
        return self._hashes[place] if place >= 0 and self._seqs[place] == seq else None

    def oldest(self) -> Records:
        """The oldest record that is kept; empty when none is."""
        ring = self._ring
        for start in range(ring.oldest, ring.head, CHUNK):
            found = self._mine(ring.window(start, start + CHUNK))
            if len(found):
                return found[:1]
        return np.empty(0, RECORD_DTYPE)

    def around(self, seq: int, first: int, last: int) -> Records:
        """The records in that chunk of the ring which holds a call.

        The chunk lies between the marks around the call, which are far apart where the
        communicator is used once in a while. Its place there is guessed from the number.

        Args:
            seq: The call's number.
            first: That of the oldest call that is kept.
            last: That of the newest.

        Returns:
            Empty where no chunk holds it.
        """
        before, after = bracket(self._seqs, seq)
        start, stop = self._ring.oldest, self._ring.head - 1
        if before >= 0:
            start, first = max(start, self._positions[before]), self._seqs[before]
        if after < len(self._positions):
            stop, last = self._positions[after], self._seqs[after]
        low, high = start // CHUNK, stop // CHUNK
        place = low + (high - low) * (seq - first) // max(last - first, 1)
        step = 1  # a good guess is near, a bad one far: each miss goes twice as far
        while low <= high:
            middle = number = max(low, min(place, high))
            found = self._piece(number)
            while not len(found) and number > low:
                number -= 1
                found = self._piece(number)
            if len(found) and seq < found["seq"][0]:
                high = number - 1
                place = number - step
            elif len(found) and seq <= found["seq"][-1]:
                return found
            else:
                low = middle + 1
                place = middle + step
            step *= 2
        return np.empty(0, RECORD_DTYPE)

    def _piece(self, number: int) -> Records:
        """The records in one chunk."""
        piece = self._pieces.get(number)
        if piece is None:
            piece = self._mine(self._ring.window(number * CHUNK, (number + 1) * CHUNK))
            if len(self._pieces) >= PIECES_KEPT:
                self._pieces.clear()
            self._pieces[number] = piece
        return piece

    def _mine(self, records: Records) -> Records:
        other = layout.FIXED_P2P | layout.FIXED_STEP
        mine: Records = records[(records["comm"] == self._number) & (records["fixed"] & other == 0)]
        return mine
