"""Rings that are read while they are written, and answers that do not change afterwards."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from ncclscope import open_run
from ncclscope.model import Rank
from ncclscope.model.signature import extend, sign
from ncclscope.readers.ring.ranks import read_ring
from ncclscope.ring import layout
from ncclscope.ring.image import RingImage
from ncclscope.ring.reader import RingFile
from tests.support.programs import ROOT
from tests.support.rings import SMALL, check_log, fill, read, slot, tracer_in

# Records as fast as it can, or now and then, on two communicators; calls are a function of
# their number. It ends when its stdin does, and then says how far it has come.
WRITER = """
import json, os, select, sys, time
from ncclscope import Tracer
capacity, burst = int(sys.argv[2]), int(sys.argv[3])
tracer = Tracer(sys.argv[1], rank=0, world_size=1, capacity=capacity)
comms = [tracer.communicator(f"k{n}", f"c:{n}", [0]) for n in range(2)]
templates = [
    [tracer.template(comm, "all_reduce", shape=(n,), site=f"{n}") for n in range(7)]
    for comm in comms
]
post = tracer.post
counts = [0, 0]
print(tracer.path, flush=True)
while True:
    for number in range(burst):
        which = number % 10 == 3
        counts[which] += 1
        template = templates[which][counts[which] % 7]
        post(comms[which].channel, template.fixed, template.signature)
        if number % 5 == 0:
            tracer.record(
                comms[1], "all_gatherv", shape=(3,), sizes=[counts[1] + 1, number], site="v"
            )
            counts[1] += 1
    if select.select([0], [], [], 0)[0]:
        break
    if burst < 100:
        time.sleep(0.0005)
