"""A node of a watched job: says what is new in its rings, in some hundred bytes a rank.

A report holds a row for each ring in which something has changed since the one before, and
describes each communicator once:

========= ===================================================================================
row       contents
========= ===================================================================================
who       path, rank, host, pid, gpu, start, role, whether it lives, whether it has ended
moved     seconds since something changed; places that change whenever anything does
strands   communicator, seq, hash, transfers, whether it tells, whether in a group, whether
          the newest call is under way, and that call: operation, shape, time, state
========= ===================================================================================
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ncclscope import settings
from ncclscope.model import Communicator
from ncclscope.readers.ring.cursor import RingCursor
from ncclscope.remote.spelling import Kinds, pack, unpack
from ncclscope.watch.jobs import Rings

__all__ = ["Reporter"]


class Reporter:
    """Watches the rings of one node.

    Args:
        paths: Directories; what NCCLSCOPE_DIR names when empty.
    """

    def __init__(self, paths: Sequence[str] = ()) -> None:
        named = settings.directory()
        roots = [Path(path) for path in paths] or ([Path(named)] if named else [])
        self._rings = [Rings(root) for root in roots]
        self._told: dict[Path, object] = {}
        self._comms: dict[Communicator, int] = {}

    def report(self) -> bytes:
        """Look at all rings and return what is new, in a message."""
        now, wall_ns = time.monotonic(), time.time_ns()
        rows: list[Any] = []
        described = len(self._comms)
        here = self._look(now, wall_ns)
        for path, words in here.items():
            state = (words.signature, words.rank, words.exited, words.alive)
            if self._told.get(path) != state:
                self._told[path] = state
                rows.append(self._row(words, now))
        gone = [path for path in self._told if path not in here]
        for path in gone:
            del self._told[path]
        return pack(
            {
                "rows": rows,
                "gone": [str(path) for path in gone],
                "comms": [
                    [comm.key, comm.label, list(comm.ranks), comm.backend]
                    for comm in list(self._comms)[described:]
                ],
                "notes": [note for rings in self._rings for note in rings.notes.values()],
            }
        )

    def hashes(self, request: bytes) -> bytes:
        """Return running hashes.

        Args:
            request: Paths, keys and numbers of calls.
        """
        found: list[list[int | None]] = []
        for path, key, seqs in unpack(request):
            words = self._known(path)
            known = words is not None and key in words.comm_cursors
            found.append([words.hash_at(key, seq) if words and known else None for seq in seqs])
        return pack(found)

    def newest(self, request: bytes) -> bytes:
        """Return the newest calls of a ring.

        Args:
            request: Its path, how many, and the communicator's key or null.
        """
        path, count, key = unpack(request)
        words = self._known(path)
        calls = [] if words is None else words.newest(count, key)
        kinds = Kinds()
        return pack(
            {
                "calls": kinds.spell(calls),
                "kinds": kinds.table,
                "keys": [call.comm for call in calls],
            }
        )

    def _known(self, path: str) -> RingCursor | None:
        found = (rings.cursors.get(Path(path)) for rings in self._rings)
        return next((words for words in found if words is not None), None)

    def _look(self, now: float, wall_ns: int) -> dict[Path, RingCursor]:
        found: dict[Path, RingCursor] = {}
        for rings in self._rings:
            rings.scan(now, wall_ns)
            rings.poll(now)
            found.update(rings.cursors)
        return found

    def _row(self, words: RingCursor, now: float) -> list[Any]:
        tail, states = words.signature
        who = [
            *(str(words.path), words.rank, words.host, words.pid, words.gpu, words.started_ns),
            *(str(words.about.get("role") or ""), words.alive, words.exited),
        ]
        pending = words.pending()
        comm_cursors = []
        for key, comm_cursor in words.comm_cursors.items():
            number = self._comms.setdefault(comm_cursor.comm, len(self._comms))
            last = words.last(key)
            comm_cursors.append(
                [
                    *(number, comm_cursor.seq, comm_cursor.hash, comm_cursor.p2p),
                    *(comm_cursor.tells, comm_cursor.in_group, key in pending),
                    last and [last.op, last.shape, last.time_ns, int(last.state)],
                ]
            )
        return [who, [round(now - words.moved_at, 3), tail, states.hex()], comm_cursors]
