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
from ncclscope.untrusted import parse

__all__ = ["Kinds", "pack", "read_calls", "read_steps", "spell_steps", "unpack"]

_LEVEL = 6
_MOST_BYTES = 1 << 30
_KIND = (
    *("op", "dtype", "redop", "root", "peer", "numel", "shape", "sizes", "out_shape", "site"),
    *("captured", "graph", "signature", "out_sizes", "full_site", "user_site"),
)
_LISTS = ("shape", "sizes", "out_shape", "out_sizes")


def pack(document: Any) -> bytes:
    """Return a document as a compressed message."""
    return zlib.compress(json.dumps(document, separators=(",", ":")).encode(), _LEVEL)


def unpack(data: bytes) -> Any:
    """Return the document of a message.

    Raises:
        DamagedFileError: It is not a message, or exceeds 1 GiB.
    """
    unzip = zlib.decompressobj()
    try:
        text = unzip.decompress(data, _MOST_BYTES)
        if unzip.eof and not unzip.unconsumed_tail:
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
    which, seqs, positions, times, states, groups, replays = columns
    calls = []
    for place, (number, seq, position, when, state) in enumerate(
        zip(which, _sums(seqs), _sums(positions), _sums(times), states, strict=True)
    ):
        fields = dict(zip(_KIND, kinds[number], strict=True))
        for name in _LISTS:
            if fields[name] is not None:
                fields[name] = tuple(fields[name])
        calls.append(
            Call(
                comm=key,
                seq=seq,
                position=position,
                time_ns=when or None,
                state=State(state),
                group=groups[place] if groups else None,
                replay=Replay(*replays[place]) if replays and replays[place] else None,
                **fields,
            )
        )
    return calls


def spell_steps(steps: Sequence[Step]) -> list[list[Any]]:
    """Return steps as rows."""
    return [[step.number, step.position, step.tokens, step.dummy] for step in steps]


def read_steps(rows: Sequence[Sequence[Any]]) -> list[Step]:
    """Return the steps of rows."""
    return [Step(*row) for row in rows]


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
        found.append(total)
    return found
