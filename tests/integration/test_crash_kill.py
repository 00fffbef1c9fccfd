"""A writer that is killed with SIGKILL leaves every call that it had recorded."""

from __future__ import annotations

import contextlib
import itertools
from collections import Counter
from pathlib import Path

import pytest

from ncclscope import Call, Rank, open_run
from ncclscope.errors import InputError
from ncclscope.model.signature import P2P_OPS, extend, sign
from tests.integration import crash_writer
from tests.integration.crash_writer import COMMS, THREADS, content

pytestmark = pytest.mark.both_writers

Posted = tuple[int, int]
"""Thread and its counter."""


def expected_signature(posted: Posted) -> int:
    _, op, fields = content(*posted)
    keys = ("dtype", "redop", "root", "shape", "sizes")
    return sign(op, **{key: fields[key] for key in keys if key in fields})


def identify(call: Call) -> Posted:
    """Return the thread that posted a call, if any did."""
    assert call.shape is not None
    thread, counter = call.shape[0] - 1, call.shape[1]
    assert 0 <= thread < THREADS
    name, op, fields = content(thread, counter)
    assert (call.comm, call.op) == (name, op)
    assert call.signature == (0 if op in P2P_OPS else expected_signature((thread, counter)))
    assert (call.dtype, call.site) == (fields["dtype"], fields["site"])
    for name in ("redop", "root", "peer", "sizes", "out_shape"):
        assert getattr(call, name) == fields.get(name), name
    return thread, counter


def kept_calls(rank: Rank) -> list[Call]:
    calls = [call for log in rank.logs.values() for call in log.span(log.first, log.calls + 1)]
    calls += [call for sent in rank.p2p.values() for call in sent]
    return sorted(calls, key=lambda call: call.position)


def check_chain(rank: Rank) -> None:
    """The running hash of each communicator is what its calls make of it, without a gap."""
    for log in rank.logs.values():
        calls = log.span(log.first, log.calls + 1)
        assert [call.seq for call in calls] == list(range(log.first, log.calls + 1))
        if log.first == 1:
            assert log.fingerprint(0) == 0
        running = log.fingerprint(log.first - 1)
        for call in calls:
            running = extend(running, expected_signature(identify(call)))
            assert log.fingerprint(call.seq) == running
        assert log.signatures(log.first, log.calls + 1) == [call.signature for call in calls]


def check(directory: Path, capacity: int, acknowledged: list[int]) -> int:
    """Compare a ring with what its writer had acknowledged; return how many were lost."""
    if not any(acknowledged):
        # Killed before anything was recorded for sure: the ring may be there or half made.
        with contextlib.suppress(InputError):
            open_run(directory)
        return 0
    (rank,) = open_run(directory).ranks
    calls = kept_calls(rank)
    posted = [identify(call) for call in calls]

    # Nothing twice, and each thread's calls in its own order.
    reached = []
    for thread in range(THREADS):
        counters = [counter for who, counter in posted if who == thread]
        assert counters == sorted(set(counters))
        # A thread posts again only when it has acknowledged: nothing beyond that is invented.
        assert all(counter <= acknowledged[thread] + 1 for counter in counters)
        newest = max([acknowledged[thread], *counters[-1:]])
        # One that was put aside before it could acknowledge may have seen its call overwritten.
        reached.append([newest] if newest > acknowledged[thread] else [newest, newest + 1])

    # The ring knows of exactly the calls up to there, kept or not.
    made = [rank.logs[name].calls if name in rank.logs else 0 for name in COMMS]
    head = rank.records + rank.lost
    possible = [
        until
        for until in itertools.product(*reached)
        if sum(until) == head and collectives(until) == made
    ]
    assert possible
    until = possible[0]
    assert rank.lost or list(until) == [threads[0] for threads in reached]

    # Positions are without a gap up to the newest, and reach back for a whole ring. The one
    # slot that the kill may have found half written held the oldest record.
    assert [call.position for call in calls] == list(range(head - len(calls), head))
    assert len(calls) >= min(head, capacity - 1)
    missing = {(t, c) for t in range(THREADS) for c in range(1, until[t] + 1)} - set(posted)
    assert len(missing) == head - len(calls)
    check_chain(rank)
    return len(missing)


def collectives(until: tuple[int, ...]) -> list[int]:
    """Return the number of calls on each communicator up to there."""
    posted = (content(thread, n) for thread in range(THREADS) for n in range(1, until[thread] + 1))
    totals = Counter(comm for comm, op, _ in posted if op not in P2P_OPS)
    return [totals[name] for name in COMMS]


@pytest.mark.slow
def test_nothing_acknowledged_is_missing_and_nothing_is_invented(
    rings: Path, tmp_path: Path
) -> None:
    rounds = crash_writer.plan(rings, rounds=120, capacity=8192, longest=1200, seed=1)
    results = crash_writer.run(rounds, tmp_path)

    lost = [
        check(Path(life.directory), life.capacity, acknowledged)
        for life, acknowledged in zip(rounds, results, strict=True)
    ]
    assert lost == [0] * len(rounds)
    assert sum(sum(acknowledged) for acknowledged in results) > 20_000


@pytest.mark.slow
def test_a_small_ring_keeps_the_newest_calls_and_counts_the_others(
    rings: Path, tmp_path: Path
) -> None:
    rounds = crash_writer.plan(rings, rounds=80, capacity=1024, longest=3000, seed=2)
    results = crash_writer.run(rounds, tmp_path)

    lost = [
        check(Path(life.directory), life.capacity, acknowledged)
        for life, acknowledged in zip(rounds, results, strict=True)
    ]
    assert sum(number > 0 for number in lost) > 40
