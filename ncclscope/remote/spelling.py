"""Wire format between node servers and clients: JSON compressed with zlib.

Calls are sent as columns. A program repeats few kinds of calls, so a message holds each kind
once. Sequence numbers, positions and times are sent as differences, which compress well.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import astuple
from typing import Any

from ncclscope.errors import DamagedFileError
from ncclscope.model import Call, State, Step
from ncclscope.model.graphs import Replay
from ncclscope.remote.checked import (
    as_count,
    as_flag,
    as_hash,
    as_integer,
    as_integers,
    as_text,
    optional,
)
from ncclscope.untrusted import json_memory, parse

__all__ = ["Kinds", "pack", "read_calls", "read_steps", "spell_steps", "unpack"]

_LEVEL = 6
_MOST_BYTES = 1 << 28
_MOST_MEMORY = 2 << 30
"""Most bytes that a parsed message may take; 8 ranks take less than a megabyte."""
_KIND = (
    *("op", "dtype", "redop", "root", "peer", "numel", "shape", "sizes", "out_shape", "site"),
    *("captured", "graph", "signature", "out_sizes", "full_site", "user_site"),
)
_LISTS = ("shape", "sizes", "out_shape", "out_sizes")
_TEXTS = ("op", "dtype", "redop", "site", "full_site", "user_site")
_FLAGS = ("captured",)


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
            fields = known[number] = _read_kind(kinds[number])
        calls.append(
            Call(
                comm=key,
                seq=seq,
                position=position,
                time_ns=when or None,
                state=State(state),
                group=optional(as_integer, groups[place]) if groups else None,
                replay=Replay(*as_integers(replays[place])) if replays and replays[place] else None,
                **fields,
            )
        )
    return calls


def _read_kind(kind: Sequence[Any]) -> dict[str, Any]:
    """Return the fields that all calls of a kind share, by name."""
    found: dict[str, Any] = {}
    for name, value in zip(_KIND, kind, strict=True):
        if name in _LISTS:
            found[name] = optional(as_integers, value)
        elif name in _TEXTS:
            found[name] = optional(as_text, value)
        else:
            found[name] = as_flag(value) if name in _FLAGS else optional(as_integer, value)
    if found["op"] is None:
        raise TypeError("a call without an operation")
    as_hash(found["signature"])
    return found


def spell_steps(steps: Sequence[Step]) -> list[list[Any]]:
    """Return steps as rows."""
    return [[step.number, step.position, step.tokens, step.dummy] for step in steps]


def read_steps(rows: Sequence[Sequence[Any]]) -> list[Step]:
    """Return the steps of rows."""
    return [
        Step(as_count(number), as_count(position), optional(as_count, tokens), as_flag(dummy))
        for number, position, tokens, dummy in rows
    ]


def details_of(about: Mapping[str, Any], without: Sequence[str]) -> dict[str, Any]:
    """Return a process's description without the fields named in `without`."""
    return {name: value for name, value in about.items() if name not in without}


def _differences(numbers: Sequence[int]) -> list[int]:
    before = 0
    found = []
    for number in numbers:
        found.append(number - before)
        before = number
    return found


def _sums(differences: Sequence[int]) -> list[int]:
    total = 0
    found = []
    for difference in differences:
        total += difference
        found.append(as_count(total))
    return found
