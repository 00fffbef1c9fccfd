"""Dumps of torch's Flight Recorder, formats 2.9 to 2.11, pickle or JSON.

A dump is what one process has in memory of its last calls. It does not say whose it is: the
rank is in the file's name alone. Nor does it always say who belongs to a group: torch 2.13
leaves that out for gloo. So reading comes in two steps: :func:`read_dump` for each file,
and :mod:`ncclscope.sources.flight_job`, which looks at all dumps of a job together.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ncclscope.errors import DamagedFileError
from ncclscope.foreign import MAX_RANKS, integer, open_regular, parse, text
from ncclscope.model import Rank, State
from ncclscope.sources.flight_entry import Entry, Posted, posted, together
from ncclscope.sources.flight_group import (
    MAX_SEQ,
    Group,
    Held,
    add_status,
    group_of_entry,
    members_of,
    tells,
)
from ncclscope.sources.flight_pattern import (
    PatternError,
    Stack,
    Strings,
    group_of,
    head_and_entries,
    number,
    raw_entries,
    shapes_of,
    words,
)
from ncclscope.sources.plain_pickle import load_plain, without_collection

__all__ = ["Dump", "NoDumpError", "is_dump", "read_dump"]

MAX_SIZE = 1 << 30
"""Bytes of a dump: forty times what a ring of a hundred thousand calls takes."""
_HEAD = 1 << 12
_MARKS = (b"entries", b"pg_config", b"pg_status", b"comm_lib_version", b"nccl_version")
_RANK = re.compile(r"rank[_.-]?(\d+)", re.IGNORECASE)
_NUMBER = re.compile(r"(\d+)\D*$")
_SUFFIX = re.compile(r"\.(json|pkl|pickle|bin|txt|dump|trace)$", re.IGNORECASE)
_STATES = {state.word: state for state in State}
_TRUE = b"\x88"
_LONG = 0x8A


class NoDumpError(DamagedFileError):
    """A file that looks like a dump at its beginning, and is none."""


@dataclass(frozen=True)
class Dump:
    """One dump.

    Attributes:
        groups: What it holds, by group.
        whole: Whether it holds all calls since the process began.
        newest_ns: When the last of its calls was posted; 0 when it has none.
        timed_out: Calls that the watchdog has given up.
        tells: Whether it says of each call that it has completed, when it has.
    """

    groups: Mapping[Group, Held]
    whole: bool
    newest_ns: int
    timed_out: int
    tells: bool


def is_dump(path: Path) -> bool:
    """Whether a file begins as a dump does, whatever its name."""
    try:
        with open(open_regular(path), "rb") as file:
            head = file.read(_HEAD)
    except (OSError, DamagedFileError):
        return False
    if not (b"\x80\x02" <= head[:2] <= b"\x80\x05" or head.lstrip()[:1] == b"{"):
        return False
    return any(mark in head for mark in _MARKS)


def rank_of(path: Path) -> int | None:
    """The rank in a file's name: ``comm_lib_trace_rank_3``, ``_dump_3``, ``fr_rank3.json``."""
    stem = _SUFFIX.sub("", path.name)
    found = _RANK.findall(stem) or _NUMBER.findall(stem)
    number = int(found[-1][:9]) if found else -1
    return number if 0 <= number < MAX_RANKS else None


def read_dump(path: Path) -> Rank:
    """Reads one process's dump.

    Returns:
        A rank without logs; its ``dump`` detail is for
        :func:`ncclscope.sources.flight_job.settle`.

    Raises:
        NoDumpError: It is something else.
        DamagedFileError: It is torn, or nothing says whose it is.
        OSError: It cannot be read.
    """
    with open(open_regular(path), "rb") as file:
        if os.fstat(file.fileno()).st_size > MAX_SIZE:
            raise DamagedFileError(f"{path} is larger than any dump, {MAX_SIZE >> 20} MB")
        data = file.read(MAX_SIZE)
    with without_collection():
        try:
            value, dump = _quickly(data, str(path))
        except PatternError:
            value, dump = _whole(data, path)
    own = integer(value.get("rank"))
    rank = own if own is not None and 0 <= own < MAX_RANKS else rank_of(path)
    if rank is None:
        raise DamagedFileError(
            f"{path} does not say whose dump it is",
            "name it as torch does, with the rank at the end: comm_lib_trace_rank_3",
        )
    kept = sum(len(held.calls) + len(held.sent) for held in dump.groups.values())
    return Rank(
        rank=rank,
        records=kept,
        source=str(path),
        details={
            "format": "flight_recorder",
            "version": text(value.get("version")) or "",
            "dump": dump,
            "timed_out": dump.timed_out,
        },
    )


