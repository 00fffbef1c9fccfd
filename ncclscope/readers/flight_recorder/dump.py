"""Build a Flight Recorder dump from its entries."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from ncclscope.model import State
from ncclscope.model.threads import SEVERAL
from ncclscope.readers.budget import Budget
from ncclscope.readers.flight_recorder.entry import Entry, posted, together
from ncclscope.readers.flight_recorder.group import (
    MAX_SEQ,
    Group,
    Held,
    add_status,
    group_of_entry,
    members_of,
    tells,
)
from ncclscope.untrusted import integer, text

_STATES = {state.word: state for state in State}
_STAMPS = ("time_discovered_started_ns", "time_discovered_completed_ns")
_CHECK_EVERY = 32
"""Entries between two checks of the budget: each may share the maximum number of tensors."""
_MOST_FRAMES = 256
_LONGEST_THREAD = 64
"""Characters of the identifier of a thread."""
_LATEST = 64
"""Entries at the end of a dump that are searched for its newest time stamp."""


@dataclass(frozen=True)
class Dump:
    """One dump.

    Attributes:
        groups: Calls and status by group.
        whole: Whether it holds all calls since the process began.
        newest_ns: Time at which its last call was enqueued, in ns since 1970; 0 without calls.
        pace_ns: Longest time in ns between two of its last calls.
        overdue: Calls that did not complete within their timeout, by group: the watchdog
            aborted them, or the dump has later time stamps.
        tells: Whether it reports completion of each call.
        splits: Whether it holds the splits of all_to_all calls.
        size: Minimum number of ranks of the job, from all groups that it describes.
    """

    groups: Mapping[Group, Held]
    whole: bool
    newest_ns: int
    pace_ns: int
    overdue: Mapping[Group, tuple[Entry, ...]]
    tells: bool
    splits: bool
    size: int

    @property
    def timed_out(self) -> int:
        """Number of overdue calls."""
        return sum(map(len, self.overdue.values()))


class DumpBuilder:
    """Builds a dump from its dictionary.

    Args:
        value: The dictionary.
        budget: Limits on time and memory.
    """

    def __init__(self, value: Mapping[str, Any], budget: Budget) -> None:
        self._value = value
        self._budget = budget
        self._members = members_of(value.get("pg_config"), budget)
        self._groups: dict[Group, Held] = {}
        self._numbers: dict[str, str] = {}
        self._helds: dict[Any, Held] = {}
        """Containers by what an entry says of its group, undecoded."""
        self._stacks: dict[tuple[int, ...], list[Any]] = {}
        self._newest = 0
        self._threads: dict[str, int] = {}
        """Number of each thread, from 1, by what entries call it."""

    def build(self) -> Dump:
        """Return the dump.

        Raises:
            DamagedFileError: The budget is spent.
        """
        entries = self._value.get("entries")
        if not isinstance(entries, list):
            entries = []
        for position, entry in enumerate(entries):
            if not position % _CHECK_EVERY:
                self._budget.check(f"{position} calls")
            if isinstance(entry, dict):
                self._take(entry, position)
        return self._finish(entries)

    def _take(self, entry: Mapping[str, Any], position: int) -> None:
        get = entry.get
        call = posted(entry)
        held = self._held(get("process_group"), get("pg_id"), call.backend)
        seq = integer(get("collective_seq_id")) or 0
        if not 0 <= seq < MAX_SEQ:
            return
        state = get("state")
        own = Entry(
            seq,
            position,
            call,
            _STATES.get(state, State.SCHEDULED) if isinstance(state, str) else State.SCHEDULED,
            get("retired") is True,
            integer(get("time_created_ns")),
            integer(get("timeout_ms")) or 0,
            self._stack(get("frames")),
            self._thread(get("thread_id")),
        )
        if not call.p2p:
            held.calls.append(own)
            return
        held.reached = max(held.reached, seq)
        if call.op != "coalesced":
            sent = integer(get("p2p_seq_id")) or len(held.sent) + 1
            held.sent.append(own._replace(seq=sent))

    def _stack(self, frames: Any) -> Any:
        """Return a stack, undecoded; the same list for all entries with the same frames."""
        if not isinstance(frames, list) or len(frames) > _MOST_FRAMES:
            return frames
        return self._stacks.setdefault(tuple(map(id, frames)), frames)

    def _thread(self, name: Any) -> int:
        """Return the number of a thread; 0 without a name."""
        if not isinstance(name, str) or not name or len(name) > _LONGEST_THREAD:
            return 0
        return self._threads.setdefault(name, min(len(self._threads) + 1, SEVERAL))

    def _held(self, where: Any, number: Any, backend: str) -> Held:
        """Return the container of a group's calls.

        Args:
            where: The entry's ``process_group``: name and description.
            number: The entry's ``pg_id``.
            backend: Backend of the group.
        """
        try:
            found = self._helds.get((where, number, backend))
        except TypeError:  # a list, as JSON has it
            found = None
        if found is not None:
            return found
        group = group_of_entry(where, backend, self._members)
        self._numbers.setdefault((text(number) or "?")[:20], group.name)
        found = self._groups.setdefault(group, Held())
        if isinstance(where, tuple) and isinstance(number, int):
            self._helds[where, number, backend] = found
        return found

    def _finish(self, entries: Sequence[Any]) -> Dump:
        for held in self._groups.values():
            held.calls = _in_a_row(held.calls)
        add_status(self._groups, self._members, self._numbers, self._value)
        ends = [
            calls[-1]
            for held in self._groups.values()
            for calls in (held.calls, held.sent)
            if calls
        ]
        newest_ns = max((entry.time_ns or 0 for entry in ends), default=0)
        latest = [entry for entry in entries[-_LATEST:] if isinstance(entry, dict)]
        stamps = (integer(entry.get(name)) or 0 for entry in latest for name in _STAMPS)
        self._newest = max(newest_ns, *stamps, 0)
        times = [integer(entry.get("time_created_ns")) or 0 for entry in latest]
        overdue = {group: self._overdue(held) for group, held in self._groups.items()}
        return Dump(
            groups=self._groups,
            whole=_is_whole(entries)
            or not (entries or any(held.enqueued for held in self._groups.values())),
            newest_ns=newest_ns,
            pace_ns=max((after - before for before, after in pairwise(times)), default=0),
            overdue={group: entries for group, entries in overdue.items() if entries},
            tells=tells(self._groups, self._value),
            splits=any(
                entry.posted.out_sizes for held in self._groups.values() for entry in held.calls
            ),
            # Gloo describes one group without a name.
            size=1 + max((max(each.ranks) for each in self._members.values()), default=-1),
        )

    def _overdue(self, held: Held) -> tuple[Entry, ...]:
        """Return calls past their timeout, for NCCL, which reports completion.

        A call that is retired but not completed was aborted by the watchdog.
        """
        return tuple(
            entry
            for entries in (held.calls, held.sent)
            for entry in entries
            if entry.state is not State.COMPLETED
            and "nccl" in entry.posted.backend
            and (
                entry.retired
                or (
                    entry.time_ns
                    and entry.timeout_ms > 0
                    and self._newest - entry.time_ns >= entry.timeout_ms * 1_000_000
                )
            )
        )


def _record(entries: Sequence[Any], place: int) -> int | None:
    """Return the number that the recorder gave to an entry."""
    entry = entries[place] if entries else None
    return integer(entry.get("record_id")) if isinstance(entry, dict) else None


def _is_whole(entries: Sequence[Any]) -> bool:
    return _record(entries, 0) == 0 and _record(entries, -1) == len(entries) - 1


def _in_a_row(entries: list[Entry]) -> list[Entry]:
    """Return the entries after the last gap, each coalesced group as one call.

    The missing calls were captured into a CUDA graph, or had completed in a dump of pending calls
    only.
    """
    first = entries[0].seq if entries else 1
    if [entry.seq for entry in entries] == list(range(first, first + len(entries))):
        return entries if first > 0 else []
    row: list[Entry] = []
    pending: list[Entry] = []
    for entry in entries:
        if pending and entry.seq != pending[-1].seq:
            row.append(together(pending))
            pending = []
        if row and entry.seq != row[-1].seq + 1:
            row = []
        pending.append(entry)
    if pending:
        row.append(together(pending))
    return [entry for entry in row if entry.seq > 0]
