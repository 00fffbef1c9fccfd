"""Report what changed in the rings of a watched node, in some hundred bytes per rank.

A report has a row for each ring that changed since the last report, and describes each
communicator once. Reports are numbered from 0 on, so that the client knows one that begins anew,
and each has the node's wall clock, since only the node's own clock dates its waits:

========= ===================================================================================
row       contents
========= ===================================================================================
who       path, rank, host, pid, GPU, start, role, run, whether it is alive, whether it exited
moved     seconds since the last change; the ring's head and states, which mark any change
cursors   for each communicator: its number, seq, hash, transfers, whether the backend reports
          completion, whether in a group, whether the newest call is pending, and that call's
          operation, shape, time and state
waits     activities under way: since when, and the number of the name
========= ===================================================================================

A report names all processes without a record if they have changed since the last report.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ncclscope import settings
from ncclscope.model import Communicator
from ncclscope.readers.ring.cursor import RingCursor
from ncclscope.remote.spelling import Kinds, pack, spell_untraced, unpack
from ncclscope.untrusted import text
from ncclscope.watch.jobs import Rings


class Reporter:
    """Watches the rings of one node.

    Args:
        paths: Directories; NCCLSCOPE_DIR if empty.
    """

    def __init__(self, paths: Sequence[str] = ()) -> None:
        named = settings.directory()
        roots = [Path(path) for path in paths] or ([Path(named)] if named else [])
        self._rings = Rings(*roots)
        self._reported: dict[Path, object] = {}
        self._untraced: frozenset[Path] = frozenset()
        self._comms: dict[Communicator, int] = {}
        self._number = 0

    def report(self) -> bytes:
        """Poll all rings and return a message with what changed."""
        now, wall_ns = time.monotonic(), time.time_ns()
        rows: list[Any] = []
        described = len(self._comms)
        self._rings.scan(now, wall_ns)
        self._rings.poll(now)
        here = self._rings.cursors
        for path, cursor in here.items():
            waits = () if cursor.over else cursor.waits(wall_ns)
            state = (cursor.signature, cursor.rank, cursor.exited, cursor.alive, waits)
            if self._reported.get(path) != state:
                self._reported[path] = state
                rows.append(self._row(cursor, now, waits))
        gone = [path for path in self._reported if path not in here]
        for path in gone:
            del self._reported[path]
        number, self._number = self._number, self._number + 1
        before, self._untraced = self._untraced, frozenset(self._rings.untraced)
        has_changed = self._untraced != before
        untraced = {"untraced": spell_untraced(self._rings.untraced.values())}
        return pack(
            {
                "number": number,
                "wall_ns": wall_ns,
                "rows": rows,
                "gone": [str(path) for path in gone],
                "comms": [
                    [comm.key, comm.label, list(comm.ranks), comm.backend]
                    for comm in list(self._comms)[described:]
                ],
                "notes": list(self._rings.notes.values()),
                **(untraced if has_changed else {}),
            }
        )

    def hashes(self, request: bytes) -> bytes:
        """Return a message with running hashes; null for those that are not known.

        Args:
            request: A list of (path, communicator key, sequence numbers).
        """
        found: list[list[int | None]] = []
        for path, key, seqs in unpack(request):
            cursor = self._rings.cursors.get(Path(path))
            known = cursor is not None and key in cursor.comm_cursors
            found.append([cursor.hash_at(key, seq) if cursor and known else None for seq in seqs])
        return pack(found)

    def newest(self, request: bytes) -> bytes:
        """Return a message with the newest calls of a ring.

        Args:
            request: Its path, the number of calls, and a communicator key or null for all.
        """
        path, count, key = unpack(request)
        cursor = self._rings.cursors.get(Path(path))
        calls = [] if cursor is None else cursor.newest(count, key)
        kinds = Kinds()
        return pack(
            {
                "calls": kinds.spell(calls),
                "kinds": kinds.table,
                "keys": [call.comm for call in calls],
            }
        )

    def _row(self, cursor: RingCursor, now: float, waits: Sequence[Sequence[int]]) -> list[Any]:
        tail, states = cursor.signature
        who = [
            *(str(cursor.path), cursor.rank, cursor.host, cursor.pid, cursor.gpu),
            *(cursor.started_ns, str(cursor.about.get("role") or "")),
            text(cursor.about.get("run")),
            *(cursor.alive, cursor.exited),
        ]
        pending = cursor.pending()
        comm_cursors = []
        for key, comm_cursor in cursor.comm_cursors.items():
            number = self._comms.setdefault(comm_cursor.comm, len(self._comms))
            last = cursor.last(key)
            comm_cursors.append(
                [
                    *(number, comm_cursor.seq, comm_cursor.hash, comm_cursor.p2p),
                    *(comm_cursor.tells, comm_cursor.in_group, key in pending),
                    last and [last.op, last.shape, last.time_ns, int(last.state)],
                ]
            )
        moved = [round(now - cursor.moved_at, 3), tail, states.hex()]
        return [who, moved, comm_cursors, waits]
