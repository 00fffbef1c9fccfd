"""The guard: what it sees, what it must not see, and that it never harms."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ncclscope.errors import DivergenceError
from ncclscope.guard import cursors as guard_words
from ncclscope.guard.cursors import DEPTH, PeerCursor, digest_of
from ncclscope.tracing import scope, warning
from ncclscope.tracing.tracer import Comm, Tracer
from tests.support.programs import run_program
from tests.support.rings import post, tracer_in

KEY = "key of tp:0"
Ranks = Callable[..., list[tuple[Tracer, Comm]]]


@pytest.fixture
def ranks(rings: Path, monkeypatch: pytest.MonkeyPatch) -> Ranks:
    """Make guarded ranks of one communicator, all in this process."""
    monkeypatch.setattr(warning, "_warned", set())

    def make(count: int, mode: str = "raise", capacity: int = 4096) -> list[tuple[Tracer, Comm]]:
        monkeypatch.setenv("NCCLSCOPE_GUARD", mode)
        tracers = [
            tracer_in(rings, rank=rank, world_size=count, capacity=capacity)
            for rank in range(count)
        ]
        members = range(count)
        return [(tracer, tracer.communicator(KEY, "tp:0", members)) for tracer in tracers]

    return make


def guard_of(tracer: Tracer) -> Any:
    return tracer._guard


def test_without_the_variable_there_is_no_guard(rings: Path) -> None:
    tracer = tracer_in(rings)

    assert tracer._guard is None
    assert tracer.post == tracer.ring.post
    assert not list(rings.glob("*.words"))


def test_ranks_that_agree_are_left_alone(ranks: Ranks) -> None:
    group = ranks(3)

    for number in range(1, 3 * DEPTH):
        for tracer, comm in group:
            post(tracer, comm, number)

    assert all(guard_of(tracer).active for tracer, _ in group)


def test_the_error_of_the_last_rank_lists_what_all_have_posted_and_where(ranks: Ranks) -> None:
    group = ranks(3)
    for number in range(1, 5):
        for tracer, comm in group:
            post(tracer, comm, number)
    post(*group[0], 5)
    post(*group[1], 5)

    with pytest.raises(DivergenceError) as caught:
        post(*group[2], 6)

    error = caught.value
    assert (error.comm, error.seq) == ("tp:0", 5)
    assert error.posted == {
        0: "all_reduce sum [5,3] bfloat16 at test.py:5 f",
        1: "all_reduce sum [5,3] bfloat16 at test.py:5 f",
        2: "all_gather [6,1] float32 at test.py:6 f",
    }
    assert "rank 2 posted all_gather" in str(error)
    assert "ranks 0 1 posted all_reduce" in str(error)
    assert error.exit_status == 1


def test_raising_goes_on_as_long_as_the_program_does(ranks: Ranks) -> None:
    (one, comm), (other, theirs) = ranks(2)
    post(one, comm, 1)
    for number in (2, 3):
        post(one, comm, number)
        with pytest.raises(DivergenceError, match="diverge at call 1"):
            post(other, theirs, number + 7)


def test_warn_says_it_once_and_lets_all_calls_through(
    ranks: Ranks, caplog: pytest.LogCaptureFixture
) -> None:
    (one, comm), (other, theirs) = ranks(2, mode="warn")
    with caplog.at_level(logging.WARNING, "ncclscope"):
        for number in range(1, 20):
            post(one, comm, number)
            post(other, theirs, number if number != 7 else 70)

    (record,) = caplog.records
    assert "the sequences on tp:0 diverge at call 7: rank 1 posted" in record.message
    assert (comm.channel.seq, theirs.channel.seq) == (19, 19)
    assert not guard_of(other).active


def test_a_peer_that_is_ahead_and_agrees(ranks: Ranks) -> None:
    (one, comm), (other, theirs) = ranks(2)
    for number in range(1, 2000):
        post(one, comm, number)
    for number in range(1, 2000):
        post(other, theirs, number)

    assert guard_of(other).active


def test_a_peer_that_is_far_ahead_and_diverged_long_ago(ranks: Ranks) -> None:
    (one, comm), (other, theirs) = ranks(2)
    for number in range(1, 3000):
        post(one, comm, number if number != 100 else 7)
    for number in range(1, 100):
        post(other, theirs, number)

    with pytest.raises(DivergenceError, match="diverge at call 100"):
        post(other, theirs, 100)


def test_a_peer_that_is_behind(ranks: Ranks) -> None:
    (one, comm), (other, theirs) = ranks(2)
    post(other, theirs, 1)
    for number in range(1, 4 * DEPTH):
        post(one, comm, number)

    # It comes after, and is the one to see it.
    with pytest.raises(DivergenceError, match="diverge at call 2"):
        post(other, theirs, 9)


def test_of_a_call_that_is_overwritten_nothing_is_claimed(ranks: Ranks) -> None:
    (one, comm), (other, theirs) = ranks(2, capacity=1024)
    for number in range(1, 5000):
        post(one, comm, number + 1)

    post(other, theirs, 1)

    assert guard_of(other).active


def test_a_torn_cursor_is_checked_against_the_records(ranks: Ranks) -> None:
    (one, comm), (other, theirs) = ranks(2)
    for number in range(1, 9):
        post(one, comm, number)
    cursor = guard_of(one)._known[comm.channel.index].hashes
    cursor[5] ^= 1 << 40

    for number in range(1, 9):
        post(other, theirs, number)

    assert guard_of(other).active


def test_point_to_point_calls_are_left_out(ranks: Ranks) -> None:
    (one, comm), (other, theirs) = ranks(2)
    one.record(comm, "send", shape=(4,), dtype="float32", peer=1)
    other.record(theirs, "recv", shape=(4,), dtype="float32", peer=0)
    one.record(comm, "send", shape=(9,), dtype="float32", peer=1)
    for number in (1, 2):
        post(one, comm, number)
        post(other, theirs, number)

    assert guard_of(other).active


def test_the_order_inside_a_group_does_not_count(ranks: Ranks) -> None:
    (one, comm), (other, theirs) = ranks(2)
    for (tracer, own), numbers in (((one, comm), (1, 2)), ((other, theirs), (2, 1))):
        scope.enter_group()
        for number in numbers:
            post(tracer, own, number)
        scope.leave_group()
    for number in (3, 4):
        post(one, comm, number)
        post(other, theirs, number)

    assert guard_of(other).active


def test_but_its_calls_do(ranks: Ranks) -> None:
    (one, comm), (other, theirs) = ranks(2)
    for (tracer, own), numbers in (((one, comm), (1, 2)), ((other, theirs), (2, 5))):
        scope.enter_group()
        for number in numbers:
            post(tracer, own, number)
        scope.leave_group()
    post(one, comm, 3)

    with pytest.raises(DivergenceError, match="diverge at call 1"):
        post(other, theirs, 3)


GONE = f"""
import sys
from tests.support.rings import post, tracer_in
tracer = tracer_in(sys.argv[1], rank=0, world_size=2)
comm = tracer.communicator({KEY!r}, "tp:0", [0, 1])
for number in range(10, 40):
    post(tracer, comm, number)
