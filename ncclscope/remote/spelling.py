"""Wire format between node servers and clients: JSON compressed with zlib.

Calls are sent as columns. A program repeats few kinds of calls, so a message holds each kind
once. Sequence numbers, positions and times are sent as differences, which compress well.
"""

from __future__ import annotations

import itertools
import json
import zlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import astuple
from typing import Any

from ncclscope.errors import DamagedFileError
from ncclscope.model import Call, Rank, State, Step
from ncclscope.model.graphs import Replay
from ncclscope.readers.untraced import LONGEST_REASON, MOST_ANCESTORS, WHY
from ncclscope.remote.checked import (
    as_count,
    as_flag,
    as_hash,
    as_integer,
    as_integers,
    as_list,
    as_rank,
    as_row,
    as_text,
    optional,
)
from ncclscope.ring.tombstone import PAGE
from ncclscope.untrusted import MAX_RANKS, json_memory, parse

_LEVEL = 6
_MOST_BYTES = 1 << 28
_MOST_MEMORY = 2 << 30
"""Most bytes that a parsed message may take; 8 ranks take less than a megabyte."""
_NUMBER, _NUMBERS, _TEXT = optional(as_integer), optional(as_integers), optional(as_text)
_KIND = {
    "op": as_text,
    **dict.fromkeys(("dtype", "redop"), _TEXT),
    **dict.fromkeys(("root", "peer", "numel"), _NUMBER),
    **dict.fromkeys(("shape", "sizes", "out_shape"), _NUMBERS),
    "site": _TEXT,
    "captured": as_flag,
    "graph": _NUMBER,
    "thread": as_count,
    "signature": as_hash,
    "out_sizes": _NUMBERS,
    **dict.fromkeys(("full_site", "user_site"), _TEXT),
}
"""Fields that all calls of a kind share, in the order of the message, and their readers."""
_STEP = (as_count, as_count, optional(as_count), as_flag)


def _as_name(value: Any) -> str:
    """Return a text that fits into the file of a process without a record."""
    return as_text(value)[:PAGE]


_UNTRACED: dict[str, Callable[[Any], Any]] = {
    "rank": as_rank,
    "world_size": as_count,
    "host": _as_name,
    "pid": as_count,
    **dict.fromkeys(("started_ns", "last_seen_ns"), _NUMBER),
    "alive": optional(as_flag),
    "source": as_text,
}
"""Fields of a process without a record in the order of the message, and their readers."""
_UNTRACED_DETAILS: dict[str, Callable[[Any], Any]] = {
    **dict.fromkeys(("boot_id", "run"), _as_name),
    **dict.fromkeys(("parent", "pid_namespace", "start_ticks", "attempt"), _NUMBER),
    "ancestors": lambda pids: list(as_integers(pids)[:MOST_ANCESTORS]),
    WHY: lambda why: as_text(why)[:LONGEST_REASON],
}
"""Its details, which follow in the same row."""


def pack(document: Any) -> bytes:
    """Return a document as a compressed message."""
    return zlib.compress(json.dumps(document, separators=(",", ":")).encode(), _LEVEL)


def unpack(data: bytes) -> Any:
    """Return the document of a message.

    Raises:
        DamagedFileError: It is not a message, or exceeds 256 MiB, or 2 GiB once parsed.
    """
    unzip = zlib.decompressobj()
    try:
        text = unzip.decompress(data, _MOST_BYTES)
        if unzip.eof and not unzip.unconsumed_tail and json_memory(text) <= _MOST_MEMORY:
            return parse(text)
    except (ValueError, zlib.error):
        pass
    raise DamagedFileError("a node sent an invalid message")


class Kinds:
    """Encodes calls as columns, with a table that holds each kind of call once."""

    def __init__(self) -> None:
        self.table: list[list[Any]] = []
        self._numbers: dict[tuple[Any, ...], int] = {}

    def spell(self, calls: Sequence[Call]) -> list[list[Any]]:
        """Return calls of one communicator as columns; see :func:`read_calls`."""
        which = []
        for call in calls:
            kind = tuple(getattr(call, name) for name in _KIND)
            number = self._numbers.setdefault(kind, len(self.table))
            if number == len(self.table):
                self.table.append(list(kind))
            which.append(number)
        return [
            which,
            _differences([call.seq for call in calls]),
            _differences([call.position for call in calls]),
            _differences([call.time_ns or 0 for call in calls]),
            [int(call.state) for call in calls],
            [call.group for call in calls] if any(call.group for call in calls) else [],
            [call.replay and astuple(call.replay) for call in calls]
            if any(call.replay for call in calls)
            else [],
        ]


def read_calls(columns: Sequence[Sequence[Any]], kinds: Sequence[Any], key: str) -> list[Call]:
    """Decode calls from columns.

    Args:
        columns: Seven columns: kind, sequence number, position in the rank's stream, time (ns),
            state, group and replay; the last two may be empty.
        kinds: The message's table of kinds.
        key: Key of the communicator.
    """
    *numbers, groups, replays = columns
    which, seqs, positions, times, states = map(as_integers, numbers)
    known: dict[int, dict[str, Any]] = {}
    calls = []
    for place, (number, seq, position, when, state) in enumerate(
        zip(which, _sums(seqs), _sums(positions), _sums(times), states, strict=True)
    ):
        fields = known.get(number)
        if fields is None:
            row = as_row(_KIND.values(), kinds[number])
            fields = known[number] = dict(zip(_KIND, row, strict=True))
        calls.append(
            Call(
                comm=key,
                seq=seq,
                position=position,
                time_ns=when or None,
                state=State(state),
                group=_NUMBER(groups[place]) if groups else None,
                replay=Replay(*as_integers(replays[place])) if replays and replays[place] else None,
                **fields,
            )
        )
    return calls


def spell_steps(steps: Sequence[Step]) -> list[list[Any]]:
    """Return steps as rows."""
    return [[step.number, step.position, step.tokens, step.dummy] for step in steps]


def read_steps(rows: Sequence[Sequence[Any]]) -> list[Step]:
    """Return the steps of rows."""
    return [Step(*as_row(_STEP, row)) for row in rows]


def spell_untraced(processes: Iterable[Rank]) -> list[list[Any]]:
    """Return processes without a record as rows."""
    return [
        [getattr(one, name) for name in _UNTRACED]
        + [one.details.get(name) for name in _UNTRACED_DETAILS]
        for one in processes
    ]


def read_untraced_rows(rows: Any, node: int) -> list[Rank]:
    """Return the processes without a record of a node.

    Args:
        rows: What :func:`spell_untraced` has returned there.
        node: Number of the node, which precedes each path.

    Raises:
        TypeError: They are no rows.
        ValueError: They are more than a job has, or not of this kind.
    """
    if len(as_list(rows)) > MAX_RANKS:
        raise ValueError("more processes than any job has")
    readers = {**_UNTRACED, **_UNTRACED_DETAILS}
    found = []
    for row in rows:
        values = dict(zip(readers, as_row(readers.values(), as_list(row)), strict=True))
        about = {name: values.pop(name) for name in _UNTRACED}
        about["source"] = f"{node}:{about['source']}"
        details = {name: value for name, value in values.items() if value is not None}
        found.append(Rank(**about, details=details))
    return found


def _differences(numbers: Sequence[int]) -> list[int]:
    return [number - before for before, number in zip((0, *numbers), numbers, strict=False)]


def _sums(differences: Sequence[int]) -> list[int]:
    return [as_count(total) for total in itertools.accumulate(differences)]
