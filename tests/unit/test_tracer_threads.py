"""Many threads on one communicator: no lock, and still no number twice or missing."""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path

import pytest

from ncclscope import open_run
from ncclscope.model.signature import extend, sign
from ncclscope.ring import layout
from ncclscope.ring.reader import RingFile
from tests.support.examples import examples
from tests.support.programs import run_program
from tests.support.rings import read, tracer_in

pytestmark = pytest.mark.both_writers

THREADS = 4
CALLS = examples(16_000)
TEXTS = examples(400)


@pytest.fixture(autouse=True)
def _switch_at_every_chance() -> Iterator[None]:
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


def in_threads(work: Callable[[int], None]) -> None:
    """Call ``work(thread)`` in threads that begin together; fail when one of them does."""
    failures: list[BaseException] = []
    start = threading.Barrier(THREADS)

    def run(thread: int) -> None:
        try:
            start.wait()
            work(thread)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=run, args=(thread,)) for thread in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures


def test_numbers_and_hashes_of_a_communicator_that_many_threads_use(rings: Path) -> None:
    tracer = tracer_in(rings, capacity=65_536)
    comm = tracer.communicator("k", "tp:0", [0])
    templates = [
        tracer.template(comm, "all_reduce", shape=(thread, 1), site=f"{thread}")
        for thread in range(THREADS)
    ]

    def work(thread: int) -> None:
        fixed, signature = templates[thread]
        post, channel = tracer.post, comm.channel
        for number in range(CALLS):
            post(channel, fixed, signature)
            if number % 100 == 0:
                time.sleep(0)  # let another thread go on, as so few calls might end before

    in_threads(work)

    log = read(tracer.path).logs["k"]
    calls = log.span(1, log.calls + 1)
    assert [call.seq for call in calls] == list(range(1, THREADS * CALLS + 1))
    assert [call.position for call in calls] == list(range(THREADS * CALLS))
    posted = [call.shape[0] for call in calls if call.shape]
    assert sorted(posted) == [thread for thread in range(THREADS) for _ in range(CALLS)]
    # They did take turns, or this would prove nothing.
    assert sum(one != other for one, other in pairwise(posted)) > THREADS
    running = 0
    for call, thread in zip(calls, posted, strict=True):
        running = extend(running, templates[thread].signature)
        assert call.signature == templates[thread].signature
        if call.seq % 500 == 0 or call.seq == log.calls:
            assert log.fingerprint(call.seq) == running


def test_several_communicators_and_kinds_of_records(rings: Path) -> None:
    tracer = tracer_in(rings, capacity=65_536)

    def work(thread: int) -> None:
        for number in range(1500):
            # Made by whichever thread comes first.
            comm = tracer.communicator(f"k{number % 3}", f"c:{number % 3}", [0])
            tracer.record(comm, "all_gatherv", shape=(thread, number), sizes=(thread, number))
            tracer.record(comm, "send", shape=(thread, number), peer=thread)
            if number % 100 == 0:
                tracer.step(number, tokens=thread)

    in_threads(work)

    rank = read(tracer.path)
    assert set(rank.logs) == {"k0", "k1", "k2"}
    positions = []
    for index in range(3):
        expected = {(t, n) for t in range(THREADS) for n in range(index, 1500, 3)}
        log = rank.logs[f"k{index}"]
        calls = list(log.span(1, log.calls + 1))
        assert {call.sizes for call in calls[-300:]} <= {*expected}
        for made in (calls, list(rank.p2p[f"k{index}"])):
            assert [call.seq for call in made] == list(range(1, len(expected) + 1))
            assert {call.shape for call in made} == expected
            positions += [call.position for call in made]
        for call in calls:
            shape = call.shape
            assert call.signature == sign("all_gatherv", shape=shape, sizes=shape)
    positions += [step.position for step in rank.steps]
    assert sorted(positions) == list(range(tracer.ring.position))
    assert len(rank.steps) == THREADS * 15


def test_texts_interned_by_several_threads_at_once(rings: Path) -> None:
    tracer = tracer_in(rings, capacity=16_384)
    comm = tracer.communicator("k")

    def work(thread: int) -> None:
        # All want the same new texts at the same time, and some that are theirs alone.
        for number in range(TEXTS):
            tracer.record(comm, f"op{number}", dtype=f"d{number % 200}", site=f"s{number}")
            tracer.record(comm, f"op{number}", redop=f"r{thread}", site=f"s{number}-{thread}")

    in_threads(work)

    ring = RingFile(Path(tracer.path))
    assert sorted(ring.texts[layout.KIND_OP]) == sorted({f"op{n}" for n in range(TEXTS)})
    assert len(set(ring.texts[layout.KIND_SITE])) == len(ring.texts[layout.KIND_SITE])
    log = read(tracer.path).logs["k"]
    seen = {(call.op, call.dtype, call.redop, call.site) for call in log.span(1, log.calls + 1)}
    assert seen == {
        *((f"op{n}", f"d{n % 200}", None, f"s{n}") for n in range(TEXTS)),
        *((f"op{n}", None, f"r{t}", f"s{n}-{t}") for n in range(TEXTS) for t in range(THREADS)),
    }
    assert log.calls == 2 * TEXTS * THREADS


