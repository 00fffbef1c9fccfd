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
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from ncclscope.errors import DamagedFileError
from ncclscope.foreign import MAX_RANKS, integer, integers, open_regular, parse, text
from ncclscope.model import Rank, State
from ncclscope.sources.flight_entry import Entry, posted, together
from ncclscope.sources.plain_pickle import load_plain, without_collection

__all__ = ["Dump", "Group", "Held", "NoDumpError", "is_dump", "read_dump"]

MAX_SIZE = 1 << 30
"""Bytes of a dump: forty times what a ring of a hundred thousand calls takes."""
_HEAD = 1 << 12
_MARKS = (b"entries", b"pg_config", b"pg_status", b"comm_lib_version", b"nccl_version")
_RANK = re.compile(r"rank[_.-]?(\d+)", re.IGNORECASE)
_NUMBER = re.compile(r"(\d+)\D*$")
_SUFFIX = re.compile(r"\.(json|pkl|pickle|bin|txt|dump|trace)$", re.IGNORECASE)
_STATES = {state.word: state for state in State}
_MAX_SEQ = 1 << 62


class NoDumpError(DamagedFileError):
    """A file that looks like a dump at its beginning, and is none."""


class Group(NamedTuple):
    """A process group, as one dump knows it."""

    name: str
    desc: str
    ranks: tuple[int, ...]
    backend: str


@dataclass
class Held:
    """What a dump holds of one group.

    Attributes:
        calls: Collectives, with consecutive numbers.
        sent: Sends and receives.
        reached: Collectives made at least, by the numbers beside sends and receives.
        enqueued: Calls made by the group's status; None where it has none, or where it
            counts sends and receives.
    """

    calls: list[Entry] = field(default_factory=list)
    sent: list[Entry] = field(default_factory=list)
    reached: int = 0
    enqueued: int | None = None


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
        dump = _dump(value)
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


def _dump(value: Mapping[str, Any]) -> Dump:
    raw = value.get("entries")
    entries = [entry for entry in raw if isinstance(entry, dict)] if isinstance(raw, list) else []
    members = _members(value.get("pg_config"))
    groups: dict[Group, Held] = {}
    known: dict[tuple[Any, ...], tuple[Group, Held]] = {}
    numbers: dict[str, str] = {}
    newest = timed_out = 0
    for position, entry in enumerate(entries):
        get = entry.get
        call = posted(
            get("profiling_name"),
            get("input_sizes"),
            get("output_sizes"),
            (get("input_dtypes"), get("output_dtypes")),
            get("is_p2p"),
        )
        where = get("process_group")
        key = (*where, call.backend) if isinstance(where, list | tuple) else (call.backend,)
        try:
            group, held = known[key]
        except (KeyError, TypeError):
            group = _group(where, call.backend, members)
            held = groups.setdefault(group, Held())
            numbers.setdefault(str(get("pg_id"))[:20], group.name)
            if all(isinstance(part, str) for part in key):
                known[key] = group, held
        state = _STATES.get(str(get("state")), State.SCHEDULED)
        retired = get("retired") is True
        time_ns = integer(get("time_created_ns"))
        newest = max(newest, time_ns or 0)
        made = integer(get("collective_seq_id")) or 0
        if not 0 <= made < _MAX_SEQ:
            continue
        if call.p2p:
            held.reached = max(held.reached, made)
            if call.op != "coalesced":
                seq = integer(get("p2p_seq_id")) or len(held.sent) + 1
                held.sent.append(Entry(seq, position, call, state, retired, time_ns, get("frames")))
            continue
        timed_out += retired and state is not State.COMPLETED and "nccl" in call.backend
        held.calls.append(Entry(made, position, call, state, retired, time_ns, get("frames")))
    for held in groups.values():
        held.calls = _in_a_row(held.calls)
    _add_status(groups, members, numbers, value)
    records = [integer(entry.get("record_id")) for entry in entries]
    return Dump(
        groups=groups,
        whole=bool(records) and records == list(range(len(records))),
        newest_ns=newest,
        timed_out=timed_out,
        tells=_tells(groups, value),
    )


def _tells(groups: Mapping[Group, Held], value: Mapping[str, Any]) -> bool:
    """Whether calls that have completed are told from others; if they are left out, too."""
    status = value.get("pg_status")
    if isinstance(status, dict) and any(
        isinstance(about, dict) and _count(about.get("last_completed_collective"))
        for about in status.values()
    ):
        return True
    return any(
        entry.retired or entry.state is State.COMPLETED
        for held in groups.values()
        for entry in held.calls
    )


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


def _group(where: Any, backend: str, members: Mapping[str, Group]) -> Group:
    parts = list(where) if isinstance(where, list | tuple) else [where]
    name, desc = [*(text(part) or "" for part in parts[:2]), "", ""][:2]
    known = members.get(name)
    return Group(name, desc, known.ranks if known else (), backend)


def _members(config: Any) -> dict[str, Group]:
    """The groups that the dump describes, by name; those without members are left out."""
    found = {}
    for name, about in config.items() if isinstance(config, dict) else ():
        if not isinstance(name, str) or not isinstance(about, dict):
            continue
        ranks = about.get("ranks")
        if isinstance(ranks, str):
            try:
                ranks = parse(ranks[: 1 << 24])
            except ValueError:
                continue
        numbers = integers(ranks, MAX_RANKS)
        if numbers and all(0 <= number < MAX_RANKS for number in numbers):
            found[name] = Group(name, text(about.get("desc")) or "", numbers, "")
    return found


def _add_status(
    groups: dict[Group, Held],
    members: Mapping[str, Group],
    numbers: dict[str, str],
    value: Mapping[str, Any],
) -> None:
    """Takes over how many calls were made on groups of which no entry is kept.

    A status is filed under a number that the process has given the group, and a group is
    described under its name. Both count up in the order in which groups were made, so that
    they can be paired where there are as many of the one as of the other.
    """
    status = value.get("pg_status")
    if not isinstance(status, dict):
        return
    ids = {str(key)[:20]: about for key, about in status.items() if isinstance(about, dict)}
    names = dict(numbers)
    if len(ids) == len(members) and all(
        name.isdecimal() and len(name) < 20 for name in (*ids, *members)
    ):
        paired = dict(zip(sorted(ids, key=int), sorted(members, key=int), strict=True))
        if all(paired.get(number) == name for number, name in numbers.items()):
            names = paired
    library = value.get("comm_lib_version") or value.get("nccl_version")
    backend = next((group.backend for group in groups), "nccl" if library else "")
    held_by = {group.name: held for group, held in groups.items()}
    for number, about in ids.items():
        name = names.get(number)
        made = _count(about.get("last_enqueued_collective"))
        if name is None or made is None:
            continue
        held = held_by.get(name)
        if held is None and name in members:
            group = members[name]._replace(backend=backend)
            held = groups.setdefault(group, Held())
        if held is not None:
            held.enqueued = made


def _count(value: Any) -> int | None:
    """A number, which JSON dumps write as a text; None for a negative one."""
    if isinstance(value, str) and value.isdecimal() and len(value) < 19:
        value = int(value)
    found = integer(value)
    return found if found is not None and 0 <= found < _MAX_SEQ else None
