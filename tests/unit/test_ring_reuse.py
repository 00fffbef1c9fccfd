"""Communicators that were destroyed give their number to later ones."""

from __future__ import annotations

import time
from collections import deque
from pathlib import Path

import pytest

from ncclscope import Rank
from ncclscope.model.signature import sign
from ncclscope.readers.ring.cursor import RingCursor
from ncclscope.ring import layout
from ncclscope.ring.channel import Channel
from ncclscope.ring.native_writer import open_writer
from ncclscope.ring.reader import RingFile
from ncclscope.ring.writer import RingWriter
from tests.support.rings import SMALL, read

pytestmark = pytest.mark.both_writers

ALIVE = 600
ABOUT = {"rank": 0, "world_size": 1, "host": "h", "pid": 1}


def opened(ring: RingWriter, number: int) -> Channel:
    about = {"key": f"k{number:06}", "label": f"pg:{number:06}", "ranks": [0], "backend": "nccl"}
    return ring.channel(about)


def post(ring: RingWriter, channel: Channel, number: int, calls: int = 1) -> None:
    """Record calls whose shape says on which communicator they were."""
    fixed = ring.fixed(channel, "all_reduce", shape=(number,), numel=number)
    for _ in range(calls):
        ring.post(channel, fixed, sign("all_reduce", shape=(number,)))


def churn(ring: RingWriter, closed: int) -> dict[int, Channel]:
    """Open communicators, so many at a time; return those that are left, by number."""
    alive: deque[tuple[int, Channel]] = deque()
    for number in range(closed + ALIVE):
        channel = opened(ring, number)
        assert channel.index
        post(ring, channel, number, 1 + number % 3)
        alive.append((number, channel))
        if len(alive) > ALIVE:
            _, old = alive.popleft()
            ring.close_channel(old)
    return dict(alive)


def check(rank: Rank, number: int, calls: int) -> None:
    log = rank.logs[f"k{number:06}"]
    assert log.communicator.label == f"pg:{number:06}"
    assert (log.first, log.calls) == (1, calls)
    assert [call.shape for call in log.span(1, calls + 1)] == [(number,)] * calls
    assert set(log.signatures(1, calls + 1)) == {sign("all_reduce", shape=(number,))}


def test_the_communicators_that_are_alive_are_read(rings: Path) -> None:
    ring = open_writer(rings, capacity=8192, about=ABOUT)
    alive = churn(ring, 2000)
    assert max(channel.index for channel in alive.values()) == ALIVE + 1

    rank = read(ring.path)

    assert rank.lost == 0
    assert len(rank.logs) == ALIVE + 1
    for number in alive:
        check(rank, number, 1 + number % 3)
    with RingFile(ring.path) as image:
        assert image.damage == set()
        assert image.word(layout.HEADER_REUSED) == 2000 - 1
        for number, channel in alive.items():
            # Each communicator before it has made one to three calls.
            before = sum(1 + earlier % 3 for earlier in range(number))
            assert image.since[channel.index] == before


def test_a_communicator_that_is_used_again_keeps_its_number(rings: Path) -> None:
    ring = open_writer(rings, capacity=8192, about=ABOUT)
    alive = churn(ring, 0)
    first, second = list(alive.items())[:2]
    for _, channel in (first, second):
        ring.close_channel(channel)
    ring.reopen_channel(first[1])
    index = second[1].index

    assert opened(ring, 1000).index == index
    post(ring, first[1], first[0])
    check(read(ring.path), first[0], 2)


def test_updates_of_a_communicator_are_not_those_of_its_successor(rings: Path) -> None:
    ring = open_writer(rings, capacity=8192, about=ABOUT)
    alive = churn(ring, 0)
    number, channel = next(iter(alive.items()))
    ring.update_channel(channel, {"label": "tp:0", "timeout": 77})
    assert read(ring.path).logs[f"k{number:06}"].communicator.timeout == 77
    ring.close_channel(channel)
    index = channel.index

    successor = opened(ring, 1000)

    assert successor.index == index
    post(ring, successor, 1000)
    rank = read(ring.path)
    assert f"k{number:06}" not in rank.logs
    check(rank, 1000, 1)
    assert rank.logs["k001000"].communicator.timeout != 77
    ring.update_channel(successor, {"label": "tp:9"})
    assert read(ring.path).logs["k001000"].communicator.label == "tp:9"


