"""Cursors of rings on other nodes, updated from their nodes' reports."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from ncclscope.errors import DamagedFileError, InputError
from ncclscope.model import Call, Communicator, Rank, Run, State
from ncclscope.readers.ring.cursor import CommCursor, LastCall, RingCursor
from ncclscope.remote.checked import (
    as_count,
    as_flag,
    as_hash,
    as_integer,
    as_integers,
    as_list,
    as_text,
    optional,
)
from ncclscope.remote.fleet import Client, Fleet
from ncclscope.remote.run import open_remote_run, remote_ranks
from ncclscope.remote.spelling import pack, read_calls, unpack
from ncclscope.untrusted import integer, printable
from ncclscope.watch.jobs import Rings

__all__ = ["RemoteCursor", "RemoteRings", "ReportingClient"]

_KEPT = 4096
"""Requested hashes are kept for this many calls behind the newest one."""


class ReportingClient(Client, Protocol):
    """A client that also reaches the nodes' reporters."""

    def reports(self) -> Mapping[int, bytes | str]:
        """Return each node's report, or the reason why it failed, by node number."""
        ...

    def hashes(self, requests: Mapping[int, bytes]) -> Mapping[int, bytes]:
        """Return running hashes by node number, without nodes that fail."""
        ...

    def newest(self, requests: Mapping[int, bytes]) -> Mapping[int, bytes]:
        """Return the newest calls of rings by node number, without nodes that fail."""
        ...


class RemoteCursor(RingCursor):
    """Cursor of a ring on another node, as last reported.

    Args:
        rings: The collection that it belongs to.
        node: Number of its node.
        path: ``NODE:PATH``: that number and its path on the node.
    """

    is_local = False

    def __init__(self, rings: RemoteRings, node: int, path: Path) -> None:
        self.path = path
        self.node = node
        self.rank = -1
        self.host, self.pid, self.started_ns = "", 0, 0
        self.gpu = None
        self.moved_at = 0.0
        self._alive, self._exited = None, False
        self.comm_cursors = {}
        self.about = {}
        self._rings = rings
        self._pending: dict[str, bool] = {}
        self._lasts: dict[str, LastCall | None] = {}
        self._known: dict[tuple[str, int], int] = {}
        self._mark: tuple[int, bytes] = (-1, b"")
        self._waits: tuple[tuple[int, int], ...] = ()

    def take(self, row: Sequence[Any], comms: Sequence[Communicator], now: float) -> bool:
        """Apply a row of a report; return whether calls have moved.

        Args:
            row: The row; see :mod:`ncclscope.remote.reporter`.
            comms: All communicators that the node has described so far.
            now: Seconds by the watcher's clock.
        """
        # Validate all of it before applying any of it.
        who, (age, tail, states), rows, waits = row
        (_, rank, host, pid, gpu, started_ns, role, run, alive, exited) = who
        mark = (as_count(tail), bytes.fromhex(states))
        comm_cursors = [_comm_cursor(comms, *fields) for fields in rows]
        waits = tuple((as_count(since), as_count(name)) for since, name in waits)
        self.rank, self.host, self.pid = as_integer(rank), as_text(host), as_integer(pid)
        self.gpu, self.started_ns = optional(as_integer, gpu), as_integer(started_ns)
        self.about = {"role": as_text(role), "run": optional(as_text, run)}
        self._waits = waits
        self._alive, self._exited = optional(as_flag, alive), as_flag(exited)
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
        """Return the activities that were under way at the last report."""
        return self._waits

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

    def hash_at(self, key: str, seq: int) -> int | None:
        """Return the running hash after call `seq`, or None if it is unknown."""
        comm_cursor = self.comm_cursors[key]
        if seq > comm_cursor.seq:
            return None
        found = comm_cursor.kept(seq)
        return self._known.get((key, seq)) if found is None else found

    def newest(self, count: int, key: str | None = None) -> list[Call]:
        """Request the newest calls; empty if the node does not answer."""
        return self._rings.newest(self, count, key)

    def read(self) -> Rank | None:
        """Return the rank for a diagnosis, from its node's summary."""
        return self._rings.ranks().get(self.path)


