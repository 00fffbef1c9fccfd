"""How far the processes of other nodes have come, as their nodes report it."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from ncclscope.errors import DamagedFileError, InputError
from ncclscope.model import Call, Communicator, Rank, Run, State
from ncclscope.readers.ring.cursor import CommCursor, LastCall, RingCursor
from ncclscope.remote.fleet import Client, Fleet
from ncclscope.remote.run import open_remote_run, remote_ranks
from ncclscope.remote.spelling import pack, read_calls, unpack
from ncclscope.untrusted import printable
from ncclscope.watch.jobs import Rings

__all__ = ["RemoteCursor", "RemoteRings", "ReportingClient"]

_KEPT = 4096
"""Hashes that were asked for are kept for so many calls."""


class ReportingClient(Client, Protocol):
    """A way to reach reporters, besides depots."""

    def reports(self) -> Mapping[int, bytes | str]:
        """Ask all nodes what is new; of one that fails, why."""
        ...

    def hashes(self, requests: Mapping[int, bytes]) -> Mapping[int, bytes]:
        """Ask some nodes for running hashes; one that fails is left out."""
        ...

    def newest(self, requests: Mapping[int, bytes]) -> Mapping[int, bytes]:
        """Ask some nodes for the newest calls of a ring; one that fails is left out."""
        ...


class RemoteCursor(RingCursor):
    """A ring on another node, as it was last reported.

    Args:
        rings: Whom it belongs to.
        node: The number of its node.
        path: Its path there, behind that number.
    """

    def __init__(self, rings: RemoteRings, node: int, path: Path) -> None:
        self.path = path
        self.node = node
        self.comm_cursors = {}
        self.about = {}
        self._rings = rings
        self._pending: dict[str, bool] = {}
        self._lasts: dict[str, LastCall | None] = {}
        self._known: dict[tuple[str, int], int] = {}
        self._mark: tuple[int, bytes] = (-1, b"")

    def take(self, row: Sequence[Any], comms: Sequence[Communicator], now: float) -> bool:
        """Take in a row of a report; return whether calls have moved."""
        who, (age, tail, states), comm_cursors = row
        (_, self.rank, self.host, self.pid, self.gpu, self.started_ns) = who[:6]
        role, self._alive, self._exited = who[6:]
        self.about = {"role": role}
        mark = (int(tail), bytes.fromhex(states))
        moved, self._mark = mark != self._mark, mark
        self.head = mark[0]
        if moved:
            self.moved_at = now - age
        self.comm_cursors = {}
        for number, seq, hash, p2p, tells, in_group, pending, last in comm_cursors:
            comm = comms[number]
            self.comm_cursors[comm.key] = CommCursor(
                comm, seq, hash, p2p, tells, {"group": 1} if in_group else None
            )
            self._pending[comm.key] = pending
            self._lasts[comm.key] = last and LastCall(
                last[0], None if last[1] is None else tuple(last[1]), last[2], State(last[3])
            )
        self._known = {
            (key, seq): hash
            for (key, seq), hash in self._known.items()
            if key in self.comm_cursors and seq >= self.comm_cursors[key].seq - _KEPT
        }
        return moved

    @property
    def signature(self) -> tuple[int, bytes]:
        """What changes whenever anything does."""
        return self._mark

    def last(self, key: str) -> LastCall | None:
        """Return the newest collective on a communicator."""
        return self._lasts.get(key)

    def knows(self, key: str, seq: int) -> bool:
        """Return whether the hash after a call need not be asked for."""
        return seq in (0, self.comm_cursors[key].seq) or (key, seq) in self._known

    def learn(self, key: str, seq: int, hash: int) -> None:
        """Keep a hash that was asked for."""
        self._known[key, seq] = hash

    def hash_at(self, key: str, seq: int) -> int | None:
        """Return the running hash after a call; None where it is not known."""
        comm_cursor = self.comm_cursors[key]
        if seq > comm_cursor.seq:
            return None
        found = comm_cursor.kept(seq)
        return self._known.get((key, seq)) if found is None else found

    def newest(self, count: int, key: str | None = None) -> list[Call]:
        """Ask for the newest calls; none where the node does not answer."""
        return self._rings.newest(self, count, key)

    def read(self) -> Rank | None:
        """Has its node reduce the ring, for a diagnosis."""
        return self._rings.ranks().get(self.path)


class RemoteRings(Rings):
    """The rings of all nodes.

    Args:
        asker: How the nodes are reached.
    """

    def __init__(self, asker: ReportingClient) -> None:
        super().__init__(Path())
        self._asker = asker
        self._comms: dict[int, list[Communicator]] = {}
        self._ranks: dict[Path, Rank] | None = None
        self.received = 0

    def scan(self, now: float, wall_ns: int) -> None:
        """Return nodes look for new rings themselves."""

    def poll(self, now: float) -> list[RingCursor]:
        """Ask all nodes what is new, and for the hashes where ranks are not equally far."""
        self._ranks = None
        moved: list[RingCursor] = []
        for node, data in self._asker.reports().items():
            place = Path(printable(self._asker.names[node]))
            try:
                if isinstance(data, str):
                    raise DamagedFileError(f"{place} does not report: {printable(data)}")
                self.received += len(data)
                moved += self._take(node, unpack(data), now)
                self.notes.pop(place, None)
            except (DamagedFileError, KeyError, TypeError, ValueError, IndexError) as error:
                known = isinstance(error, DamagedFileError)
                self.notes[place] = str(error) if known else f"{place} reports what is no report"
        self._ask_for(moved)
        return moved

    def run(self) -> Run:
        """Has all nodes reduce what they have."""
        return open_remote_run(Fleet(self._asker))

    def newest(self, cursor: RemoteCursor, count: int, key: str | None) -> list[Call]:
        """Ask a node for the newest calls of one of its rings."""
        request = pack([_there(cursor.path), count, key])
        found: list[Call] = []
        for data in self._asker.newest({cursor.node: request}).values():
            self.received += len(data)
            with contextlib.suppress(DamagedFileError, KeyError, TypeError, ValueError, IndexError):
                told = unpack(data)
                calls = read_calls(told["calls"], told["kinds"], "")
                found = [
                    replace(call, comm=str(own))
                    for call, own in zip(calls, told["keys"], strict=True)
                ]
        return found

    def ranks(self) -> Mapping[Path, Rank]:
        """Return the processes of all nodes as a diagnosis wants them, once for each look."""
        if self._ranks is None:
            notes: list[str] = []
            try:
                found = remote_ranks(Fleet(self._asker), notes)
            except InputError:
                found = []
            self._ranks = {Path(rank.source): rank for rank in found}
        return self._ranks

    def _take(self, node: int, told: Mapping[str, Any], now: float) -> list[RingCursor]:
        comms = self._comms.setdefault(node, [])
        for key, label, ranks, backend in told["comms"]:
            comms.append(Communicator(key, label, tuple(ranks), backend))
        for path in told["gone"]:
            self.cursors.pop(_place(node, path), None)
        moved: list[RingCursor] = []
        for row in told["rows"]:
            place = _place(node, row[0][0])
            cursor = self.cursors.get(place)
            if not isinstance(cursor, RemoteCursor):
                cursor = self.cursors[place] = RemoteCursor(self, node, place)
            if cursor.take(row, comms, now):
                moved.append(cursor)
        return moved

    def _ask_for(self, moved: Sequence[RingCursor]) -> None:
        """Ask those ahead for their hashes where the others stand, each node once."""
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
            for same in ahead.values():  # equal hashes: one of them speaks for all
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
        for node, data in self._asker.hashes(requests).items():
            self.received += len(data)
            for one, found in zip(asked[node], unpack(data), strict=True):
                for seq, hash in zip(one.seqs, found, strict=True):
                    for cursor in one.cursors if isinstance(hash, int) else ():
                        cursor.learn(one.key, seq, hash)


class _Lack(NamedTuple):
    """Hashes that are to be asked for: of which communicator, and who has them."""

    key: str
    seqs: list[int]
    cursors: list[RemoteCursor]


def _place(node: int, path: str) -> Path:
    """Return the path of a ring on a node; two nodes may have the same."""
    return Path(f"{node}:{path}")


def _there(place: Path) -> str:
    return str(place).partition(":")[2]