"""


def test_a_peer_that_was_restarted_is_not_taken_for_its_predecessor(
    rings: Path, ranks: Ranks
) -> None:
    ended = run_program(GONE, rings, NCCLSCOPE_GUARD="warn")
    assert ended.returncode == 0, ended.stderr
    assert len(list(rings.glob("*.words"))) == 1

    (one, comm), (other, theirs) = ranks(2)
    for number in range(1, 40):
        post(one, comm, number)
        post(other, theirs, number)

    assert guard_of(other).active
    post(one, comm, 1)
    with pytest.raises(DivergenceError):
        post(other, theirs, 2)


def test_a_peer_that_comes_later_is_found(ranks: Ranks, rings: Path) -> None:
    (other, theirs) = ranks(2)[1]
    post(other, theirs, 1)
    late = tracer_in(rings, rank=2, world_size=3)
    comm = late.communicator(KEY, "tp:0", [0, 1, 2])

    with pytest.raises(DivergenceError, match="rank 2 posted"):
        post(late, comm, 2)


def test_two_communicators_are_not_mixed_up(ranks: Ranks) -> None:
    group = ranks(2)
    for place, (tracer, comm) in enumerate(group):
        second = tracer.communicator("another", "dp:0", (0, 1))
        order = (comm, second) if place else (second, comm)
        for number, own in enumerate(order):
            post(tracer, own, 3 + (number if place else 1 - number))

    assert all(guard_of(tracer).active for tracer, _ in group)


def test_whatever_goes_wrong_in_it_ends_it_and_not_the_job(
    ranks: Ranks, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    (one, comm), (other, theirs) = ranks(2)

    def fail(*_: object) -> None:
        raise MemoryError("none left")

    post(one, comm, 1)
    guard = guard_of(other)
    monkeypatch.setattr(guard._records, "judge", fail)
    with caplog.at_level(logging.WARNING, "ncclscope"):
        for number in range(2, 9):
            post(other, theirs, number)

    assert [record.message for record in caplog.records] == [
        "the guard is off in this process: MemoryError: none left"
    ]
    assert theirs.channel.seq == 7


@pytest.mark.parametrize("content", [b"", b"ncclword", b"x" * 2_000_000, b"\0" * 2_000_000])
def test_foreign_files_are_passed_over(ranks: Ranks, rings: Path, content: bytes) -> None:
    (rings / "foreign.words").write_bytes(content)
    os.mkfifo(rings / "pipe.words")
    (one, comm), (other, theirs) = ranks(2)
    post(one, comm, 1)

    with pytest.raises(DivergenceError):
        post(other, theirs, 2)


def test_a_mode_that_does_not_exist_is_refused(
    rings: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(warning, "_warned", set())
    monkeypatch.setenv("NCCLSCOPE_GUARD", "shout")
    with caplog.at_level(logging.WARNING, "ncclscope"):
        assert tracer_in(rings)._guard is None

    assert "neither warn nor raise" in caplog.text


def test_a_forked_child_does_not_write_its_parents_cursor(ranks: Ranks) -> None:
    ((tracer, comm),) = ranks(3)[:1]
    post(tracer, comm, 1)
    child = os.fork()
    if not child:
        post(tracer, comm, 2)
        os._exit(0)
    os.waitpid(child, 0)

    found = PeerCursor(guard_of(tracer)._file.path).find(digest_of(KEY))
    assert found is not None
    rank, _, cursor, last = found
    assert (rank, last[0]) == (0, 1)
    assert list(cursor[:3]) == [0, comm.channel.hash, 0]


def test_more_communicators_than_there_are_slots(ranks: Ranks) -> None:
    (one, _), (other, _) = ranks(2)
    for number in range(guard_words.SLOTS + 5):
        for tracer in (one, other):
            comm = tracer.communicator(f"comm {number}", "", (0, 1))
            post(tracer, comm, number)

    assert guard_of(one).active


def test_a_peer_whose_calls_only_the_plugin_recorded_is_no_divergence(ranks: Ranks) -> None:
    (one, comm), (other, theirs) = ranks(2)
    for size in range(1, 5):
        other.record(theirs, "all_reduce", numel=size, dtype="float32")
        one.record(comm, "all_reduce", shape=(size,), dtype="float32", redop="sum")

    assert guard_of(one).active


def test_a_call_of_another_size_is_one_though_its_reduction_is_unknown(ranks: Ranks) -> None:
    (one, comm), (other, theirs) = ranks(2)
    other.record(theirs, "all_reduce", numel=8, dtype="float32")

    with pytest.raises(DivergenceError):
        one.record(comm, "all_reduce", shape=(4,), dtype="float32", redop="sum")