class RemoteRings(Rings):
    """The rings of all nodes.

    Args:
        client: Reaches the nodes.
    """

    def __init__(self, client: ReportingClient) -> None:
        super().__init__(Path())
        self._client = client
        self._comms: dict[int, list[Communicator]] = {}
        self._ranks: dict[Path, Rank] | None = None
        self.received = 0

    def scan(self, now: float, wall_ns: int, *, at_once: bool = False) -> bool:
        """Do nothing: each node finds its own new rings."""
        return False

    def poll(self, now: float) -> list[RingCursor]:
        """Request all nodes' reports, and hashes for ranks that lag behind."""
        self._ranks = None
        moved: list[RingCursor] = []
        for node, data in self._client.reports().items():
            place = Path(printable(self._client.names[node]))
            try:
                if isinstance(data, str):
                    raise DamagedFileError(f"{place} does not report: {printable(data)}")
                self.received += len(data)
                moved += self._take(node, unpack(data), now)
                self.notes.pop(place, None)
            except (DamagedFileError, KeyError, TypeError, ValueError, IndexError) as error:
                known = isinstance(error, DamagedFileError)
                self.notes[place] = str(error) if known else f"{place} sent an invalid report"
        self._ask_for(moved)
        return moved

    def run(self) -> Run:
        """Return a run made of all nodes' summaries."""
        return open_remote_run(Fleet(self._client))

    def newest(self, cursor: RemoteCursor, count: int, key: str | None) -> list[Call]:
        """Request the newest calls of a ring from its node.

        Args:
            cursor: Cursor of the ring.
            count: Maximum number of calls.
            key: Key of the communicator; None for all.
        """
        request = pack([_there(cursor.path), count, key])
        found: list[Call] = []
        for data in self._client.newest({cursor.node: request}).values():
            self.received += len(data)
            with contextlib.suppress(DamagedFileError, KeyError, TypeError, ValueError, IndexError):
                answer = unpack(data)
                calls = read_calls(answer["calls"], answer["kinds"], "")
                found = [
                    replace(call, comm=str(own))
                    for call, own in zip(calls, answer["keys"], strict=True)
                ]
        return found

    def ranks(self) -> Mapping[Path, Rank]:
        """Return the ranks of all nodes for a diagnosis, requested once per poll."""
        if self._ranks is None:
            notes: list[str] = []
            try:
                found = remote_ranks(Fleet(self._client), notes)
            except InputError:
                found = []
            self._ranks = {Path(rank.source): rank for rank in found}
        return self._ranks

    def _take(self, node: int, report: Mapping[str, Any], now: float) -> list[RingCursor]:
        comms = self._comms.setdefault(node, [])
        comms += [
            Communicator(as_text(key), as_text(label), as_integers(ranks), as_text(backend))
            for key, label, ranks, backend in report["comms"]
        ]
        for path in report["gone"]:
            self.cursors.pop(_place(node, as_text(path)), None)
        moved: list[RingCursor] = []
        for row in report["rows"]:
            place = _place(node, as_text(row[0][0]))
            cursor = self.cursors.get(place)
            if not isinstance(cursor, RemoteCursor):
                cursor = RemoteCursor(self, node, place)
            if cursor.take(row, comms, now):
                moved.append(cursor)
            self.cursors[place] = cursor
        return moved

    def _ask_for(self, moved: Sequence[RingCursor]) -> None:
        """Request hashes from the leading ranks at the lagging ranks' calls, once per node."""
        keys = {key for cursor in moved for key in cursor.comm_cursors}
        members: dict[str, list[RemoteCursor]] = {}
        for cursor in self.cursors.values():
            if isinstance(cursor, RemoteCursor) and cursor.rank >= 0:
                for key in keys & cursor.comm_cursors.keys():
                    members.setdefault(key, []).append(cursor)
        asked: dict[int, list[_Lack]] = {}
        for key, own in members.items():
            most = max(cursor.comm_cursors[key].seq for cursor in own)
            seqs = {cursor.comm_cursors[key].seq for cursor in own} - {most}
            ahead: dict[int, list[RemoteCursor]] = {}
            for cursor in own:
                if cursor.comm_cursors[key].seq == most:
                    ahead.setdefault(cursor.comm_cursors[key].hash, []).append(cursor)
            for same in ahead.values():  # equal hashes: one rank answers for all of them
                lacking = [seq for seq in sorted(seqs) if not same[0].knows(key, seq)]
                if lacking:
                    asked.setdefault(same[0].node, []).append(_Lack(key, lacking, same))
        if asked:
            self._learn(asked)

    def _learn(self, asked: Mapping[int, Sequence[_Lack]]) -> None:
        requests = {
            node: pack([[_there(one.cursors[0].path), one.key, one.seqs] for one in lacking])
            for node, lacking in asked.items()
        }
        for node, data in self._client.hashes(requests).items():
            self.received += len(data)
            try:
                found = [as_list(one) for one in as_list(unpack(data))]
            except (DamagedFileError, TypeError):
                continue  # they stay unknown, and are requested again
            for one, hashes in zip(asked[node], found, strict=False):
                for seq, hash in zip(one.seqs, hashes, strict=False):
                    for cursor in one.cursors if integer(hash) is not None and hash >= 0 else ():
                        cursor.learn(one.key, seq, hash)


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
        shape = optional(as_integers, shape)
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


class _Lack(NamedTuple):
    """Hashes to request: the communicator, the calls, and the cursors that need them."""

    key: str
    seqs: list[int]
    cursors: list[RemoteCursor]


def _place(node: int, path: str) -> Path:
    """Return a unique path for a ring; two nodes may use the same path."""
    return Path(f"{node}:{path}")


def _there(place: Path) -> str:
    return str(place).partition(":")[2]
