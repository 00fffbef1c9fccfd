"""A ring that was cut off in the middle of a store: whatever a kill can leave, byte by byte."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from ncclscope.ring import layout
from ncclscope.tracing.tracer import Comm, Tracer
from tests.support.examples import EVERYTHING
from tests.support.rings import (
    SMALL,
    check_log,
    fill,
    parameters,
    post,
    read,
    signature,
    slot,
    tracer_in,
)

EVERY = layout.table_every(SMALL)
STEP = 1 if EVERYTHING else 3
"""Bytes between two places where a store is cut off."""
SIGNATURES = [signature(number) for number in range(5 * SMALL)]


def cut_short(old: bytes, new: bytes) -> Iterator[bytes]:
    """Yield what a store of ``new`` over ``old`` can leave, from nothing done to all done.

    The writer clears the place first. That no store is left half done is the processor's word
    for 8 bytes, but nothing here depends on it, nor on the clearing.
    """
    size = len(new)
    counts = sorted({*range(0, size, STEP), size})
    for count in counts:
        yield bytes(count) + old[count:]
    for count in counts:
        yield new[:count] + old[count:]
    for count in counts:
        yield new[:count] + bytes(size - count)


def post_in_steps(tracer: Tracer, comm: Comm, number: int) -> tuple[bytes, bytes]:
    """Record a call and return the file before and after, but for the texts it refers to."""
    op, fields = parameters(number)
    tracer.template(comm, op, site=f"test.py:{number % 7} f", **fields)
    before = Path(tracer.path).read_bytes()
    post(tracer, comm, number)
    return before, Path(tracer.path).read_bytes()


def is_near(one: bytes, other: bytes) -> bool:
    """Return whether two records differ in one bit at most."""
    return (int.from_bytes(one, "little") ^ int.from_bytes(other, "little")).bit_count() <= 1


@pytest.mark.parametrize(
    "calls",
    [
        pytest.param(0, id="first record"),
        pytest.param(41, id="fresh slot"),
        pytest.param(SMALL, id="first slot again"),
        pytest.param(SMALL + 1, id="second slot again"),
        pytest.param(3 * SMALL + 77, id="fourth lap"),
        pytest.param(3 * SMALL + EVERY - 1, id="before a table"),
        pytest.param(4 * SMALL - 1, id="last slot, before a mark"),
    ],
)
@pytest.mark.parametrize("ended", [False, True], ids=["running", "ended"])
def test_a_torn_record_is_not_shown_and_hides_no_other(
    rings: Path, calls: int, ended: bool
) -> None:
    tracer = tracer_in(rings)
    comm = tracer.communicator("k", "tp:0", [0])
    fill(tracer, comm, 1, calls + 1)
    before, after = post_in_steps(tracer, comm, calls + 1)
    at = slot(tracer.ring, calls)
    old, new = before[at], after[at]

    copy = rings / "copy.ring"
    copy.write_bytes(before)
    # The old record is gone with its first byte, the new one is there with its last.
    untouched = (max(1, calls - SMALL + 1), calls)
    torn = (max(1, calls - SMALL + 2), calls)
    whole = (max(1, calls - SMALL + 2), calls + 1)
    seen = set()
    for state in cut_short(old, new):
        with copy.open("r+b") as file:
            file.seek(at.start)
            file.write(state)
        log = read(copy, ended=ended).logs["k"]
        expected = whole if state == new else untouched if state == old else torn
        # A flipped bit is corrected where the record cannot be written now.
        near = [untouched] * is_near(state, old) + [whole] * is_near(state, new)
        assert (log.first, log.calls) in (expected, *near), state.hex()
        expected = log.first, log.calls
        assert list(log.signatures(1, calls + 2)) == SIGNATURES[log.first : log.calls + 1]
        if expected not in seen:
            seen.add(expected)
            check_log(log, *expected)
    assert seen == {untouched, torn, whole}


@pytest.mark.parametrize("ended", [False, True], ids=["running", "ended"])
@pytest.mark.parametrize("calls", [4 * SMALL - 1, 4 * SMALL + EVERY - 1])
def test_torn_marks_and_tables_are_done_without(rings: Path, calls: int, ended: bool) -> None:
    tracer = tracer_in(rings)
    other = tracer.communicator("other", "dp:0", [0])
    fill(tracer, other, 1, 6)
    comm = tracer.communicator("k", "tp:0", [0])
    fill(tracer, comm, 1, calls - 5 + 1)
    before, after = post_in_steps(tracer, comm, calls - 5 + 1)
    record = slot(tracer.ring, calls)
    geometry = tracer.ring.geometry
    changed = [
        slice(start, start + layout.TABLE_ENTRY.size)
        for start in range(geometry.table, geometry.records, layout.TABLE_ENTRY.size)
        if before[start : start + layout.TABLE_ENTRY.size]
        != after[start : start + layout.TABLE_ENTRY.size]
    ]
    assert len(changed) >= 2

    copy = rings / "copy.ring"
    copy.write_bytes(before)
    with copy.open("r+b") as file:
        file.seek(record.start)
        file.write(after[record])
        for at in changed:
            for state in cut_short(before[at], after[at]):
                file.seek(at.start)
                file.write(state)
                file.flush()
                logs = read(copy, ended=ended).logs
                assert (logs["other"].calls, logs["k"].calls) == (5, calls - 4)
                assert logs["k"].first == calls - 5 - SMALL + 2
                assert (
                    list(logs["k"].signatures(1, calls))
                    == (SIGNATURES[logs["k"].first : calls - 3])
                )
    check_log(read(copy).logs["k"], calls - 5 - SMALL + 2, calls - 4)


def test_of_a_torn_self_description_the_one_before_is_taken(rings: Path) -> None:
    tracer = tracer_in(rings)
    tracer.communicator("k")
    tracer.describe(rank=1, note="old", more="x" * 50)
    before = Path(tracer.path).read_bytes()
    tracer.describe(rank=2, note="newer")
    after = Path(tracer.path).read_bytes()
    geometry = tracer.ring.geometry
    changed = [place for place in range(len(before)) if before[place] != after[place]]
    copies = [place for place in changed if geometry.about <= place < geometry.mirror]
    place = layout.HEADER_ABOUTS
    words = {
        start + place + behind for start in (0, layout.MIRROR) for behind in (0, layout.COMPLEMENTS)
    }
    assert {place // 8 * 8 for place in changed} - {place // 8 * 8 for place in copies} == words
    middle = geometry.about + geometry.about_size
    first, second = [
        slice(min(places), max(places) + 1)
        for places in (
            [place for place in copies if place >= middle],
            [place for place in copies if place < middle],
        )
    ]

    copy = rings / "copy.ring"
    copy.write_bytes(before)
    seen = set()
    with copy.open("r+b") as file:
        for at in (first, second):  # as they are stored
            for state in (*cut_short(before[at], after[at]), after[at]):
                file.seek(at.start)
                file.write(state)
                file.flush()
                rank = read(copy)
                seen.add((rank.rank, rank.details["note"]))
    assert seen == {(1, "old"), (2, "newer")}
    # Killed before its number, or half of that, was stored.
    head, both = before[: geometry.about], after[geometry.about : geometry.mirror]
    for rest in (before, after):
        copy.write_bytes(head + both + rest[geometry.mirror :])
        assert read(copy).rank == 2
