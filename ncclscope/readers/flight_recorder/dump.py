"""Build a Flight Recorder dump from its entries."""

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
"""Entries between two checks of the budget: each may share the maximum number of tensors."""
_MOST_FIELDS = 64
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
        """Number of overdue calls."""
        return sum(map(len, self.overdue.values()))


class DumpBuilder:
    """Builds a dump from its entries.

    Args:
        header: The dump's dictionary, with or without its entries.
        budget: Limits on time and memory.
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
        """Add a decoded entry.

        Args:
            entry: The entry.
            position: Its index in the dump.

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
        """Return the container of a group's calls.

        Args:
            where: The entry's ``process_group``: name and description.
            backend: Backend of the group.
            number: The entry's ``pg_id``.
        """
        group = group_of_entry(where, backend, self._members)
        self._numbers.setdefault((text(number) or "?")[:20], group.name)
        return self._groups.setdefault(group, Held())

    def see(self, created: Sequence[int], stamps: Sequence[int | None]) -> None:
        """Note the times of consecutive entries.

        Args:
            created: Times of enqueueing, in ns since 1970.
            stamps: Times at which the last of them were seen to start or complete, in ns.
        """
        self._times.extend(created[-_LATEST:])
        self._newest = max(self._newest, *(stamp or 0 for stamp in stamps), 0)

    def add(self, held: Held, sent: int, entry: Entry) -> None:
        """Add one call.

        Args:
            held: Container of its group.
            sent: Its number among sends and receives; 0 if it has none.
            entry: The call.
        """
        if not 0 <= entry.seq < MAX_SEQ:
            return
        if not entry.posted.p2p:
            held.calls.append(entry)
            return
        held.reached = max(held.reached, entry.seq)
        if entry.posted.op != "coalesced":
            held.sent.append(entry._replace(seq=sent or len(held.sent) + 1))

    def take_raw(self, data: bytes, start: int, strings: Strings) -> None:
        """Add all entries of a dump pickled by torch.

        Args:
            data: The whole pickle.
            start: Offset of the first entry, in bytes.
            strings: Texts of the pickle before that.
        """
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


def _splits(entry: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields with the splits of an all_to_all."""
    if len(entry) > _MOST_FIELDS:
        return {}
    return {name: entry[name] for name in entry if isinstance(name, str) and SPLITS.match(name)}


class _Memo(dict[Any, Any]):
    """A bounded cache of a function's results."""

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
    """Decodes many entries at once, column by column: equal bytes are decoded once.

    Args:
        builder: Receives the calls.
        strings: The texts of the dump.
    """

    def __init__(self, builder: DumpBuilder, strings: Strings) -> None:
        self._builder = builder
        self._strings = strings
        self._parts = _Memo(self._decode)
        self._calls = _Memo(self._call)
        self._groups = _Memo(lambda group: group_of(group, strings))
        self._endings = _Memo(lambda ending: ending_of(ending, strings))
        self._stacks = _Memo(lambda frames: Stack(frames, strings))
        self._plain = True

    def take(self, rows: Sequence[Sequence[bytes]], position: int) -> None:
        """Add consecutive entries.

        Args:
            rows: Entries, `[entries, fields]`, with the fields of a
                :class:`~ncclscope.readers.flight_recorder.pattern.RawEntry`.
            position: Index of the first entry in the dump.
        """
        columns = list(zip(*rows, strict=True))
        frames, _, groups, made, sent, names, created, shaped, states, *seen, endings = columns
        keys = zip(names, shaped, endings, states, groups, strict=True)
        parts_of = zip(*[self._parts[key] for key in keys], strict=True)
        calls, ends, over, timeouts, helds = parts_of
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

    def _decode(self, key: tuple[bytes, ...]) -> tuple[Posted, State, bool, int, Held]:
        """Return call, state, retired, timeout (ms) and group container of an entry."""
        name, shaped, ending, word, group = key
        call = self._calls[name, shaped, ending]
        state = _STATES.get(words(word, self._strings), State.SCHEDULED)
        retired, timeout, _ = self._endings[ending]
        if call.p2p:
            self._plain = False  # from here on, entries are added one by one
        pg_id, where = self._groups[group]
        return call, state, retired, timeout, self._builder.held(where, call.backend, pg_id)

    def _call(self, key: tuple[bytes, ...]) -> Posted:
        name, shaped, ending = key
        fields = shapes_of(shaped, self._strings)
        ins, types = fields.pop("input_sizes"), fields.pop("input_dtypes")
        outs, others = fields.pop("output_sizes"), fields.pop("output_dtypes")
        *_, p2p = self._endings[ending]
        return posted(words(name, self._strings), ins, outs, (types, others), p2p, fields)


def _times(column: Sequence[bytes]) -> list[int]:
    """Return the times of enqueueing, in ns: integers of eight bytes in any recent dump."""
    joined = b"".join(column)
    if len(joined) == _TIME.itemsize * len(column):  # all have eight bytes
        times: list[int] = np.frombuffer(joined, _TIME)["ns"].tolist()
        return times
    return [number(part) for part in column]


def _in_a_row(entries: list[Entry]) -> list[Entry]:
    """Return the entries after the last gap, each coalesced group as one call.

    The missing calls were captured into a CUDA graph, or had completed in a dump of pending calls
    only.
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
