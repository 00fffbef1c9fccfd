"""A log's calls by what sets them apart: of a hundred thousand, a few dozen are different.

To compare sequences, it is enough to decode one call of each kind. That two calls have the
same running hash would not be enough: it covers what members of one communicator must agree
in, and two programs can differ in more, such as shapes of the same number of elements.
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

__all__ = ["Distinct", "distinct_calls", "distinct_records"]

_FIELDS = ("op", "dtype", "redop", "ndim", "fixed", "root", "sizes", "out", "shape", "numel")
"""What a record says of its call, apart from where, when and how far it came."""

_PARAMETERS = np.dtype([(name, RECORD_DTYPE[name]) for name in (*_FIELDS, "flags")])


class Distinct(NamedTuple):
    """Calls, each as the number of its kind.

    Attributes:
        kinds: One call of each kind, with the place and time of the first.
        which: For each call, which of the kinds it is.
        positions: For each call, its place in the stream of the rank.
    """

    kinds: Sequence[Call]
    which: NDArray[np.int64]
    positions: NDArray[np.int64]


def distinct_calls(log: CallLog) -> Distinct:
    """Return all calls that a log has kept."""
    start, stop = log.first, log.calls + 1
    # Of logs that read only what they are asked for; others have their calls in memory.
    find: Callable[[int, int], Distinct] | None = getattr(log, "distinct", None)
    return group_calls(log.span(start, stop)) if find is None else find(start, stop)


def group_calls(calls: Sequence[Call]) -> Distinct:
    """Return calls that have been decoded."""
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
    """Return the calls of records.

    Args:
        records: Of one communicator in one ring.
        decode: Makes calls of some of them.
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
