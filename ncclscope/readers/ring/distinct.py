"""Group a log's calls into kinds: of a hundred thousand calls, a few dozen differ.

To compare sequences, it is enough to decode one call of each kind. Equal signatures would not be
enough. They cover what members of one communicator must agree in, and two programs can differ in
more, such as shapes with the same number of elements.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ncclscope.model import Call
from ncclscope.model.log import CallLog
from ncclscope.ring import layout
from ncclscope.ring.image import RECORD_DTYPE, Records

_FIELDS = ("op", "dtype", "redop", "ndim", "fixed", "root", "sizes", "out", "shape", "numel")
"""Fields of a record that describe its call, without position, time and state."""

_PARAMETERS = np.dtype([(name, RECORD_DTYPE[name]) for name in (*_FIELDS, "flags")])


class Distinct(NamedTuple):
    """Calls, each as the index of its kind.

    Attributes:
        kinds: One call of each kind: the first one, with its position and time.
        which: Index into `kinds` for each call, `[calls]`.
        positions: Position of each call in the rank's stream, `[calls]`.
    """

    kinds: Sequence[Call]
    which: NDArray[np.int64]
    positions: NDArray[np.int64]


def distinct_calls(log: CallLog) -> Distinct:
    """Group all kept calls of a log into kinds."""
    start, stop = log.first, log.calls + 1
    # Only logs that decode on demand have `distinct`; other logs have their calls in memory.
    find: Callable[[int, int], Distinct] | None = getattr(log, "distinct", None)
    return group_calls(log.span(start, stop)) if find is None else find(start, stop)


def group_calls(calls: Sequence[Call]) -> Distinct:
    """Group decoded calls into kinds."""
    numbers: dict[tuple[object, ...], int] = {}
    kinds: list[Call] = []
    which = np.empty(len(calls), np.int64)
    for place, call in enumerate(calls):
        parameters = (
            *(call.op, call.comm, call.dtype, call.redop, call.root, call.peer, call.numel),
            *(call.shape, call.sizes, call.out_shape, call.captured),
        )
        number = numbers.setdefault(parameters, len(kinds))
        if number == len(kinds):
            kinds.append(call)
        which[place] = number
    return Distinct(kinds, which, np.array([call.position for call in calls], np.int64))


def distinct_records(records: Records, decode: Callable[[Records], Sequence[Call]]) -> Distinct:
    """Group records into kinds, decoding one record of each.

    Args:
        records: Records of one communicator in one ring.
        decode: Decode some of these records into calls.
    """
    parameters = np.zeros(len(records), _PARAMETERS)
    for name in _FIELDS:
        parameters[name] = records[name]
    parameters["flags"] = records["flags"] & layout.FLAG_CAPTURED
    numbers: dict[bytes, int] = {}
    rows: list[bytes] = parameters.view(f"V{_PARAMETERS.itemsize}").tolist()
    which = np.array([numbers.setdefault(row, len(numbers)) for row in rows], np.int64)
    _, firsts = np.unique(which, return_index=True)
    return Distinct(decode(records[firsts]), which, records["begin"].astype(np.int64) - 1)
