"""What tests of rings share: recognisable content, and access to the bytes."""

from __future__ import annotations

import zlib
from pathlib import Path
from typing import Any

import pytest

from ncclscope import Call, Rank, native, open_run
from ncclscope.model.log import CallLog
from ncclscope.model.signature import extend, sign
from ncclscope.ring import layout
from ncclscope.ring.writer import RingWriter
from ncclscope.tracing.tracer import Comm, Tracer

SMALL = layout.MIN_CAPACITY

_OPS: tuple[tuple[str, dict[str, Any]], ...] = (
    ("all_reduce", {"redop": "sum", "dtype": "bfloat16"}),
    ("all_gather", {"dtype": "float32"}),
    ("broadcast", {"dtype": "int64", "root": 1}),
    ("reduce_scatter", {"redop": "avg", "dtype": "float16"}),
    ("barrier", {}),
)


def choose_core(language: str, patch: pytest.MonkeyPatch) -> None:
    """Let the core in ``C`` record during a test, or ``Python``; skip the test without a core."""
    if language == "Python":
        patch.setenv("NCCLSCOPE_NATIVE", "0")
    elif native.core() is None:
        pytest.skip(native.why_not())


def tracer_in(directory: Path, *, capacity: int = SMALL, **fields: Any) -> Tracer:
    """Return a tracer without a heartbeat thread."""
    fields = {"rank": 0, "world_size": 1, "heartbeat": False} | fields
    return Tracer(directory, capacity=capacity, **fields)


def parameters(number: int) -> tuple[str, dict[str, Any]]:
    """Return operation and parameters of call ``number``: no two neighbours are alike."""
    op, fields = _OPS[number % len(_OPS)]
    return op, {"shape": (number, 1 + number % 3), **fields}


def signature(number: int) -> int:
    """Return what members must agree in for call ``number``."""
    op, fields = parameters(number)
    return sign(op, **fields)


def post(tracer: Tracer, comm: Comm, number: int) -> int:
    """Record call ``number``."""
    op, fields = parameters(number)
    return tracer.record(comm, op, site=f"test.py:{number % 7} f", **fields)


def fill(tracer: Tracer, comm: Comm, start: int, stop: int) -> None:
    """Record calls ``start`` to ``stop - 1``."""
    for number in range(start, stop):
        post(tracer, comm, number)


def is_call(call: Call, number: int) -> bool:
    """Return whether a call that was read is call ``number``, in all that was recorded of it."""
    op, fields = parameters(number)
    return call.signature == signature(number) and (
        call.op,
        call.shape,
        call.dtype,
        call.redop,
        call.root,
        call.site,
    ) == (
        op,
        fields["shape"],
        fields.get("dtype"),
        fields.get("redop"),
        fields.get("root"),
        f"test.py:{number % 7} f",
    )


def running(numbers: range) -> int:
    """Return the running hash after these calls."""
    value = 0
    for number in numbers:
        value = extend(value, signature(number))
    return value


def geometry_of(data: bytes | bytearray) -> layout.Geometry:
    """Return where the parts of a ring are, given its bytes."""
    _, version, _, *sizes = layout.OLD_HEADER.unpack_from(data)
    if version == layout.VERSION:
        return layout.Geometry(*layout.HEADER.unpack_from(data)[3:-1])
    places = (layout.OLD_GRAPHS_SIZE, layout.OLD_DEVICE_SIZE)
    graphs, device = (int.from_bytes(data[place : place + 8], "little") for place in places)
    return layout.Geometry(*sizes, layout.OLD_COMMS, graphs, device, False)


def _places(offset: int, value: int) -> list[tuple[int, bytes]]:
    """Return where one of `layout.HEADER_*` and its complement are stored, and their bytes."""
    stored = value.to_bytes(8, "little"), (value ^ (1 << 64) - 1).to_bytes(8, "little")
    return [
        (start + offset + behind, data)
        for start in (layout.MIRROR, 0)
        for behind, data in zip((0, layout.COMPLEMENTS), stored, strict=True)
    ]


