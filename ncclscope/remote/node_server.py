"""The server on a node: summarise its rings, and answer queries about them.

Messages are those of :mod:`ncclscope.remote.spelling`. A request is a list of queries. The
response holds a list of answers and a table of kinds:

============================== ==============================================================
query                          answer
============================== ==============================================================
calls, ring, key, start, stop  calls start to stop - 1 that are kept, as columns
hashes, ring, key, seqs        running hash after each of these calls; null if not kept
signatures, ring, key, ...     signatures of calls start to stop - 1
newest, ring, key, count       the last steps (key null) or transfers; all if count is null
members, digest                ranks of a communicator
============================== ==============================================================
"""

from __future__ import annotations

import hashlib
import json
import socket
import time
from collections.abc import Sequence
from dataclasses import astuple
from pathlib import Path
from typing import Any

from ncclscope import settings
from ncclscope.engine.waits.order import WINDOWS, order_of
from ncclscope.engine.waits.waits import last_states
from ncclscope.errors import DamagedFileError
from ncclscope.model import Call, Communicator, Rank
from ncclscope.model.log import CallLog, newest_of
from ncclscope.model.text import plural
from ncclscope.readers import cannot_text, input_files
from ncclscope.readers.ring.ranks import read_ring
from ncclscope.readers.untraced import read_untraced
from ncclscope.remote.spelling import Kinds, pack, spell_steps, spell_untraced, unpack
from ncclscope.resources import economy, without_collection
from ncclscope.ring import layout
from ncclscope.ring.place import UNTRACED_SUFFIX
from ncclscope.untrusted import check_kind, printable

_LONG = ("argv", "environ", "cwd", "path")
_HEARTBEAT_NS = 2_000_000_000