class _Builder:
    """Puts a dump together, entry by entry."""

    def __init__(self, header: Mapping[str, Any]) -> None:
        self._header = header
        self._members = members_of(header.get("pg_config"))
        self._groups: dict[Group, Held] = {}
        self._numbers: dict[str, str] = {}
        self._timed_out = 0
        self._records: list[int | None] = [None, None]
        self._count = 0

    def take(self, entry: Mapping[str, Any], position: int) -> None:
        """Takes an entry that has been read whole."""
        get = entry.get
        call = posted(
            get("profiling_name"),
            get("input_sizes"),
            get("output_sizes"),
            (get("input_dtypes"), get("output_dtypes")),
            get("is_p2p"),
        )
        held = self.held(get("process_group"), call.backend, get("pg_id"))
        self._records[1] = integer(get("record_id"))
        if not position:
            self._records[0] = self._records[1]
        self._count = position + 1
        self.add(
            held,
            call,
            integer(get("collective_seq_id")) or 0,
            integer(get("p2p_seq_id")) or 0,
            position,
            _STATES.get(str(get("state")), State.SCHEDULED),
            get("retired") is True,
            integer(get("time_created_ns")),
            get("frames"),
        )

    def held(self, where: Any, backend: str, number: Any) -> Held:
        """Where the calls of a group are kept."""
        group = group_of_entry(where, backend, self._members)
        self._numbers.setdefault(str(number)[:20], group.name)
        return self._groups.setdefault(group, Held())

    def add(
        self,
        held: Held,
        call: Posted,
        made: int,
        sent: int,
        position: int,
        state: State,
        retired: bool,
        time_ns: int | None,
        frames: Any,
    ) -> None:
        """Adds one call."""
        if not 0 <= made < MAX_SEQ:
            return
        if not call.p2p:
            if retired and state is not State.COMPLETED and "nccl" in call.backend:
                self._timed_out += 1
            held.calls.append(Entry(made, position, call, state, retired, time_ns, frames))
            return
        held.reached = max(held.reached, made)
        if call.op != "coalesced":
            number = sent or len(held.sent) + 1
            held.sent.append(Entry(number, position, call, state, retired, time_ns, frames))

    def take_raw(self, data: bytes, start: int, strings: Strings) -> None:
        """Takes all entries of a dump that torch has pickled.

        What is the same in many entries is the same bytes, and is decoded once.
        """
        calls: dict[tuple[bytes, bytes, bytes], Posted] = {}
        kept: dict[tuple[bytes, bytes, str], Held] = {}
        states: dict[bytes, State] = {}
        stacks: dict[bytes, Stack] = {}
        decode = int.from_bytes
        position = -1
        last = b""
        for position, raw in enumerate(raw_entries(data, start, strings)):
            if isinstance(raw, dict):
                self.take(raw, position)
                last = b""
                continue
            frames, last, pg_id, where, seq, sent, name, time, shaped, word, retired, p2p = raw
            call = calls.get((name, shaped, p2p))
            if call is None:
                ins, types, outs, others = shapes_of(shaped, strings)
                call = posted(words(name, strings), ins, outs, (types, others), p2p == _TRUE)
                calls[name, shaped, p2p] = call
            held = kept.get((where, pg_id, call.backend))
            if held is None:
                held = self.held(group_of(where, strings), call.backend, number(pg_id))
                kept[where, pg_id, call.backend] = held
            state = states.get(word)
            if state is None:
                states[word] = state = _STATES.get(words(word, strings), State.SCHEDULED)
            stack = stacks.get(frames)
            if stack is None:
                stacks[frames] = stack = Stack(frames, strings)
            made = decode(seq[1:], "little") if seq[0] != _LONG else number(seq)
            time_ns = decode(time[2:], "little") if time[0] == _LONG else number(time)
            over = retired == _TRUE
            if call.p2p or made >= MAX_SEQ:
                self.add(held, call, made, number(sent), position, state, over, time_ns, stack)
                continue
            if over and state is not State.COMPLETED and "nccl" in call.backend:
                self._timed_out += 1
            held.calls.append(Entry(made, position, call, state, over, time_ns, stack))
            if not position:
                self._records[0] = number(last)
        self._count = position + 1
        if last:
            self._records[1] = number(last)

    def finish(self) -> Dump:
        """Returns the dump."""
        for held in self._groups.values():
            held.calls = _in_a_row(held.calls)
        add_status(self._groups, self._members, self._numbers, self._header)
        last = [
            calls[-1]
            for held in self._groups.values()
            for calls in (held.calls, held.sent)
            if calls
        ]
        return Dump(
            groups=self._groups,
            whole=self._records == [0, self._count - 1],
            newest_ns=max((entry.time_ns or 0 for entry in last), default=0),
            timed_out=self._timed_out,
            tells=tells(self._groups, self._header),
        )


def _quickly(data: bytes, name: str) -> tuple[Any, Dump]:
    """Reads a dump that torch has pickled.

    Raises:
        PatternError: Something else has, or it is not whole.
    """
    head, start = head_and_entries(data)
    strings = Strings()
    try:
        header = load_plain(head, name, strings)
    except DamagedFileError:
        raise PatternError("no header") from None
    if not isinstance(header, dict):
        raise PatternError("no header")
    builder = _Builder(header)
    builder.take_raw(data, start, strings)
    return header, builder.finish()


def _whole(data: bytes, path: Path) -> tuple[Any, Dump]:
    """Reads a dump in any of its forms."""
    if data[:1] == b"\x80":
        value = load_plain(data, str(path))
    else:
        try:
            value = parse(data)
        except ValueError as error:
            raise DamagedFileError(f"{path} is no whole JSON: {error}"[:300]) from None
    if not isinstance(value, dict) or not (
        isinstance(value.get("entries"), list) or isinstance(value.get("pg_status"), dict)
    ):
        raise NoDumpError(f"{path} is no Flight Recorder dump")
    builder = _Builder(value)
    entries = value.get("entries")
    for position, entry in enumerate(entries if isinstance(entries, list) else ()):
        if isinstance(entry, dict):
            builder.take(entry, position)
    return value, builder.finish()


def _in_a_row(entries: list[Entry]) -> list[Entry]:
    """Returns what follows the last gap, with what was coalesced as one call.

    The calls of a gap were captured into a graph, or had completed in a dump of what is
    under way.
    """
    if all(after.seq == number for number, after in enumerate(entries, _first(entries))):
        return entries if _first(entries) > 0 else []
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
