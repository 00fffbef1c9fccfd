"""The rings of all nodes of a watched job."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from ncclscope.errors import DamagedFileError, InputError
from ncclscope.model import Call, Communicator, Rank, Run
from ncclscope.readers.ring.cursor import RingCursor
from ncclscope.readers.untraced import separate_untraced
from ncclscope.remote.checked import as_count, as_integer, as_integers, as_list, as_text
from ncclscope.remote.cursor import RemoteCursor
from ncclscope.remote.fleet import INVALID, Client, Fleet, LostNodeError
from ncclscope.remote.run import Unread, open_remote_run, remote_ranks
from ncclscope.remote.spelling import pack, read_calls, read_untraced_rows, unpack
from ncclscope.untrusted import integer, printable
from ncclscope.watch.jobs import Rings

_FAILED_SECONDS = 10.0
"""Seconds for which a node that did not answer a diagnosis counts as lost."""
_CLOCKS_DIFFER_NS = 5_000_000_000
"""Wall clocks that differ by less count as equal: reports take time."""


class ReportingClient(Client, Protocol):
    """A client that also reaches the nodes' reporters."""

    def reports(self) -> Mapping[int, bytes | str]:
        """Return each node's report, or the reason why it failed, by node number."""
        ...

    def ask_reporters(self, method: str, requests: Mapping[int, bytes]) -> Mapping[int, bytes]:
        """Return what reporters answer by node number, without nodes that fail.

        Args:
            method: Name of a method of :class:`~ncclscope.remote.reporter.Reporter`.
            requests: What it takes, packed, by node number.
        """
        ...


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
        self._silent: dict[int, str] = {}
        self._failed: dict[int, tuple[str, float]] = {}
        """Nodes that report but did not answer a diagnosis: why, and when."""
        self._asked: dict[int, float] = {}
        self._reported: dict[int, float] = {}
        self._ahead_ns: dict[int, int] = {}
        self._now, self._wall_ns = 0.0, 0
        self.received = 0

    @property
    def silent(self) -> Mapping[str, str]:
        """Nodes that do not report, or did not answer lately, each with the reason."""
        failed = {node: reason for node, (reason, _) in self._failed.items()}
        names = self._client.names
        return {
            printable(names[n]): printable(why) for n, why in {**failed, **self._silent}.items()
        }

    def is_lost(self, cursor: RingCursor) -> bool:
        """Return whether the node of a ring does not report, or did not answer lately."""
        node = cursor.node if isinstance(cursor, RemoteCursor) else -1
        return node in self._silent or node in self._failed

    def seen_at(self, cursor: RingCursor, now: float) -> float:
        """Return when the last report of a ring's node was requested.

        Args:
            cursor: Cursor of the ring.
            now: Seconds by the watcher's clock.
        """
        node = cursor.node if isinstance(cursor, RemoteCursor) else -1
        return self._reported.get(node, now)

    def leave_out(self, error: InputError) -> bool:
        """Return whether an error is about one node, which is silent from now on."""
        if not isinstance(error, LostNodeError):
            return False
        name = printable(self._client.names[error.node])
        reason = error.message.removeprefix(name).lstrip(": ")
        self._failed[error.node] = reason, self._now
        self._ranks = None  # logs ask for those of other ranks, too
        return True

    def scan(self, now: float, wall_ns: int, *, at_once: bool = False) -> bool:
        """Note the time; each node finds its own new rings.

        Args:
            now: Seconds by a monotonic clock.
            wall_ns: Nanoseconds since 1970 at the same moment.
            at_once: Without meaning here.
        """
        self._wall_ns = wall_ns
        return False

    def poll(self, now: float) -> list[RingCursor]:
        """Request all nodes' reports, and hashes for ranks that lag behind."""
        self._ranks = None
        self._now = now
        self._failed = {
            node: one for node, one in self._failed.items() if now - one[1] < _FAILED_SECONDS
        }
        moved: list[RingCursor] = []
        for node in range(len(self._client.names)):
            self._asked.setdefault(node, now)
        began = time.monotonic()
        reports = self._client.reports()
        # An age in a report ends between its request and now: the later end accuses nobody.
        here = now + (time.monotonic() - began)
        for node, data in reports.items():
            asked = self._asked.pop(node)
            if isinstance(data, str):
                self._silent[node] = data
                continue
            self.received += len(data)
            try:
                moved += self._take(node, unpack(data), here)
            except INVALID:
                self._silent[node] = "it sent an invalid report"
                continue
            if self._silent.pop(node, None) is not None:
                self._failed.pop(node, None)
            self._reported[node] = asked
        self.notes = {
            Path(name): f"{name} does not report: {reason}" for name, reason in self.silent.items()
        }
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
        for data in self._client.ask_reporters("newest", {cursor.node: request}).values():
            self.received += len(data)
            with contextlib.suppress(*INVALID):
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
            lost = {node: reason for node, (reason, _) in self._failed.items()}
            left_out = {*lost, *self._silent}
            try:
                found = remote_ranks(Fleet(self._client), Unread(), lost)
            except InputError:
                found = []
            for node in lost.keys() - left_out:
                self.leave_out(LostNodeError(node, lost[node]))
            self._ranks = {Path(rank.source): rank for rank in found}
            # A report that did not arrive may have named them.
            self.untraced |= {Path(one.source): one for one in separate_untraced(found)[1]}
        return self._ranks

    def _take(self, node: int, report: Mapping[str, Any], now: float) -> list[RingCursor]:
        begins = as_count(report["number"]) == 0
        ahead_ns = self._clock_of(node, as_integer(report["wall_ns"]))
        comms = [] if begins else self._comms.setdefault(node, [])
        comms += [
            Communicator(as_text(key), as_text(label), as_integers(ranks), as_text(backend))
            for key, label, ranks, backend in report["comms"]
        ]
        self._comms[node] = comms
        if begins or "untraced" in report:
            self._note_untraced(node, read_untraced_rows(report.get("untraced", []), node))
        gone = [_place(node, as_text(path)) for path in report["gone"]]
        if begins:  # a first report, also after a reconnection, has a row for each ring
            here = {_place(node, as_text(row[0][0])) for row in report["rows"]}
            gone += [
                place
                for place, cursor in self.cursors.items()
                if isinstance(cursor, RemoteCursor) and cursor.node == node and place not in here
            ]
        for place in gone:
            self.cursors.pop(place, None)
        moved: list[RingCursor] = []
        for row in report["rows"]:
            place = _place(node, as_text(row[0][0]))
            cursor = self.cursors.get(place)
            if not isinstance(cursor, RemoteCursor):
                cursor = RemoteCursor(self, node, place)
            if cursor.take(row, comms, now, ahead_ns):
                moved.append(cursor)
            self.cursors[place] = cursor
        return moved

    def _note_untraced(self, node: int, processes: Sequence[Rank]) -> None:
        """Replace the processes without a record that a node has named."""
        others = {
            path: one
            for path, one in self.untraced.items()
            if not str(path).startswith(str(_place(node, "")))
        }
        self.untraced = {**others, **{Path(one.source): one for one in processes}}

    def _clock_of(self, node: int, wall_ns: int) -> int:
        """Return the nanoseconds that a node's wall clock is ahead; 0 for less than some seconds.

        The value changes only where the clock jumps, so that activities keep their beginning.
        """
        before = self._ahead_ns.get(node, 0)
        ahead = wall_ns - self._wall_ns if self._wall_ns else 0
        if abs(ahead - before) > _CLOCKS_DIFFER_NS:
            self._ahead_ns[node] = before = ahead
        return before

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
        for node, data in self._client.ask_reporters("hashes", requests).items():
            self.received += len(data)
            try:
                found = [as_list(one) for one in as_list(unpack(data))]
            except (DamagedFileError, TypeError):
                continue  # they stay unknown, and are requested again
            for one, hashes in zip(asked[node], found, strict=False):
                for seq, hash in zip(one.seqs, hashes, strict=False):
                    for cursor in one.cursors if integer(hash) is not None and hash >= 0 else ():
                        cursor.learn(one.key, seq, hash)


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
