"""Record the rings of a small job in one process, the same bytes each time.

A :class:`Script` says what each process of a job does and when. :func:`record` lets real tracers
write the rings on a clock of its own, and copies each ring three times: early, in the middle of
the job and at its end.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from unittest.mock import patch

import ncclscope.ring.activity
import ncclscope.ring.transfers
import ncclscope.ring.writer  # noqa: F401  (its clock is replaced)
from ncclscope.ring import layout
from ncclscope.tracing.tracer import Tracer
from tests.corpus.workload import BEGAN_NS

__all__ = ["AGES", "MEMORY", "Process", "Rings", "Script", "SetBack", "record"]

MEMORY = "/dev/shm" if os.path.isdir("/dev/shm") else None
"""Where rings are written."""
AGES = ("early", "middle", "late")
_BOOTED_NS = 86_400 * 10**9
"""The monotonic clock when a job begins."""

Rings = Mapping[str, tuple[bytes, bytes, bytes]]
"""The contents of each ring at the three ages, by file name."""


@dataclass(frozen=True)
class Process:
    """One process of a job.

    Attributes:
        rank: Its rank.
        world_size: World size of its job.
        details: What its ring says of it.
        last_seen_ns: Its last heartbeat.
        exits: Whether it exits normally then.
    """

    rank: int
    world_size: int
    details: Mapping[str, Any]
    last_seen_ns: int
    exits: bool = False


@dataclass(frozen=True)
class SetBack:
    """A host clock that somebody sets back while a job runs.

    Attributes:
        at_ns: When.
        by_ns: By how much.
        places: The processes on that host, by their place in the script.
    """

    at_ns: int
    by_ns: int
    places: tuple[int, ...]


@dataclass
class Script:
    """What the processes of a job do.

    Attributes:
        processes: The processes.
        events: When, which process by its place, and what it does with its tracer.
        set_back: A change of the host's clock, if there is one.
    """

    processes: list[Process] = field(default_factory=list)
    events: list[tuple[int, int, Callable[[Tracer], None]]] = field(default_factory=list)
    set_back: SetBack | None = None

    def at(self, time_ns: int, place: int, act: Callable[[Tracer], None]) -> None:
        """Add an event."""
        self.events.append((time_ns, place, act))

    def elsewhere(self, **details: Any) -> Script:
        """Return the same script with other details of its processes."""
        processes = [
            replace(process, details={**process.details, **details}) for process in self.processes
        ]
        return replace(self, processes=processes)


class _Clock:
    """The clocks of the machines on which a script plays.

    Attributes:
        now_ns: Time in the script.
        place: The process that acts.
    """

    def __init__(self, script: Script) -> None:
        self.now_ns = BEGAN_NS
        self.place = 0
        self._set_back = script.set_back

    def wall(self) -> int:
        """Return the host's clock, nanoseconds since 1970."""
        change = self._set_back
        if change is not None and self.place in change.places and self.now_ns >= change.at_ns:
            return self.now_ns - change.by_ns
        return self.now_ns

    def monotonic(self, *_which: int) -> int:
        """Return a clock that nobody sets."""
        return self.now_ns - BEGAN_NS + _BOOTED_NS

    @contextmanager
    def installed(self) -> Iterator[None]:
        """Let the writer in Python use these clocks; the one in C has its own."""
        own = {
            time.time_ns: self.wall,
            time.monotonic_ns: self.monotonic,
            time.clock_gettime_ns: self.monotonic,
        }
        with ExitStack() as stack:
            stack.enter_context(patch.dict(os.environ, NCCLSCOPE_NATIVE="0"))
            for name, module in list(sys.modules.items()):
                if name.startswith(("ncclscope.clock", "ncclscope.ring.", "ncclscope.tracing.")):
                    for attribute, value in list(vars(module).items()):
                        if callable(value) and value in own:
                            stack.enter_context(patch.object(module, attribute, own[value]))
            for function, replacement in own.items():
                stack.enter_context(patch.object(time, function.__name__, replacement))
            yield


def record(script: Script) -> Rings:
    """Write the rings of a job."""
    clock = _Clock(script)
    events = sorted(script.events, key=lambda event: event[:2])
    halts = (len(events) // 3, 2 * len(events) // 3)
    with TemporaryDirectory(prefix="ncclscope-damage-", dir=MEMORY) as folder, clock.installed():
        tracers = []
        for place, process in enumerate(script.processes):
            clock.place = place
            tracers.append(_tracer(Path(folder), process))
        copies: list[list[bytes]] = []
        for number, (when, place, act) in enumerate(events):
            if number in halts:
                copies.append(_copy(clock, tracers, [clock.now_ns] * len(tracers)))
            clock.now_ns, clock.place = when, place
            act(tracers[place])
        last_seen = [process.last_seen_ns for process in script.processes]
        copies.append(_copy(clock, tracers, last_seen, script.processes))
        for tracer in tracers:
            tracer.detach()
        names = [f"process-{place}{layout.SUFFIX}" for place in range(len(tracers))]
        early, middle, late = copies
        return {
            name: (early[place], middle[place], late[place]) for place, name in enumerate(names)
        }


def _tracer(directory: Path, process: Process) -> Tracer:
    """Return a tracer of a process that is the same wherever it is played."""
    return Tracer(
        directory,
        rank=process.rank,
        world_size=process.world_size,
        capacity=layout.MIN_CAPACITY,
        heartbeat=False,
        details={
            "host": "node-0",
            "pid": 1000 + process.rank,
            "boot_id": "",
            "parent": 1,
            "ancestors": [],
            "pid_namespace": 1,
            "start_ticks": 100 + process.rank,
            "started_ns": BEGAN_NS,
            "argv": ["python", "train.py"],
            "python": "3.12.0",
            "versions": {"torch": "2.13.0"},
            "run": "",
            "gpu": process.rank,
            **process.details,
        },
    )


def _copy(
    clock: _Clock,
    tracers: Sequence[Tracer],
    seen_ns: Sequence[int],
    ending: Sequence[Process] = (),
) -> list[bytes]:
    """Store a heartbeat in each ring, or the end of the process, and return the rings."""
    copies = []
    for place, tracer in enumerate(tracers):
        clock.place, clock.now_ns = place, seen_ns[place]
        tracer.ring.store_heartbeat()
        if ending and ending[place].exits:
            tracer.close()
        copies.append(Path(tracer.path).read_bytes())
    return copies
