"""A Flight Recorder dump, put together from its entries."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise, repeat
from typing import Any

import numpy as np

from ncclscope.model import State
from ncclscope.readers.budget import Budget
from ncclscope.readers.flight_recorder.decoder import Strings, number
from ncclscope.readers.flight_recorder.entry import Entry, Posted, posted, together
from ncclscope.readers.flight_recorder.group import (
    MAX_SEQ,
    Group,
    Held,
    add_status,
    group_of_entry,
    members_of,
    tells,
)
from ncclscope.readers.flight_recorder.pattern import (
    SPLITS,
    RawEntry,
    Stack,
    ending_of,
    group_of,
    maybe,
    raw_entries,
    shapes_of,
    words,
)
from ncclscope.untrusted import integer, text

__all__ = ["Dump", "DumpBuilder"]

_STATES = {state.word: state for state in State}
_RECORD = RawEntry._fields.index("record_id")
_TIME = np.dtype([("code", "V2"), ("ns", "<i8")])
_KEPT_AT_MOST = 1 << 16
_STAMPS = ("time_discovered_started_ns", "time_discovered_completed_ns")
_CHECK_EVERY = 16
"""Entries, each of which can have as many tensors as are read, all the same ones."""
_MOST_FIELDS = 64
_LATEST = 64
"""Entries at the end of a dump among which its newest time stamp is looked for."""


@dataclass(frozen=True)
class Dump:
    """One dump.

    Attributes:
        groups: What it holds, by group.
        whole: Whether it holds all calls since the process began.
        newest_ns: When the last of its calls was posted; 0 when it has none.
        pace_ns: The longest time between two of its last calls.
        overdue: Calls that did not complete within their timeout, by group: the watchdog
            has given them up, or the dump has later time stamps.
        tells: Whether it says of each call that it has completed, when it has.
        splits: Whether it says how the tensors of all_to_all calls are split.
    """

    groups: Mapping[Group, Held]
    whole: bool
    newest_ns: int
    pace_ns: int
    overdue: Mapping[Group, tuple[Entry, ...]]
    tells: bool
    splits: bool

    @property
    def timed_out(self) -> int:
        """How many calls are overdue."""
        return sum(map(len, self.overdue.values()))


class DumpBuilder:
    """Puts a dump together, entry by entry.

    Args:
        header: The dump; its entries may be left out.
        budget: What reading it may take.
    """

    def __init__(self, header: Mapping[str, Any], budget: Budget) -> None:
        self._header = header
        self._budget = budget
        self._members = members_of(header.get("pg_config"), budget)
        self._groups: dict[Group, Held] = {}
        self._numbers: dict[str, str] = {}
        self._newest = 0
        self._times: deque[int] = deque(maxlen=_LATEST)
        self._records: list[int | None] = [None, None]
        self._count = 0

    def take(self, entry: Mapping[str, Any], position: int) -> None:
        """Take an entry that has been read whole.

        Raises:
            DamagedFileError: The budget is spent.
        """
        if not position % _CHECK_EVERY:
            self._budget.check(f"{position} calls")
        get = entry.get
        call = posted(
            get("profiling_name"),
            get("input_sizes"),
            get("output_sizes"),
            (get("input_dtypes"), get("output_dtypes")),
            get("is_p2p"),
            _splits(entry),
        )
        held = self.held(get("process_group"), call.backend, get("pg_id"))
        self._records[1] = integer(get("record_id"))
        if not position:
            self._records[0] = self._records[1]
        self._count = position + 1
        made, sent, created, timeout = (
            integer(get(name)) or 0
            for name in ("collective_seq_id", "p2p_seq_id", "time_created_ns", "timeout_ms")
        )
        self.see([created], [integer(get(stamp)) for stamp in _STAMPS])
        state = _STATES.get(text(get("state")) or "", State.SCHEDULED)
        over = get("retired") is True
        time_ns = integer(get("time_created_ns"))
        self.add(
            held, sent, Entry(made, position, call, state, over, time_ns, timeout, get("frames"))
        )

    def held(self, where: Any, backend: str, number: Any) -> Held:
        """Return where the calls of a group are kept."""
        group = group_of_entry(where, backend, self._members)
        self._numbers.setdefault((text(number) or "?")[:20], group.name)
        return self._groups.setdefault(group, Held())

    def see(self, created: Sequence[int], stamps: Sequence[int | None]) -> None:
        """Take the times of some entries that follow each other.

        Args:
            created: When they were posted.
            stamps: When the last of them were seen to have started or completed.
        """
        self._times.extend(created[-_LATEST:])
        self._newest = max(self._newest, *(stamp or 0 for stamp in stamps), 0)

    def add(self, held: Held, sent: int, entry: Entry) -> None:
        """Add one call."""
        if not 0 <= entry.seq < MAX_SEQ:
            return
        if not entry.posted.p2p:
            held.calls.append(entry)
            return
        held.reached = max(held.reached, entry.seq)
        if entry.posted.op != "coalesced":
            held.sent.append(entry._replace(seq=sent or len(held.sent) + 1))

    def take_raw(self, data: bytes, start: int, strings: Strings) -> None:
        """Take all entries of a dump that torch has pickled."""
        columns = _Columns(self, strings)
        for found in raw_entries(data, start, strings):
            if isinstance(found, dict):
                self.take(found, self._count)
            else:
                self._budget.check(f"{self._count} calls")
                columns.take(found, self._count)
                self._count += len(found)
                self._records[1] = number(found[-1][_RECORD])

    def finish(self) -> Dump:
        """Return the dump."""
        for held in self._groups.values():
            held.calls = _in_a_row(held.calls)
        add_status(self._groups, self._members, self._numbers, self._header)
        last = [
            calls[-1]
            for held in self._groups.values()
            for calls in (held.calls, held.sent)
            if calls
        ]
        newest_ns = max((entry.time_ns or 0 for entry in last), default=0)
        self._newest = max(self._newest, newest_ns)
        overdue = {group: self._overdue(held) for group, held in self._groups.items()}
        return Dump(
            groups=self._groups,
            whole=self._records == [0, self._count - 1],
            newest_ns=newest_ns,
            pace_ns=max((after - before for before, after in pairwise(self._times)), default=0),
            overdue={group: entries for group, entries in overdue.items() if entries},
            tells=tells(self._groups, self._header),
            splits=any(
                entry.posted.out_sizes for held in self._groups.values() for entry in held.calls
            ),
        )

    def _overdue(self, held: Held) -> tuple[Entry, ...]:
        """Calls that have had their time, where the backend tells which have completed.

        What is retired without having completed has been given up by the watchdog.
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


