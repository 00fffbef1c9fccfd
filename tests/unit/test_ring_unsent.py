"""Calls that raised before they were sent: the next call has their number."""

from __future__ import annotations

from pathlib import Path

import pytest

from ncclscope.ring import layout
from tests.support.rings import SMALL, check_log, fill, post, read, tracer_in

pytestmark = pytest.mark.both_writers

EVERY = layout.table_every(SMALL)


@pytest.mark.parametrize("ended", [False, True], ids=["running", "ended"])
@pytest.mark.parametrize("before", [0, 5, EVERY, 3 * EVERY + 7, SMALL + 90, 3 * SMALL])
def test_a_withdrawn_call_leaves_no_trace_in_the_sequence(
    rings: Path, ended: bool, before: int
) -> None:
    tracer = tracer_in(rings)
    comm = tracer.communicator("k", "tp:0", [0])
    fill(tracer, comm, 1, before + 1)
    for _ in range(3):
        assert tracer.ring.withdraw(comm.channel, post(tracer, comm, 999))
    fill(tracer, comm, before + 1, before + 8)

    rank = read(tracer.path, ended=ended)

    check_log(rank.logs["k"], max(1, before + 7 + 3 - SMALL + 1), before + 7)
    assert rank.last_step() is None


def test_sends_are_withdrawn_too(rings: Path) -> None:
    tracer = tracer_in(rings)
    comm = tracer.communicator("k", "tp:0", [0, 1])
    tracer.record(comm, "send", peer=1, numel=4)
    refused = tracer.record(comm, "send", peer=1, numel=8)
    assert tracer.ring.withdraw(comm.channel, refused)
    tracer.record(comm, "send", peer=1, numel=16)

    (calls,) = read(tracer.path).p2p.values()

    assert [(call.seq, call.numel) for call in calls] == [(1, 4), (2, 16)]


def test_a_call_that_others_followed_stays(rings: Path) -> None:
    """Its thread was late to report the exception: the later calls already count it."""
    tracer = tracer_in(rings)
    comm, other = (tracer.communicator(key, key, [0]) for key in ("k", "other"))
    first = post(tracer, comm, 1)
    fill(tracer, comm, 2, 4)
    elsewhere = post(tracer, other, 1)

    assert not tracer.ring.withdraw(comm.channel, first)
    assert not tracer.ring.withdraw(comm.channel, elsewhere)
    assert not tracer.ring.withdraw(comm.channel, 77)
    check_log(read(tracer.path).logs["k"], 1, 3)


@pytest.mark.parametrize("counted", [EVERY, layout.MARK_EVERY])
def test_a_call_that_a_table_or_a_mark_counts_stays(rings: Path, counted: int) -> None:
    tracer = tracer_in(rings)
    comm = tracer.communicator("k", "tp:0", [0])
    if counted == layout.MARK_EVERY:  # no table is due at the same record
        post(tracer, tracer.communicator("other", "other", [0]), 1)
    fill(tracer, comm, 1, counted)
    position = post(tracer, comm, counted)

    assert not tracer.ring.withdraw(comm.channel, position)
    assert read(tracer.path).logs["k"].calls == counted