def test_states_set_by_another_thread(rings: Path) -> None:
    tracer = tracer_in(rings, capacity=16_384)
    comm = tracer.communicator("k")
    positions: list[int] = []
    done = threading.Event()

    def complete() -> None:
        completed = 0
        while not done.is_set() or completed < len(positions):
            while completed < len(positions):
                tracer.complete(positions[completed])
                completed += 1

    other = threading.Thread(target=complete)
    other.start()
    for number in range(3000):
        positions.append(tracer.record(comm, "all_reduce", shape=(number,), site="x", state=1))
    done.set()
    other.join()

    calls = read(tracer.path).logs["k"].span(1, 3001)
    assert {call.state for call in calls} == {2}


# Stops the program wherever the interpreter lets other code in, which is where another thread
# could have been let in too, and checks the file as it would be if it were killed there.
INTERRUPTED = """
import json, signal, sys, time
from ncclscope import Tracer
from ncclscope.ring import layout

tracer = Tracer(sys.argv[1], capacity=4096, heartbeat=False)
comm = tracer.communicator("k")
other = tracer.communicator("other")
ring, channel = tracer.ring, comm.channel
missing = interruptions = nested = 0
running = True

def check(*_):
    global missing, interruptions, nested
    interruptions += 1
    position = ring.position
    with open(tracer.path, "rb") as file:
        file.seek(ring.geometry.records + (position - 1) % ring.capacity * layout.RECORD.size)
        record = file.read(layout.RECORD.size)
    begin, *_, end, check = layout.RECORD.unpack(record)
    if (begin, end) != (position, position) or layout.sealed_record(record) != record:
        missing += 1
    # A handler may record, too: the interrupted call must not get the same number.
    nested += 1
    tracer.record(other, "all_reduce", shape=(nested,), site="handler")
    tracer.post(channel, template.fixed, template.signature)
    if running:  # once more, but not before this one is done
        signal.setitimer(signal.ITIMER_REAL, 2e-5)

template = tracer.template(comm, "all_reduce", shape=(1,), site="handler")
tracer.record(comm, "all_reduce", shape=(1,), site="main")
signal.signal(signal.SIGALRM, check)
signal.setitimer(signal.ITIMER_REAL, 2e-5)
until = time.monotonic() + 1.0
count = 1
while time.monotonic() < until or interruptions < 500:
    for _ in range(50):
        tracer.post(channel, template.fixed, template.signature)
        tracer.record(comm, "send", shape=(1,), peer=0, site="main")
        tracer.step(count)
        count += 1
running = False
signal.setitimer(signal.ITIMER_REAL, 0)
print(json.dumps([missing, interruptions, nested, count, ring.position, channel.seq]))
"""


def test_a_number_that_was_given_has_its_record_wherever_the_program_stops(rings: Path) -> None:
    completed = run_program(INTERRUPTED, rings)
    assert completed.returncode == 0, completed.stderr
    missing, interruptions, nested, count, position, seq = json.loads(completed.stdout)

    assert missing == 0
    assert interruptions >= 500
    assert position == 1 + 3 * (count - 1) + 2 * nested
    assert seq == count + nested
    (rank,) = open_run(rings).others
    logs = rank.logs
    assert (logs["k"].calls, logs["other"].calls) == (seq, nested)
    value, signature = 0, sign("all_reduce", shape=(1,))
    for number in range(1, seq + 1):
        value = extend(value, signature)
        if number >= logs["k"].first:
            assert logs["k"].fingerprint(number) == value


@pytest.mark.usefixtures("python_writer")
def test_the_guard_of_interpreters_without_a_gil(rings: Path) -> None:
    # With a GIL it proves no more than that it records the same; without one it is needed.
    tracer = tracer_in(rings, capacity=65_536)
    if not hasattr(tracer.ring.post, "__wrapped__"):
        tracer.ring._guard_posts()
        tracer.post = tracer.ring.post
    comm = tracer.communicator("k")

    def work(thread: int) -> None:
        for number in range(2000):
            tracer.record(comm, "all_reduce", shape=(thread, number % 10), site="x", captured=True)
            tracer.record(comm, "send", shape=(1,), peer=0, site="x")
            tracer.step(number)

    in_threads(work)

    rank = read(tracer.path)
    calls = rank.logs["k"].span(1, THREADS * 2000 + 1)
    assert [call.seq for call in calls] == list(range(1, THREADS * 2000 + 1))
    assert all(call.captured for call in calls)
    assert len(rank.p2p["k"]) == len(rank.steps) == THREADS * 2000
