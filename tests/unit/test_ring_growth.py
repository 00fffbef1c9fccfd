"""A ring's file takes space as it is filled, and goes on where there is no more."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import pytest

from ncclscope.ring import layout
from ncclscope.ring.reader import RingFile
from ncclscope.ring.room import FIRST_ROOM, grows
from tests.support.nodes import can_unshare
from tests.support.programs import run_program
from tests.support.rings import check_log, fill, read, tracer_in

pytestmark = [
    pytest.mark.both_writers,
    pytest.mark.skipif(not grows(), reason="the kernel is older than 5.14"),
]

CAPACITY = 16_384


def test_a_ring_grows_as_it_is_filled(rings: Path) -> None:
    tracer = tracer_in(rings, capacity=CAPACITY)
    comm = tracer.communicator("k", "tp:0", [0])
    path, made, taken = Path(tracer.path), 0, []
    for calls in (10, FIRST_ROOM - 10, FIRST_ROOM + 200, 5000):
        fill(tracer, comm, made + 1, calls + 1)
        made = calls
        taken.append(path.stat().st_blocks * 512)
        with RingFile(path) as ring:
            assert (ring.head, ring.capacity, ring.damage) == (calls, CAPACITY, set())
    size = path.stat().st_size
    assert taken[0] < size / 4
    assert sorted(taken) == taken
    assert taken[-1] - taken[0] >= (5000 - FIRST_ROOM) * layout.RECORD.size
    assert taken[-1] < size / 2

    check_log(read(path).logs["k"], 1, 5000)


KILLED = """
import os, signal, sys
from pathlib import Path
from tests.support.rings import fill, tracer_in
tracer = tracer_in(Path(sys.argv[1]), capacity=int(sys.argv[2]))
fill(tracer, tracer.communicator("k", "tp:0", [0]), 1, int(sys.argv[3]) + 1)
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.parametrize("calls", [FIRST_ROOM - 256, FIRST_ROOM, FIRST_ROOM + 1, 5000])
def test_a_ring_that_was_growing_is_read_after_a_kill(rings: Path, calls: int) -> None:
    assert run_program(KILLED, rings, CAPACITY, calls).returncode == -signal.SIGKILL

    (path,) = rings.glob(f"*{layout.SUFFIX}")
    with RingFile(path) as ring:
        assert (ring.head, ring.count, ring.damage) == (calls, calls, set())
    check_log(read(path).logs["k"], 1, calls)


FULL = """
import json, subprocess, sys
from pathlib import Path
from tests.support.rings import check_log, fill, read, tracer_in
from ncclscope.ring import layout
from ncclscope.ring.reader import RingFile

place = Path(sys.argv[1])
subprocess.run(["mount", "-t", "tmpfs", "-o", "size=640k", "none", place], check=True)
tracer = tracer_in(place / "rings", capacity=16_384)
comm = tracer.communicator("k", "tp:0", [0])
fill(tracer, comm, 1, 20_001)
with (place / "filler").open("wb", buffering=0) as file:
    try:
        while file.write(bytes(4096)):
            pass
    except OSError:
        pass
fill(tracer, comm, 20_001, 30_001)
for number in range(600):
    tracer.communicator(f"more {number}", "pp:0", [0])
for number in range(9):
    tracer.record(comm, "all_gatherv", shape=(3,), sizes=[number, 2])
path = Path(tracer.path)
assert path.parent == place / "rings", path
with RingFile(path) as ring:
    found = [ring.word(layout.HEADER_WRAP), ring.capacity, ring.head, sorted(ring.damage)]
log = read(path).logs["k"]
sizes = [call.sizes for call in log.span(30_001, 30_010)]
assert log.calls == 30_009
first = log.first
assert all(call.seq == number for number, call in enumerate(log.span(first, 30_001), first))
print(json.dumps([*found, first, sizes]))
"""


@pytest.mark.skipif(not can_unshare(), reason="needs the right to make namespaces")
def test_without_room_for_more_slots_the_ring_goes_round(tmp_path: Path) -> None:
    """A store to a page without room would end the process with SIGBUS."""
    place = tmp_path / "place"
    place.mkdir()

    completed = run_program(FULL, place, prefix=("unshare", "-rm"), timeout=60)

    assert completed.returncode == 0, completed.stderr
    wrap, capacity, head, damage, first, sizes = json.loads(completed.stdout)
    assert FIRST_ROOM <= wrap == capacity < CAPACITY
    assert (head, damage) == (30_009, [])
    assert first == head - wrap + 1
    assert sizes == [None] * 9