def set_word(data: bytearray, offset: int, value: int) -> None:
    """Store one of `layout.HEADER_*`, its complement and their copies into the bytes of a ring."""
    for place, stored in _places(offset, value):
        data[place : place + 8] = stored


def put_word(path: str | Path, offset: int, value: int) -> None:
    """Store one of `layout.HEADER_*`, its complement and their copies into a ring."""
    with open(path, "r+b") as file:
        for place, stored in _places(offset, value):
            file.seek(place)
            file.write(stored)


def seal_header(data: bytearray) -> None:
    """Give a changed header a check that fits it, and the mirror a copy of it."""
    check = zlib.crc32(data[: layout.HEADER_CHECK])
    data[layout.HEADER_CHECK : layout.HEADER_CHECK + 4] = check.to_bytes(4, "little")
    size = layout.HEADER_CHECK + 4
    data[layout.MIRROR : layout.MIRROR + size] = data[:size]


def seal_record(data: bytearray, start: int) -> None:
    """Give a changed record a check that fits it.

    Args:
        data: The bytes of a ring.
        start: Offset of the record.
    """
    stop = start + layout.RECORD.size
    data[start:stop] = layout.sealed_record(bytes(data[start:stop]))


def seal(data: bytearray) -> None:
    """Give all records, and the entries of tables, marks and activities, checks that fit."""
    geometry = geometry_of(data)
    for number in range(geometry.capacity):
        start = geometry.records + number * layout.RECORD.size
        if any(data[start : start + layout.RECORD.size]):
            seal_record(data, start)
    for size, start, count in (
        (layout.TABLE_ENTRY.size, geometry.table, 2 * geometry.comms),
        (layout.MARK.size, geometry.mark_area, geometry.marks),
        (layout.ACTIVITY.size, layout.HEADER_ACTIVITIES, layout.MAX_ACTIVITIES),
    ):
        for at in range(start, start + count * size, size):
            entry = bytes(data[at : at + size - 4]) + bytes(4)
            data[at : at + size] = layout.sealed(entry)


def reseal(path: str | Path, position: int) -> None:
    """Give the record at a position, which was changed, a check that fits it."""
    data = bytearray(Path(path).read_bytes())
    geometry = geometry_of(data)
    seal_record(data, geometry.records + position % geometry.capacity * layout.RECORD.size)
    Path(path).write_bytes(data)


def end(path: str | Path) -> None:
    """Mark a ring's process as ended: the ring is then read bit by bit."""
    put_word(path, layout.HEADER_EXITED, 1)


def read(path: str | Path, *, ended: bool = False) -> Rank:
    """Read a ring with one rank in it."""
    if ended:
        end(path)
    (rank,) = open_run(path).ranks
    return rank


def check_log(log: CallLog, first: int, calls: int) -> None:
    """Hold a log against calls number 1, 2, 3, ... that were recorded with :func:`post`."""
    assert (log.first, log.calls) == (first, calls)
    span = log.span(1, calls + 1)
    assert [call.seq for call in span] == list(range(first, calls + 1))
    assert all(is_call(call, call.seq) for call in span)
    assert list(log.signatures(first, calls + 1)) == [
        signature(number) for number in range(first, calls + 1)
    ]
    value = running(range(1, first))
    assert log.fingerprint(first - 1) == value
    for number in range(first, calls + 1):
        value = extend(value, signature(number))
        assert log.fingerprint(number) == value
    for number in {first, calls} if calls >= first else ():
        assert is_call(log.call(number), number)


def slot(ring: RingWriter, position: int) -> slice:
    """Return the offset of a record in the file."""
    offset = ring.geometry.records + position % ring.capacity * layout.RECORD.size
    return slice(offset, offset + layout.RECORD.size)