def test_table_and_marks_of_a_predecessor_are_not_believed(rings: Path) -> None:
    """All records of both are overwritten, and the first had more calls."""
    ring = open_writer(rings, capacity=SMALL, about=ABOUT)
    alive = churn(ring, 0)
    number, channel = next(iter(alive.items()))
    post(ring, channel, number, 3 * layout.MARK_EVERY)
    ring.close_channel(channel)
    successor = opened(ring, 1000)
    post(ring, successor, 1000, 5)
    last = list(alive.items())[-1]

    rank = read(ring.path)
    check(rank, 1000, 5)

    post(ring, last[1], last[0], 2 * SMALL)
    rank = read(ring.path)
    log = rank.logs["k001000"]
    assert (log.first, log.calls) == (6, 5)
    value = log.fingerprint(5)
    twin = open_writer(rings / "twin", capacity=SMALL, about=ABOUT)
    post(twin, opened(twin, 1000), 1000, 5)
    assert value == read(twin.path).logs["k001000"].fingerprint(5)


def cursor_of(ring: RingWriter) -> RingCursor:
    return RingCursor(ring.path)


def test_a_cursor_follows_a_reuse(rings: Path) -> None:
    ring = open_writer(rings, capacity=8192, about=ABOUT)
    alive = churn(ring, 0)
    number, channel = next(iter(alive.items()))
    key = f"k{number:06}"
    cursor = cursor_of(ring)
    post(ring, channel, number, 5)
    assert cursor.poll(1.0)
    assert cursor.comm_cursors[key].seq == 6
    ring.close_channel(channel)
    successor = opened(ring, 1000)
    post(ring, successor, 1000, 2)

    assert cursor.poll(2.0)

    assert key not in cursor.comm_cursors
    assert key not in cursor.pending()
    found = cursor.comm_cursors["k001000"]
    assert (found.seq, found.hash) == (2, read(ring.path).logs["k001000"].fingerprint(2))
    assert cursor.hash_at("k001000", 1) == read(ring.path).logs["k001000"].fingerprint(1)
    assert cursor.pending() >= {"k001000"}
    post(ring, successor, 1000, 1)
    assert cursor.poll(3.0)
    assert found.seq == 3


def test_a_cursor_does_not_take_calls_of_a_predecessor_for_those_of_its_successor(
    rings: Path,
) -> None:
    ring = open_writer(rings, capacity=8192, about=ABOUT)
    alive = churn(ring, 0)
    number, channel = next(iter(alive.items()))
    cursor = cursor_of(ring)
    post(ring, channel, number, 5)  # seen only after the number was taken over
    ring.close_channel(channel)
    opened(ring, 1000)

    cursor.poll(1.0)

    found = cursor.comm_cursors["k001000"]
    assert (found.seq, found.hash) == (0, 0)
    assert "k001000" not in cursor.pending()


@pytest.mark.slow
def test_a_hundred_thousand_communicators_take_bounded_space_and_time(rings: Path) -> None:
    ring = open_writer(rings, capacity=8192, about=ABOUT)
    churn(ring, 1000)
    size, began = ring.path.stat().st_blocks, time.thread_time()
    used = _texts(ring)
    alive = churn(ring, 99_000)

    assert time.thread_time() - began < 60
    assert max(channel.index for channel in alive.values()) <= 2 * ALIVE + 1
    assert _texts(ring) - used < 256 * 1024
    assert (ring.path.stat().st_blocks - size) * 512 < 2 << 20
    rank = read(ring.path)
    for number in alive:
        check(rank, number, 1 + number % 3)


def _texts(ring: RingWriter) -> int:
    with RingFile(ring.path) as image:
        return image.word(layout.HEADER_STRINGS_USED)
