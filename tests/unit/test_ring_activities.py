"""What a process does besides its calls: the newest of each kind, whenever it dies."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from ncclscope.model import Activity
from ncclscope.ring import layout
from tests.support.programs import ROOT
from tests.support.rings import fill, read, tracer_in

pytestmark = pytest.mark.both_writers


def activity(rank_path: str, name: str) -> Activity:
    return read(rank_path).activities[name]


def test_the_newest_is_reported_and_takes_no_room_from_the_calls(rings: Path) -> None:
    tracer = tracer_in(rings)
    comm = tracer.communicator("k")
    step, dequeue = tracer.activity("step"), tracer.activity("dequeue")
    before = time.time_ns()
    for number in range(1, 5000):
        step.end(step.begin("execute_model", number))
    begun = dequeue.begin("work")
    fill(tracer, comm, 1, 11)

    rank = read(tracer.path)
    assert rank.lost == 0
    assert rank.records == 10
    assert set(rank.activities) == {"step", "dequeue"}
    done, lasting = rank.activities["step"], rank.activities["dequeue"]
    assert (done.detail, done.number, done.count) == ("execute_model", 4999, 4999)
    assert done.until_ns is not None
    assert before <= done.since_ns <= done.until_ns <= lasting.since_ns
    assert (lasting.detail, lasting.number, lasting.until_ns) == ("work", 0, None)

    dequeue.end(begun)
    assert activity(tracer.path, "dequeue").until_ns is not None


def test_one_that_began_earlier_does_not_end_the_newer(rings: Path) -> None:
    tracer = tracer_in(rings)
    slot = tracer.activity("enqueue")
    first = slot.begin("a")
    second = slot.begin("b")

    slot.end(first)
    assert activity(tracer.path, "enqueue").detail == "b"
    assert activity(tracer.path, "enqueue").until_ns is None
    slot.end(second)
    assert activity(tracer.path, "enqueue").until_ns is not None


def test_a_ring_from_before_there_were_any_has_none(rings: Path) -> None:
    tracer = tracer_in(rings)
    fill(tracer, tracer.communicator("k"), 1, 11)
    header = Path(tracer.path).read_bytes()[: layout.PAGE]
    size = layout.MAX_ACTIVITIES * layout.ACTIVITY.size

    assert header[layout.HEADER_ACTIVITIES :][:size] == bytes(size)
    assert read(tracer.path).activities == {}


def test_a_name_too_many_is_not_seen_and_harms_no_other(rings: Path) -> None:
    tracer = tracer_in(rings)
    fill(tracer, tracer.communicator("k", "tp:0"), 1, 11)
    slots = [tracer.activity(f"name {number}") for number in range(layout.MAX_ACTIVITIES + 3)]
    for slot in slots:
        slot.end(slot.begin("x" * 2_000_000, number=-5))

    rank = read(tracer.path)
    assert list(rank.activities) == [f"name {number}" for number in range(layout.MAX_ACTIVITIES)]
    for found in rank.activities.values():
        assert (found.detail, found.number, found.count) == (None, 0, 1)
    assert rank.logs["k"].calls == 10
    assert tracer.activity("name 1") is slots[1]


def test_what_a_kill_leaves_of_a_store_is_not_shown(rings: Path) -> None:
    """Byte by byte, as a record: the writer clears the place and fills it from its beginning."""
    tracer = tracer_in(rings)
    slot = tracer.activity("step")
    path = Path(tracer.path)
    start = layout.HEADER_ACTIVITIES
    size = layout.ACTIVITY.size

    def stored() -> bytes:
        return path.read_bytes()[start : start + size]

    def leave(data: bytes) -> Activity | None:
        with path.open("r+b") as file:
            file.seek(start)
            file.write(data)
        return read(tracer.path).activities.get("step")

    slot.end(slot.begin("execute_model", 811))
    old = stored()
    begun = slot.begin("sample_tokens", 812)
    lasting = stored()
    slot.end(begun)
    ended = stored()
    for earlier, later in ((bytes(size), old), (old, lasting), (lasting, ended)):
        whole = [leave(data) for data in (earlier, later)]
        for count in range(size):
            assert leave(bytes(count) + earlier[count:]) in (None, *whole)
            assert leave(later[:count] + bytes(size - count)) in (None, *whole)


WORKER = """
import sys
from ncclscope import Tracer
tracer = Tracer(sys.argv[1], rank=0, world_size=1)
step, dequeue = tracer.activity("step"), tracer.activity("dequeue")
for number in range(1, 101):
    step.end(step.begin("execute_model", number))
dequeue.begin("work")
print(tracer.path, flush=True)
sys.stdin.read()
"""


def test_it_survives_sigkill(rings: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", WORKER, str(rings)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=ROOT,
    ) as process:
        assert process.stdout is not None
        path = process.stdout.readline().strip()
        process.send_signal(signal.SIGKILL)
        process.wait(10)

    found = read(path).activities
    assert (found["step"].number, found["step"].until_ns is None) == (100, False)
    assert (found["dequeue"].detail, found["dequeue"].until_ns) == ("work", None)


BUSY = """
import sys, select
from ncclscope import Tracer
tracer = Tracer(sys.argv[1], rank=0, world_size=1)
slot = tracer.activity("step")
print(tracer.path, flush=True)
number = 0
while number % 1000 or not select.select([0], [], [], 0)[0]:
    number += 1
    begun = slot.begin("even" if number % 2 == 0 else "odd", number)
    if number % 3:
        slot.end(begun)
"""


@pytest.mark.slow
def test_it_is_never_a_mixture_while_it_is_written(rings: Path) -> None:
    numbers = set()
    with subprocess.Popen(
        [sys.executable, "-c", BUSY, str(rings)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=ROOT,
    ) as process:
        try:
            assert process.stdout is not None
            path = process.stdout.readline().strip()
            deadline = time.monotonic() + 20
            while len(numbers) < 200 and time.monotonic() < deadline:
                found = read(path).activities.get("step")
                if found is None:
                    continue
                assert found.detail == ("odd" if found.number % 2 else "even")
                assert found.count == found.number
                assert found.until_ns is None or found.number % 3
                numbers.add(found.number)
        finally:
            process.kill()
    assert len(numbers) >= 200


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_child_leaves_no_trace(rings: Path) -> None:
    tracer = tracer_in(rings)
    slot = tracer.activity("step")
    slot.begin("execute_model", 1)
    child = os.fork()
    if child == 0:
        slot.begin("sample_tokens", 2)
        tracer.activity("dequeue").begin("work")
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0

    assert list(read(tracer.path).activities) == ["step"]
    assert activity(tracer.path, "step").detail == "execute_model"
