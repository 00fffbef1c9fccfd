"""Join the ends of transfers across processes and jobs."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from ncclscope.model import Rank, Run, Transfer
from ncclscope.untrusted import number, printable, text

_ORDER = {"failed": 0, "expired": 1, "waiting": 2, "started": 3, "completed": 4}
MOST_LISTED = 64
"""Transfers that have not ended and are listed one by one."""
_UNSEEN_SECONDS = 5.0
"""A process whose heartbeat is this much older than the newest one has stopped or ended."""


@dataclass(frozen=True)
class End:
    """One end of a transfer, and the process that recorded it."""

    transfer: Transfer
    process: Rank


@dataclass
class KvEngine:
    """An engine: its scheduler and its workers.

    Attributes:
        id: Id of the engine.
        processes: The processes whose records name it as their own.
        about: What its processes say of its connector.
    """

    id: str
    processes: list[Rank] = field(default_factory=list)
    about: Mapping[str, Any] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """Return ``engine prefill-0 (host, pids 12 15)``."""
        pids = " ".join(str(one.pid) for one in self.processes if one.pid)
        host = next((one.host for one in self.processes if one.host), "")
        noun = "pid" if len(self.processes) == 1 else "pids"
        parts = printable(host), f"{noun} {pids}" if pids else ""
        where = ", ".join(filter(None, parts))
        return f"engine {printable(self.id)}" + (f" ({where})" if where else "")

    @property
    def connector(self) -> str:
        """Return the name of its connector; empty when unknown."""
        return printable(text(self.about.get("connector")) or "")

    @property
    def lease_seconds(self) -> int:
        """Return for how many seconds it keeps blocks that nobody pulls; 0 for no limit."""
        return number(self.about.get("lease_seconds"), 1 << 31)

    @property
    def recomputes(self) -> bool:
        """Whether it recomputes what it could not load, and does not fail the request."""
        return self.about.get("on_failure") == "recompute"

    def gone(self) -> list[Rank]:
        """Return its processes that have ended."""
        return [one for one in self.processes if one.exited or one.alive is False]

    def stopped(self) -> list[Rank]:
        """Return its processes that a signal or a debugger has stopped."""
        return [one for one in self.processes if one.details.get("stopped") is True]


@dataclass(frozen=True)
class Joined:
    """A transfer: what all processes recorded of it.

    Attributes:
        id: The id that both ends share.
        receives: Records of the receiving engine's processes.
        sends: Records of the sending engine's processes.
    """

    id: str
    receives: tuple[End, ...] = ()
    sends: tuple[End, ...] = ()

    @property
    def receive(self) -> Transfer | None:
        """Return the receiving end: the worker that is furthest behind, else the scheduler's."""
        return _furthest_behind(self.receives)

    @property
    def send(self) -> Transfer | None:
        """Return the sending end, likewise."""
        return _furthest_behind(self.sends)

    @property
    def begun_ns(self) -> int:
        """Return when the receiving end was first recorded, or the sending one without it."""
        ends = self.receives or self.sends
        return min(one.transfer.begun_ns for one in ends)


def _furthest_behind(ends: Sequence[End]) -> Transfer | None:
    """Return one record for all processes of an engine.

    A failure in one worker is the engine's. Of the others, a worker knows more of a transfer that
    has begun than the scheduler, which has no rank.
    """
    if not ends:
        return None
    workers = [one for one in ends if one.process.rank >= 0]
    known = [one.transfer for one in workers or ends]
    scheduled = [one.transfer for one in ends if one.process.rank < 0]
    over = [one for one in scheduled if one.ended]
    if over and not any(one.state in ("failed", "expired") for one in known):
        return over[0]
    return min(known, key=lambda one: (_ORDER[one.state], -one.changed_ns))


class Engines:
    """The engines of a run and of the runs linked to it, with their transfers.

    Args:
        run: The run.
    """

    def __init__(self, run: Run) -> None:
        self.processes = run.processes
        self.by_id: dict[str, KvEngine] = {}
        for process in self.processes:
            about = process.details.get("kv_engine")
            named = about if isinstance(about, Mapping) else {}
            own = dict.fromkeys(one.engine for one in process.transfers)
            if engine := text(named.get("id")):
                own.setdefault(engine)
            for engine in own:
                found = self.by_id.setdefault(engine, KvEngine(engine))
                found.processes.append(process)
                if named.get("id") == engine:
                    found.about = named

    @cached_property
    def now_ns(self) -> int:
        """The newest time that any record or heartbeat shows, in ns since 1970."""
        times = [one.last_seen_ns or 0 for one in self.processes]
        times += [end.changed_ns for one in self.processes for end in one.transfers]
        return max(times, default=0)

    @cached_property
    def joined(self) -> tuple[Joined, ...]:
        """All transfers, in the order in which they began."""
        ends: dict[tuple[str, str], dict[str, list[End]]] = {}
        for process in self.processes:
            for one in process.transfers:
                sender = one.engine if one.direction == "send" else one.peer
                sides = ends.setdefault((sender or one.engine, one.id), {"send": [], "recv": []})
                sides[one.direction].append(End(one, process))
        found = [
            Joined(id_, tuple(sides["recv"]), tuple(sides["send"]))
            for (_, id_), sides in ends.items()
        ]
        return tuple(sorted(found, key=lambda one: (one.begun_ns, one.id)))

    @property
    def waiting(self) -> Iterator[Joined]:
        """Return the transfers of which an end has not ended."""
        for one in self.joined:
            if any(end is not None and not end.ended for end in (one.receive, one.send)):
                yield one

    def to_dict(self) -> dict[str, Any]:
        """Return the engines, the number of transfers by state, and those that have not ended."""
        states = Counter(
            end.state for one in self.joined if (end := one.receive or one.send) is not None
        )
        return {
            "engines": {
                engine.id: {
                    "connector": engine.connector or None,
                    "processes": [
                        {"host": one.host, "pid": one.pid, "rank": one.rank}
                        for one in engine.processes
                    ],
                }
                for engine in self.by_id.values()
            },
            "states": dict(states),
            "waiting": [
                {
                    "receive": None if one.receive is None else one.receive.to_dict(),
                    "send": None if one.send is None else one.send.to_dict(),
                    "seconds": round(self.seconds_since(one.begun_ns), 1),
                }
                for one in itertools.islice(self.waiting, MOST_LISTED)
            ],
        }

    def seconds_since(self, time_ns: int) -> float:
        """Return the seconds from a time to the newest record."""
        return max(0.0, (self.now_ns - time_ns) / 1e9)

    def silent(self, engine: KvEngine) -> list[Rank]:
        """Return the engine's living processes whose heartbeat ends before that of others."""
        return [
            one
            for one in engine.processes
            if one.last_seen_ns and self.seconds_since(one.last_seen_ns) > _UNSEEN_SECONDS
        ]

    def generating(self, engine: KvEngine) -> list[Rank]:
        """Return the engine's workers that have run a step with tokens in the last seconds."""
        return [
            one
            for one in engine.processes
            if (step := one.activities.get("step")) is not None
            and step.detail != "execute_dummy_batch"
            and self.seconds_since(step.until_ns or step.since_ns) < _UNSEEN_SECONDS
        ]
