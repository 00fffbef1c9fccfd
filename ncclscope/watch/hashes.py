"""Compare the running hashes of ranks that share a communicator, while they grow."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

from ncclscope.model.signature import stretch
from ncclscope.readers.ring.cursor import RingCursor


class HashDifference(NamedTuple):
    """Two ranks whose hashes differ after the same number of calls.

    Attributes:
        key: Key of the communicator.
        leader: Cursor of the rank with the most calls.
        cursor: Cursor of the other rank.
        seq: Number of calls after which the hashes differ.
    """

    key: str
    leader: RingCursor
    cursor: RingCursor
    seq: int


class HashComparison:
    """Compares each new hash of a rank with that of the member that made the most calls.

    Args:
        clock: Return seconds by a monotonic clock.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._verified: dict[tuple[str, Path], int] = {}
        self._bases: dict[tuple[str, Path, Path], tuple[int, int, int]] = {}
        self._left_out: frozenset[str] = frozenset()
        self._left_out_until = 0.0

    def compare(
        self, living: Sequence[RingCursor], moved: Iterable[RingCursor]
    ) -> list[HashDifference]:
        """Return the hashes that differ.

        Args:
            living: Cursors of running jobs.
            moved: Cursors that moved since the last poll.
        """
        members: dict[str, list[RingCursor]] = {}
        keys = {key for cursor in moved for key in cursor.comm_cursors}
        if self._clock() < self._left_out_until:
            keys -= self._left_out
        for cursor in living:
            if cursor.is_member:
                for key in keys & cursor.comm_cursors.keys():
                    members.setdefault(key, []).append(cursor)
        diverged = []
        for key, own in members.items():
            if len(own) < 2:
                continue
            leader = max(own, key=lambda cursor: cursor.comm_cursors[key].seq)
            for cursor in own:
                seq = cursor.comm_cursors[key].seq
                if cursor is leader or self._verified.get((key, cursor.path)) == seq:
                    continue
                self._verified[key, cursor.path] = seq
                if self._differ(key, leader, cursor):
                    diverged.append(HashDifference(key, leader, cursor, seq))
        return diverged

    def _differ(self, key: str, leader: RingCursor, cursor: RingCursor) -> bool:
        comm_cursor = cursor.comm_cursors[key]
        seq, theirs = comm_cursor.seq, leader.hash_at(key, comm_cursor.seq)
        if theirs is None or theirs == comm_cursor.hash:
            return False  # equal calls, or overwritten records, which cannot be compared
        base = self._bases.get((key, leader.path, cursor.path))
        if base is None or base[0] > seq:
            return True
        since, their_base, own_base = base
        length = seq - since
        return stretch(their_base, theirs, length) != stretch(own_base, comm_cursor.hash, length)

    def accept(self, diverged: Iterable[HashDifference]) -> None:
        """Mark differences as explained, such as another order inside a group."""
        for key, leader, cursor, seq in diverged:
            theirs, own = leader.hash_at(key, seq), cursor.hash_at(key, seq)
            if theirs is not None and own is not None:
                self._bases[key, leader.path, cursor.path] = seq, theirs, own
                self._bases[key, cursor.path, leader.path] = seq, own, theirs

    def leave_out(self, keys: frozenset[str], *, until: float) -> None:
        """Compare nothing on some communicators for a while.

        Args:
            keys: Their keys.
            until: Seconds by the clock, from when on they are compared again.
        """
        self._left_out, self._left_out_until = keys, until
