"""The current position of each rank, from all data sources: rings, activities, and stacks.

A ring shows in which recorded call a rank waits. If it waits in none, only its stack or its
activities show whether it is busy or waits in a call that no probe records.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from ncclscope.engine.case import Case
from ncclscope.engine.processes.motion import Motion, read_motions
from ncclscope.engine.waits.engine_steps import is_idle
from ncclscope.engine.waits.waits import is_in_transfer
from ncclscope.model import Activity, Call, Rank
from ncclscope.model.snapshot import Frame
from ncclscope.wording.names import call_on, call_text
from ncclscope.wording.waits import ACTIVITIES, Place, activity_text

_OF_TRANSFERS = ("p2p", "wait")
"""What stacks may show of a rank in a transfer besides its operation."""


@dataclass(frozen=True)
class Position:
    """The current position of one rank.

    Attributes:
        rank: Global rank.
        state: ``waiting`` (in a collective), ``elsewhere`` (alive, in none), ``moving``,
            ``stopped`` (by a signal), ``ended``, ``idle`` (waits for work), or ``unknown``.
        text: The position in words; empty where it is unknown.
        call: The recorded call that it waits in; None where that is not recorded.
        frame: The program's innermost frame in its stack; None without a stack.
        seconds: Seconds that it has been there; None where that is not known.
    """

    rank: int
    state: str
    text: str = ""
    call: Call | None = None
    frame: Frame | None = None
    seconds: float | None = None

    @property
    def is_unrecorded(self) -> bool:
        """Whether it waits in a collective that no probe records."""
        return self.state == "waiting" and self.call is None


class Positions(Mapping[int, Position]):
    """The position of each rank, by rank; also of ranks that left no record.

    Positions are computed lazily: a rank may have to be read from another node.

    Args:
        case: The case.
    """

    def __init__(self, case: Case) -> None:
        self._case = case
        snapshot = case.run.snapshot
        self._motions = {} if snapshot is None else read_motions(snapshot)
        self._found: dict[int, Position] = {}

    def __getitem__(self, number: int) -> Position:
        if number not in self._found:
            rank = self._case.run.by_rank.get(number)
            if rank is None and not 0 <= number < self._case.run.expected:
                raise KeyError(number)
            self._found[number] = (
                Position(number, "unknown")
                if rank is None
                else _position(self._case, rank, self._motions.get(number))
            )
        return self._found[number]

    def __iter__(self) -> Iterator[int]:
        yield from self._case.run.by_rank
        yield from self._case.run.missing

    def __len__(self) -> int:
        return len(self._case.run.by_rank) + len(self._case.run.missing)


def _position(case: Case, rank: Rank, motion: Motion | None) -> Position:
    number, quiet = rank.rank, case.quiet_seconds(rank)
    frame = None if motion is None else motion.user_place or motion.place
    if rank.exited or (motion is not None and motion.condition == "ended"):
        return Position(number, "ended", str(Place.HAS_ENDED), frame=frame)
    if motion is not None and motion.condition == "stopped":
        return Position(number, "stopped", Place.STOPPED.of(motion.text), frame=frame)
    pending = case.waits.pending_calls.get(number)
    if pending is not None:
        where = call_on(pending.comm, pending.call)
        return Position(number, "waiting", where, pending.call, frame, quiet)
    if is_idle(rank):
        return Position(number, "idle", str(Place.IDLE), frame=frame, seconds=quiet)
    if motion is not None and motion.condition == "moving":
        return Position(number, "moving", motion.text, frame=frame)
    if motion is not None and motion.is_waiting and number not in case.waits.heads:
        last = rank.last_call(transfers=True) if is_in_transfer(rank) else None
        if last is not None and motion.op in (last.op, *_OF_TRANSFERS):
            where = call_on(case.run.communicators[last.comm], last)
            return Position(number, "waiting", where, last, frame, quiet)
        return Position(number, "waiting", motion.text, frame=frame, seconds=quiet)
    if (doing := _unrecorded(rank.activities)) is not None:
        seconds = None
        if rank.last_seen_ns is not None:
            seconds = max(0.0, (rank.last_seen_ns - doing.since_ns) / 1e9)
        return Position(number, "waiting", activity_text(doing), frame=frame, seconds=seconds)
    if case.how_it_ended(rank) is not None:
        return Position(number, "ended", str(Place.HAS_ENDED), frame=frame)
    if motion is not None and motion.condition == "still":
        return Position(number, "elsewhere", motion.text, frame=frame, seconds=quiet)
    if number in case.waits.heads:
        head = case.waits.heads[number]
        return Position(number, "waiting", call_text(head), head, frame, quiet)
    return Position(number, "unknown", frame=frame, seconds=quiet)


def is_inside_unrecorded(rank: Rank) -> bool:
    """Return whether a process reports an activity that posts unrecorded collectives."""
    return _unrecorded(rank.activities) is not None


def _unrecorded(activities: Mapping[str, Activity]) -> Activity | None:
    """Return a process's current activity that posts collectives past all probes, if any."""
    lasting = [
        one for name, one in activities.items() if one.until_ns is None and name in ACTIVITIES
    ]
    return max(lasting, key=lambda one: one.since_ns, default=None)
