"""A ring that has gone round: what is kept, what is lost, and what is still known of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from ncclscope.ring import layout
from ncclscope.ring.reader import RingFile
from tests.support.rings import SMALL, check_log, fill, post, read, running, tracer_in

pytestmark = pytest.mark.both_writers

EVERY = layout.table_every(SMALL)


@pytest.fixture(params=[False, True], ids=["running", "ended"])
def ended(request: pytest.FixtureRequest) -> bool:
    """Read both ways: a running process's ring is copied at once, an ended one's in parts."""
    return bool(request.param)


@pytest.mark.parametrize(
    "calls",
    [1, EVERY, SMALL - 1, SMALL, SMALL + 1, SMALL + EVERY - 1, 2 * SMALL, 5 * SMALL + 77],
)
def test_first_calls_and_lost_count(rings: Path, ended: bool, calls: int) -> None:
    tracer = tracer_in(rings)
    comm = tracer.communicator("k", "tp:0", [0])
    fill(tracer, comm, 1, calls + 1)

    rank = read(tracer.path, ended=ended)

    lost = max(0, calls - SMALL)
    assert (rank.records, rank.lost) == (calls - lost, lost)
    check_log(rank.logs["k"], lost + 1, calls)


@pytest.mark.parametrize("calls", [EVERY, SMALL - EVERY, SMALL, SMALL + EVERY, 3 * SMALL])
@pytest.mark.parametrize("closed", [0, 1, 2])
def test_tables_that_were_written_twice_at_the_same_place(
    rings: Path, ended: bool, calls: int, closed: int
) -> None:
    tracer = tracer_in(rings)
    comm = tracer.communicator("k", "tp:0", [0])
    fill(tracer, comm, 1, calls + 1)
    for _ in range(closed):
        tracer.close()

    check_log(read(tracer.path, ended=ended).logs["k"], max(1, calls - SMALL + 1), calls)


@pytest.mark.parametrize("capacity", [1030, 1500, 2048, 5000])
def test_capacities_that_are_no_multiple_of_anything(
    rings: Path, ended: bool, capacity: int
) -> None:
    tracer = tracer_in(rings, capacity=capacity)
    comm = tracer.communicator("k", "tp:0", [0])
    fill(tracer, comm, 1, capacity)
    # A table is written here, so that the end is searched for from the last slot on.
    tracer.communicator("other")
    check_log(read(tracer.path, ended=ended).logs["k"], 1, capacity - 1)
    fill(tracer, comm, capacity, 3 * capacity + 11)

    check_log(read(tracer.path, ended=ended).logs["k"], 2 * capacity + 11, 3 * capacity + 10)


def test_each_communicator_has_its_own_range(rings: Path, ended: bool) -> None:
    tracer = tracer_in(rings)
    often, seldom = tracer.communicator("often"), tracer.communicator("seldom")
    numbers = {"often": 0, "seldom": 0}
    for position in range(3 * SMALL):
        comm = seldom if position % 50 == 7 else often
        numbers[comm.key] += 1
        post(tracer, comm, numbers[comm.key])

    rank = read(tracer.path, ended=ended)

    kept = sum(1 for position in range(2 * SMALL, 3 * SMALL) if position % 50 == 7)
    check_log(rank.logs["seldom"], numbers["seldom"] - kept + 1, numbers["seldom"])
    check_log(rank.logs["often"], numbers["often"] - (SMALL - kept) + 1, numbers["often"])


@pytest.mark.parametrize("laps", [1, 2, 7])
def test_a_communicator_without_a_record_left_keeps_its_count_and_hash(
    rings: Path, ended: bool, laps: int
) -> None:
    tracer = tracer_in(rings)
    early, busy = tracer.communicator("early"), tracer.communicator("busy")
    never = tracer.communicator("never")
    fill(tracer, early, 1, 41)
    fill(tracer, busy, 1, laps * SMALL + 1)

    logs = read(tracer.path, ended=ended).logs

    assert (logs["early"].calls, logs["early"].first) == (40, 41)
    assert logs["early"].fingerprint(40) == running(range(1, 41))
    assert list(logs["early"].span(1, 41)) == []
    assert list(logs["early"].signatures(41, 41)) == []
    assert (logs[never.key].calls, logs[never.key].fingerprint(0)) == (0, 0)
    check_log(logs["busy"], (laps - 1) * SMALL + 1, laps * SMALL)


def test_a_table_that_was_never_written_is_made_up_for(rings: Path, ended: bool) -> None:
    # The thread whose turn it was had been put aside, and the process was killed just before
    # another one's turn came.
    tracer = tracer_in(rings)
    rare, busy = tracer.communicator("rare"), tracer.communicator("busy")
    fill(tracer, busy, 1, 3 * SMALL + 1)
    fill(tracer, rare, 1, 6)
    fill(tracer, busy, 3 * SMALL + 1, 3 * SMALL + 2 * EVERY - 5)
    path = Path(tracer.path)
    data = bytearray(path.read_bytes())
    table = tracer.ring.geometry.table
    half = layout.MAX_COMMS * layout.TABLE_ENTRY.size
    begins = [layout.TABLE_ENTRY.unpack_from(data, table + number * half)[0] for number in range(2)]
    assert sorted(begins) == [3 * SMALL + 1, 3 * SMALL + EVERY + 1]
    newest = table + begins.index(max(begins)) * half
    data[newest : newest + half] = bytes(half)
    path.write_bytes(data)

    logs = read(path, ended=ended).logs

    assert (logs["rare"].calls, logs["rare"].fingerprint(5)) == (5, running(range(1, 6)))
    calls = 3 * SMALL + 2 * EVERY - 6
    check_log(logs["busy"], calls - (SMALL - 5) + 1, calls)


def test_marks_are_where_those_of_other_ranks_are(rings: Path, ended: bool) -> None:
    tracer = tracer_in(rings, capacity=5000)
    one, other = tracer.communicator("one"), tracer.communicator("other")
    fill(tracer, one, 1, 3001)
    fill(tracer, other, 1, 2049)
    fill(tracer, one, 3001, 4097)
    rank = read(tracer.path, ended=ended)
    ring = RingFile(Path(tracer.path))

    # The record at position 1023 has been overwritten, and its mark is of no use.
    one_marks, other_marks = ring.marks(1), ring.marks(2)
    assert one_marks.seqs.tolist() == [2048, 3072, 4096]
    assert one_marks.positions.tolist() == [2047, 5119, 6143]
    assert other_marks.seqs.tolist() == [1024, 2048]
    assert other_marks.positions.tolist() == [4023, 5047]
    for number, key in ((1, "one"), (2, "other")):
        marks = ring.marks(number)
        for seq, running_hash in zip(marks.seqs.tolist(), marks.hashes.tolist(), strict=True):
            assert running_hash == running(range(1, seq + 1)) == rank.logs[key].fingerprint(seq)
