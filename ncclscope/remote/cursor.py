"""Cursors of rings on other nodes, updated from their nodes' reports."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol

from ncclscope.model import Call, Communicator, Rank, State
from ncclscope.readers.ring.cursor import CommCursor, LastCall, RingCursor
from ncclscope.remote.checked import (
    as_count,
    as_flag,
    as_hash,
    as_integer,
    as_integers,
    as_text,
    optional,
)

_KEPT = 4096
"""Requested hashes are kept for this many calls behind the newest one."""


class Nodes(Protocol):
    """The nodes of a watched job, which answer for their cursors."""

    def is_lost(self, cursor: RingCursor) -> bool:
        """Return whether the node of a ring does not report, or did not answer lately."""
        ...

    def seen_at(self, cursor: RingCursor, now: float) -> float:
        """Return when the last report of a ring's node was requested; `now` if there is none."""
        ...

    def newest(self, cursor: RemoteCursor, count: int, key: str | None) -> list[Call]:
        """Request the newest calls of a ring from its node.

        Args:
            cursor: The ring's.
            count: How many at most.
            key: Of the communicator whose calls are meant; None for all of the ring.
        """
        ...

    def ranks(self) -> Mapping[Path, Rank]:
        """Return the ranks of all nodes for a diagnosis."""
        ...


class RemoteCursor(RingCursor):
    """Cursor of a ring on another node, as last reported.

    Args:
        rings: The nodes that it belongs to.
        node: Number of its node.
        path: ``NODE:PATH``: that number and its path on the node.
    """

    is_local = False

    def __init__(self, rings: Nodes, node: int, path: Path) -> None:
        self.path = path
        self.node = node
        self.rank = -1
        self.host, self.pid, self.started_ns = "", 0, 0
        self.gpu = None
        self.moved_at = 0.0
        self.alive, self.exited = None, False
        self.comm_cursors = {}
        self.about = {}
        self._rings = rings
        self._pending: dict[str, bool] = {}
        self._lasts: dict[str, LastCall | None] = {}
        self._known: dict[tuple[str, int], int] = {}
        self._mark: tuple[int, bytes] = (-1, b"")
        self._waits: dict[tuple[int, int], int] = {}
        """When each activity under way began, by the watcher's clock, by the node's own values."""
        self._ahead_ns = 0

    def take(
        self, row: Sequence[Any], comms: Sequence[Communicator], now: float, ahead_ns: int
    ) -> bool:
        """Apply a row of a report; return whether calls have moved.

        Args:
            row: The row; see :mod:`ncclscope.remote.reporter`.
            comms: All communicators that the node has described so far.
            now: Seconds by the watcher's clock when the report was here.
            ahead_ns: Nanoseconds that the node's wall clock is ahead of the watcher's.
        """
        # Validate all of it before applying any of it.
        who, (age, tail, states), rows, waits = row
        (_, rank, host, pid, gpu, started_ns, role, run, alive, exited) = who
        mark = (as_count(tail), bytes.fromhex(states))
        comm_cursors = [_comm_cursor(comms, *fields) for fields in rows]
        begun = [(as_count(since), as_count(name)) for since, name in waits]
        self.rank, self.host, self.pid = as_integer(rank), as_text(host), as_integer(pid)
        self.gpu, self.started_ns = optional(as_integer)(gpu), as_integer(started_ns)
        self.about = {"role": as_text(role), "run": optional(as_text)(run)}
        # A clock that jumps makes no activity longer: its beginning was known before.
        self._waits = {one: self._waits.get(one, one[0] - ahead_ns) for one in begun}
        self._ahead_ns = ahead_ns
        self.alive, self.exited = optional(as_flag)(alive), as_flag(exited)
        moved, self._mark = mark != self._mark, mark
        self.head = mark[0]
        if moved:
            self.moved_at = now - float(age)
        self.comm_cursors = {}
        for comm_cursor, pending, last in comm_cursors:
            key = comm_cursor.comm.key
            self.comm_cursors[key] = comm_cursor
            self._pending[key], self._lasts[key] = pending, last
        self._known = {
            (key, seq): hash
            for (key, seq), hash in self._known.items()
            if key in self.comm_cursors and seq >= self.comm_cursors[key].seq - _KEPT
        }
        return moved

    @property
    def signature(self) -> tuple[int, bytes]:
        """A value that changes whenever the ring does."""
        return self._mark

    def waits(self, wall_ns: int) -> tuple[tuple[int, int], ...]:
        """Return the activities under way at the last report; none if the node is lost."""
        if self._rings.is_lost(self):
            return ()
        return tuple((since, name) for (_, name), since in self._waits.items())

    def last(self, key: str) -> LastCall | None:
        """Return the newest collective on a communicator."""
        return self._lasts.get(key)

    def knows(self, key: str, seq: int) -> bool:
        """Return whether the hash after call `seq` is known without a request."""
        return seq in (0, self.comm_cursors[key].seq) or (key, seq) in self._known

    def learn(self, key: str, seq: int, hash: int) -> None:
        """Keep a requested hash.

        Args:
            key: Key of the communicator.
            seq: Number of the call after which the hash holds.
            hash: Running hash.
        """
        self._known[key, seq] = hash

    def _read_hash(self, key: str, seq: int) -> int | None:
        return self._known.get((key, seq))

    def newest(self, count: int, key: str | None = None) -> list[Call]:
        """Request the newest calls; empty if the node does not answer."""
        return self._rings.newest(self, count, key)

    def read(self) -> Rank | None:
        """Return the rank for a diagnosis, from its node's summary."""
        rank = self._rings.ranks().get(self.path)
        if rank is None:
            return None
        if rank.alive and not rank.exited:
            rank = replace(rank, details={**rank.details, "quiet_seconds": self._quiet(rank)})
        if not (self._ahead_ns or self._waits):
            return rank
        begun = {since: shifted for (since, _), shifted in self._waits.items()}
        shift = self._ahead_ns
        activities = {
            name: replace(
                one,
                since_ns=begun.get(one.since_ns, one.since_ns - shift),
                until_ns=None if one.until_ns is None else one.until_ns - shift,
            )
            for name, one in rank.activities.items()
        }
        return replace(rank, activities=activities)

    def _quiet(self, rank: Rank) -> float:
        """Return the seconds for which a rank has not moved; 0 if it moved since the last report.

        Its host's wall clock may jump, and differs from the watcher's.
        """
        calls = {key: log.calls for key, log in rank.logs.items()}
        if any(calls.get(key, one.seq) != one.seq for key, one in self.comm_cursors.items()):
            return 0.0
        return max(0.0, self._rings.seen_at(self, self.moved_at) - self.moved_at)


def _comm_cursor(
    comms: Sequence[Communicator],
    number: int,
    seq: Any,
    hash: Any,
    p2p: Any,
    tells: Any,
    in_group: Any,
    pending: Any,
    last: Any,
) -> tuple[CommCursor, bool, LastCall | None]:
    """Return a communicator's cursor, whether its newest call is pending, and that call."""
    newest = None
    if last is not None:
        op, shape, time_ns, state = last
        shape = optional(as_integers)(shape)
        newest = LastCall(as_text(op), shape, as_integer(time_ns), State(state))
    return (
        CommCursor(
            comms[number],
            as_count(seq),
            as_hash(hash),
            as_count(p2p),
            as_flag(tells),
            {"group": 1} if as_flag(in_group) else None,
        ),
        as_flag(pending),
        newest,
    )