print(json.dumps(counts))
"""


@contextmanager
def writer(rings: Path, capacity: int, burst: int) -> Iterator[Path]:
    with subprocess.Popen(
        [sys.executable, "-c", WRITER, str(rings), str(capacity), str(burst)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=ROOT,
    ) as process:
        try:
            assert process.stdout is not None
            yield Path(process.stdout.readline().strip())
            output, _ = process.communicate("\n", timeout=30)
            (rank,) = open_run(rings).ranks
            assert [rank.logs[f"k{n}"].calls for n in range(2)] == json.loads(output)
        finally:
            process.kill()


SIGNATURES = {number: sign("all_reduce", shape=(number,)) for number in range(7)}


def check_rank(rank: Rank) -> int:
    """Hold what was read against itself; return how many calls are kept."""
    kept = 0
    positions: list[int] = []
    for log in rank.logs.values():
        first, calls = log.first, log.calls
        assert 1 <= first <= calls + 1
        span = log.span(first, calls + 1)
        assert [call.seq for call in span] == list(range(first, calls + 1))
        value = log.fingerprint(first - 1)
        for call in span:
            if call.op == "all_gatherv":
                # The list may be gone, but never be another's.
                assert call.sizes is None or call.sizes[0] == call.seq
                if call.sizes is not None:
                    assert call.signature == sign(call.op, shape=(3,), sizes=call.sizes)
            else:
                assert call.op == "all_reduce"
                assert call.signature == SIGNATURES[call.seq % 7]
                assert call.shape == (call.seq % 7,)
                assert call.site == f"{call.seq % 7}"
            value = extend(value, call.signature)
        assert value == log.fingerprint(calls)
        # The same questions again, in another order.
        for seq in (calls, (first + calls) // 2, first):
            if first <= seq <= calls:
                assert log.call(seq) == span[seq - first]
                assert list(log.signatures(seq, seq + 1)) == [span[seq - first].signature]
        assert (log.first, log.calls) == (first, calls)
        positions += [call.position for call in span]
        kept += len(span)
    assert len(set(positions)) == len(positions)
    if positions:
        assert max(positions) < rank.records + rank.lost
    return kept


@pytest.mark.parametrize(
    ("capacity", "burst"),
    [
        pytest.param(SMALL, 2000, id="goes round all the time"),
        pytest.param(1030, 7, id="small and slow"),
        pytest.param(16_384, 5000, id="larger", marks=pytest.mark.slow),
    ],
)
def test_a_ring_is_consistent_whenever_it_is_read(rings: Path, capacity: int, burst: int) -> None:
    samples = kept = 0
    heads = set()
    with writer(rings, capacity, burst) as path:
        until = time.monotonic() + 2.0
        while time.monotonic() < until or len(heads) < 10:
            rank = read_ring(path)
            assert rank.alive is True
            kept += check_rank(rank)
            heads.add(rank.records + rank.lost)
            samples += 1
    assert samples >= 10
    # A writer that goes round faster than it can be read may leave nothing, but not always.
    assert kept > 100


def test_what_was_read_late_of_a_ring_that_has_gone_on_is_of_the_same_moment(rings: Path) -> None:
    tracer = tracer_in(rings)
    comm = tracer.communicator("k")
    fill(tracer, comm, 1, SMALL - 100)
    early = read(tracer.path)
    fill(tracer, comm, SMALL - 100, SMALL + 301)  # over the first 300, before they are asked for

    log = early.logs["k"]

    check_log(log, 301, SMALL - 101)
    fill(tracer, comm, SMALL + 301, 3 * SMALL)
    check_log(log, 301, SMALL - 101)


def test_of_a_ring_that_has_gone_round_since_only_the_count_is_left(rings: Path) -> None:
    tracer = tracer_in(rings)
    comm = tracer.communicator("k")
    fill(tracer, comm, 1, 501)
    tracer.record(comm, "send", peer=0)
    early = read(tracer.path)
    fill(tracer, comm, 501, 4 * SMALL)

    log = early.logs["k"]

    check_log(log, 501, 500)
    assert list(early.p2p["k"]) == []
    with pytest.raises(IndexError, match=r"call 500 on .* has been overwritten"):
        log.call(500)


def test_a_finished_ring_is_read_piece_by_piece(rings: Path) -> None:
    tracer = tracer_in(rings, capacity=65_536)
    comm = tracer.communicator("k")
    template = tracer.template(comm, "barrier")
    for _ in range(65_536):
        tracer.post(comm.channel, template.fixed, template.signature)
    tracer.close()
    ring = RingFile(Path(tracer.path))
    rank = read_ring(Path(tracer.path))

    before = read_bytes_counted()
    assert rank.logs["k"].call(30_000).seq == 30_000
    assert rank.logs["k"].fingerprint(65_536) == rank.logs["k"].fingerprint(65_536)
    assert read_bytes_counted() - before < 500_000  # of 6.3 MB
    assert ring.head == 65_536


def read_bytes_counted() -> int:
    """Bytes that this process has read from files until now."""
    text = Path("/proc/self/io").read_text()
    return int(text.split("rchar: ")[1].split()[0])


def test_a_writer_that_was_stopped_in_the_middle_of_a_record_is_read_around(rings: Path) -> None:
    # It stops with a half written record, for as long as one likes.
    tracer = tracer_in(rings)
    comm = tracer.communicator("k")
    fill(tracer, comm, 1, SMALL + 11)
    path = Path(tracer.path)
    offset = tracer.ring.geometry.records + 10 * layout.RECORD.size
    descriptor = os.open(path, os.O_WRONLY)
    os.pwrite(descriptor, (SMALL + 11).to_bytes(8, "little") + bytes(40), offset)
    os.close(descriptor)

    rank = read(path)

    assert rank.alive is True
    check_log(rank.logs["k"], 12, SMALL + 10)


class Overtaken(RingImage):
    """A ring whose writer stores something in the middle of a read.

    Two processes do not meet within a hundred nanoseconds on request, so the copy is cut in
    two by hand: the bytes before ``cut`` are read, the store is made, then the rest is read.

    Attributes:
        cut: Place in the file before which the copy has come.
        copies: How many copies of that place are made before that one.
        store: Where the writer stores what.
    """

    cut = -1
    copies = 0
    store = (0, b"")

    def read_bytes(self, offset: int, size: int) -> bytes:
        if not offset <= self.cut < offset + size:
            return super().read_bytes(offset, size)
        self.copies -= 1
        if self.copies != -1:
            return super().read_bytes(offset, size)
        first = super().read_bytes(offset, self.cut - offset)
        put(self.path, *self.store)
        return first + super().read_bytes(self.cut, size - (self.cut - offset))


def put(path: Path, offset: int, data: bytes) -> None:
    descriptor = os.open(path, os.O_WRONLY)
    os.pwrite(descriptor, data, offset)
    os.close(descriptor)


@pytest.mark.parametrize("copies", [0, 1, 2])
@pytest.mark.parametrize("lap", [1, 2, 3])
def test_no_mixture_is_taken_when_reader_and_writer_overtake_each_other(
    rings: Path, lap: int, copies: int
) -> None:
    tracer = tracer_in(rings)
    comm = tracer.communicator("k")
    at = slot(tracer.ring, 500)
    states, shown = [bytes(layout.RECORD.size)], []
    path = Path(tracer.path)
    for number in range(3):
        fill(tracer, comm, number * SMALL + 1, (number + 1) * SMALL + 1)
        states.append(path.read_bytes()[at])
        with RingImage(path) as image:
            shown.append(image.read_stable(number * SMALL + 500, number * SMALL + 501).tobytes())
    wanted = shown[1]  # of the second lap; in the third the writer replaces it
    before, after = states[lap - 1 : lap + 1]
    position = SMALL + 500
    outcomes = set()
    with Overtaken(path) as ring:
        # The writer has stored some bytes when the reading begins, and some more at the
        # cut. Whatever is taken is the record that was wanted, from the first byte to the last.
        for done in range(0, 97, 8):
            for more in range(done, 97, 8):
                for cut in range(at.start, at.stop, 8):
                    put(path, at.start, after[:done] + before[done:])
                    ring.cut, ring.copies = cut, copies
                    ring.store = (at.start, after[:more] + before[more:])
                    found = ring.read_stable(position, position + 1)
                    assert not len(found) or found[0].tobytes() == wanted
                    outcomes.add(len(found))
    assert outcomes == ({0} if lap == 1 else {0, 1})


def test_no_mixture_of_sizes_lists_is_taken(rings: Path) -> None:
    tracer = tracer_in(rings)
    comm = tracer.communicator("k")
    heap = slice(tracer.ring.geometry.heap, tracer.ring.geometry.table)
    tracer.record(comm, "all_gatherv", sizes=[11, 12, 13, 14, 15, 16])
    before = Path(tracer.path).read_bytes()[heap]
    for number in range(tracer.ring.geometry.heap_size // 32 - 2):
        tracer.record(comm, "all_gatherv", sizes=[number, 0])
    tracer.record(comm, "all_gatherv", sizes=[21, 22, 23])
    after = Path(tracer.path).read_bytes()[heap]
    assert before[:64] != after[:64]

    path = Path(tracer.path)
    outcomes = set()
    with Overtaken(path) as ring:
        for done in range(0, 65, 8):
            for cut in range(0, 64, 8):
                put(path, heap.start, before)
                ring.cut, ring.copies = heap.start + cut, 0
                ring.store = (heap.start, after[:done])
                outcomes.add(ring.sizes(1))
    assert outcomes == {None, (11, 12, 13, 14, 15, 16)}


def test_counts_of_nccl_are_read_before_the_records(
    rings: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Calls that are counted while the records are read have been recorded, but not yet seen."""
    tracer = tracer_in(rings)
    comm = tracer.communicator("key", "tp:0", [0], "nccl")
    for _ in range(3):
        tracer.record(comm, "all_reduce", shape=(4,), dtype="float32", redop="sum")

    def count(number: int) -> None:
        with Path(tracer.path).open("r+b") as file:
            file.seek(tracer.ring.geometry.carried)
            file.write(layout.CARRIED.pack(number | (number ^ 0xFFFFFFFF) << 32))

    find_head = RingFile._find_head

    def find_head_and_go_on(ring: RingFile) -> None:
        find_head(ring)
        count(9)

    count(3)
    monkeypatch.setattr(RingFile, "_find_head", find_head_and_go_on)
    ring = RingFile(Path(tracer.path))
    assert (ring.head, ring.carried) == (3, {1: 3})
    ring.close()