def _splits(entry: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields that say how an all_to_all is split."""
    if len(entry) > _MOST_FIELDS:
        return {}
    return {name: entry[name] for name in entry if isinstance(name, str) and SPLITS.match(name)}


class _Memo(dict[Any, Any]):
    """What was made of each key."""

    def __init__(self, make: Callable[[Any], Any]) -> None:
        super().__init__()
        self._make = make

    def __missing__(self, key: Any) -> Any:
        if len(self) >= _KEPT_AT_MOST:
            self.clear()
        made = self[key] = self._make(key)
        return made


_numbers = _Memo(number)


class _Columns:
    """Decodes many entries at once: what is the same in some is the same bytes, and known.

    Args:
        builder: What takes the calls.
        strings: The texts of the dump.
    """

    def __init__(self, builder: DumpBuilder, strings: Strings) -> None:
        self._builder = builder
        self._strings = strings
        self._told = _Memo(self._tell)
        self._calls = _Memo(self._call)
        self._groups = _Memo(lambda group: group_of(group, strings))
        self._endings = _Memo(lambda ending: ending_of(ending, strings))
        self._stacks = _Memo(lambda frames: Stack(frames, strings))
        self._plain = True

    def take(self, rows: Sequence[Sequence[bytes]], position: int) -> None:
        """Take entries that follow each other.

        Args:
            rows: Their parts, each with the fields of a
                :class:`~ncclscope.readers.flight_recorder.pattern.RawEntry`.
            position: The first one's place in the dump.
        """
        columns = list(zip(*rows, strict=True))
        frames, _, groups, made, sent, names, created, shaped, states, *seen, endings = columns
        keys = zip(names, shaped, endings, states, groups, strict=True)
        told = zip(*[self._told[key] for key in keys], strict=True)
        calls, ends, over, timeouts, helds = told
        seqs = [_numbers[seq] for seq in made]
        times = _times(created)
        self._builder.see(times, [maybe(part) for parts in seen for part in parts[-_LATEST:]])
        entries = zip(
            seqs,
            range(position, position + len(rows)),
            calls,
            ends,
            over,
            times,
            timeouts,
            [self._stacks[stack] for stack in frames],
            strict=True,
        )
        if self._plain and min(seqs) >= 0 and max(seqs) < MAX_SEQ:
            made_of = map(tuple.__new__, repeat(Entry), entries)  # Entry(*parts), for many
            for held, entry in zip(helds, made_of, strict=True):
                held.calls.append(entry)
            return
        for held, other, parts in zip(helds, sent, entries, strict=True):
            self._builder.add(held, number(other), Entry(*parts))

    def _tell(self, key: tuple[bytes, ...]) -> tuple[Posted, State, bool, int, Held]:
        """Return what an entry of these parts holds, and where it goes."""
        name, shaped, ending, word, group = key
        call = self._calls[name, shaped, ending]
        state = _STATES.get(words(word, self._strings), State.SCHEDULED)
        retired, timeout, _ = self._endings[ending]
        if call.p2p:
            self._plain = False  # from here on each entry is looked at by itself
        pg_id, where = self._groups[group]
        return call, state, retired, timeout, self._builder.held(where, call.backend, pg_id)

    def _call(self, key: tuple[bytes, ...]) -> Posted:
        name, shaped, ending = key
        told = shapes_of(shaped, self._strings)
        ins, types = told.pop("input_sizes"), told.pop("input_dtypes")
        outs, others = told.pop("output_sizes"), told.pop("output_dtypes")
        *_, p2p = self._endings[ending]
        return posted(words(name, self._strings), ins, outs, (types, others), p2p, told)


def _times(column: Sequence[bytes]) -> list[int]:
    """Times of posting: integers of eight bytes, as they are since 1970."""
    joined = b"".join(column)
    if len(joined) == _TIME.itemsize * len(column):  # of the longest there are
        times: list[int] = np.frombuffer(joined, _TIME)["ns"].tolist()
        return times
    return [number(part) for part in column]


def _in_a_row(entries: list[Entry]) -> list[Entry]:
    """Return what follows the last gap, with what was coalesced as one call.

    The calls of a gap were captured into a graph, or had completed in a dump of what is
    under way.
    """
    first = _first(entries)
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


def _first(entries: list[Entry]) -> int:
    return entries[0].seq if entries else 1