class NodeServer:
    """The rings of one node.

    Args:
        paths: Directories or files; NCCLSCOPE_DIR if empty.
    """

    def __init__(self, paths: Sequence[str] = ()) -> None:
        self._notes: list[str] = []
        self._ranks: list[Rank] = []
        self._untraced: list[Rank] = []
        self._members: dict[str, tuple[int, ...]] = {}
        named = settings.directory()
        roots = [Path(path) for path in paths] or ([Path(named)] if named else [])
        self._others = self._refused = 0
        # The files stay open as long as queries may arrive.
        with economy():
            for path in self._find(roots):
                self._read(path)

    def summary(self) -> bytes:
        """Return a message that summarises every rank."""
        kinds = Kinds()
        comms: dict[Communicator, int] = {}
        graphs: dict[str, int] = {}
        with without_collection():
            ranks = [self._reduce(rank, kinds, comms, graphs) for rank in self._ranks]
        spelled = []
        for comm in comms:
            digest = hashlib.blake2b(repr(comm.ranks).encode(), digest_size=8).hexdigest()
            self._members[digest] = comm.ranks
            spelled.append([comm.key, comm.label, comm.backend, digest])
        if self._others:
            self._notes.append(
                f"{socket.gethostname()} has {plural(self._others, 'file')} other than rings: "
                f"ncclscope collect fetches them"
            )
        return pack(
            {
                "host": socket.gethostname(),
                "notes": self._notes,
                "kinds": kinds.table,
                "comms": spelled,
                "graphs": [json.loads(graph) for graph in graphs],
                "ranks": ranks,
                "untraced": spell_untraced(self._untraced),
                "refused": self._refused,
            }
        )

    def answer(self, request: bytes) -> bytes:
        """Return a message with the answers to a request's queries."""
        kinds = Kinds()
        answers = [self._ask(kinds, *question) for question in unpack(request)]
        return pack({"kinds": kinds.table, "answers": answers})

    # --- reading -----------------------------------------------------------------------------

    def _find(self, roots: Sequence[Path]) -> Sequence[Path]:
        found: list[Path] = []
        for root in roots:
            if not root.exists():
                self._notes.append(
                    f"{printable(str(root))} does not exist on {socket.gethostname()}"
                )
                continue
            for path in input_files([root], self._notes):
                if path.suffix in (layout.SUFFIX, UNTRACED_SUFFIX):
                    found.append(path)
                else:
                    self._others += 1
        return found

    def _read(self, path: Path) -> None:
        try:
            check_kind(path)
            if path.suffix == UNTRACED_SUFFIX:
                stone = read_untraced(path)
                self._untraced += [] if stone is None else [stone]
                return
            if not path.stat().st_size:
                raise DamagedFileError(f"{path} is empty")
            rank = read_ring(path)
            self._ranks.append(rank)
            # Without its metadata, a ring may be that of any rank.
            self._refused += rank.rank < 0 and not rank.pid
        except DamagedFileError as error:
            self._notes.append(printable(str(error)))
            self._refused += 1
        except OSError as error:
            self._notes.append(cannot_text(path, error))
            self._refused += 1

    # --- summarising -------------------------------------------------------------------------

    def _reduce(
        self, rank: Rank, kinds: Kinds, comms: dict[Communicator, int], graphs: dict[str, int]
    ) -> dict[str, Any]:
        details = {name: value for name, value in rank.details.items() if name not in _LONG}
        fresh = abs(time.time_ns() - (rank.last_seen_ns or 0)) < _HEARTBEAT_NS
        if rank.alive and fresh:
            # Nodes are read one after another, so the client's clock cannot decide this.
            details["beating"] = True
        logs = []
        for log in rank.logs.values():
            number = comms.setdefault(log.communicator, len(comms))
            calls = kinds.spell(_asked_of_all(log))
            logs.append([number, log.calls, log.first, log.fingerprint(log.calls), calls])
        ops = {op for log in rank.logs.values() for op in getattr(log, "ops", ())}
        return {
            "about": [
                *(rank.rank, rank.world_size, rank.host, rank.pid, rank.gpu, dict(rank.labels)),
                *(rank.records, rank.lost, rank.started_ns, rank.last_seen_ns),
                *(rank.exited, rank.alive, printable(rank.source)),
            ],
            "details": details,
            "activities": [astuple(one) for one in rank.activities.values()],
            "ops": sorted(ops),
            "logs": logs,
            "p2p": [
                [
                    comms.setdefault(rank.logs[key].communicator, len(comms)),
                    kinds.spell(newest_of(calls, 1)),
                ]
                for key, calls in rank.p2p.items()
                if key in rank.logs
            ],
            "device": [
                [comms.setdefault(rank.logs[key].communicator, len(comms)), *astuple(pending)]
                for key, pending in rank.device.items()
                if key in rank.logs
            ],
            "orders": [order_of(rank, window) for window in WINDOWS],
            "step": spell_steps(newest_of(rank.steps, 1)),
            # Ranks of a program capture the same graphs, so each graph is sent once.
            "graphs": [
                graphs.setdefault(json.dumps(astuple(graph)), len(graphs))
                for graph in rank.graphs.values()
            ],
        }

    # --- answering ---------------------------------------------------------------------------

    def _ask(self, kinds: Kinds, what: str, *rest: Any) -> Any:
        if what == "members":
            return list(self._members[rest[0]])
        ring, key, *rest_ = rest
        rank = self._ranks[ring]
        if what == "newest":
            return self._newest(rank, key, rest_[0], kinds)
        log = rank.logs[key]
        if what == "calls":
            return kinds.spell(log.span(*rest_))
        if what == "signatures":
            return list(log.signatures(*rest_))
        if what == "hashes":
            return [
                log.fingerprint(seq) if log.first - 1 <= seq <= log.calls else None
                for seq in rest_[0]
            ]
        raise DamagedFileError("unknown query")

    def _newest(self, rank: Rank, key: str | None, count: int | None, kinds: Kinds) -> Any:
        if key is None:
            return spell_steps(rank.steps if count is None else newest_of(rank.steps, count))
        calls = rank.p2p[key]
        return kinds.spell(calls if count is None else newest_of(calls, count))


def _asked_of_all(log: CallLog) -> list[Call]:
    """Return the newest calls of a log, which the analysis needs of every rank."""
    found = {call.seq: call for call in last_states(log)}
    return [found[seq] for seq in sorted(found)]
