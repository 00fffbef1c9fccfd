"""Replays from several threads, in signal handlers, and up to the moment of a kill."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from ncclscope import Rank
from ncclscope.model.signature import extend
from ncclscope.readers.ring.ranks import read_ring
from ncclscope.tracing.graphs import TracedGraph
from ncclscope.tracing.tracer import Comm, Tracer
from tests.support.programs import ROOT
from tests.support.rings import tracer_in

pytestmark = pytest.mark.both_writers

CALLS = 62

WRITER = """
import sys, time
from ncclscope.tracing.tracer import Tracer

tracer = Tracer(sys.argv[1], rank=0, world_size=1, capacity=2048, heartbeat=False)
comms = [tracer.communicator(key, key, [0]) for key in "AB"]
graphs = []
for rows in (1, 2, 3):
    begun = tracer.graphs.begin()
    for number in range(62):
        comm = comms[number % 2 if rows > 1 else 0]
        tracer.record(comm, "all_reduce", shape=(rows, number), captured=True, site="x")
    graphs.append(tracer.graphs.end(begun))
print(tracer.path, flush=True)
while True:
    for number in range(100):
        graphs[number % 3].replay()
        tracer.record(comms[number % 2], "all_gather", shape=(number,), site="y")
"""


def captured(tracer: Tracer, comms: list[Comm], rows: int) -> TracedGraph:
    begun = tracer.graphs.begin()
    for number in range(CALLS):
        comm = comms[number % len(comms)]
        tracer.record(comm, "all_reduce", shape=(rows, number), captured=True, site="x")
    return tracer.graphs.end(begun)


def check(rank: Rank) -> int:
    """Follow each sequence from call to call; return how many there were."""
    made = 0
    for log in rank.logs.values():
        calls = log.span(log.first, log.calls + 1)
        assert [call.seq for call in calls] == list(range(log.first, log.calls + 1))
        running = log.fingerprint(log.first - 1)
        for call in calls:
            assert call.signature == call.sign()
            running = extend(running, call.signature)
        assert running == log.fingerprint(log.calls)
        made += log.calls
    return made


@pytest.mark.slow
def test_threads_that_replay_and_post_at_once(rings: Path) -> None:
    tracer = tracer_in(rings, capacity=1 << 14)
    comms = [tracer.communicator(key, key, [0]) for key in "AB"]
    graphs = [captured(tracer, comms[: 1 + number % 2], number) for number in range(4)]

    def work(number: int) -> None:
        for turn in range(500):
            graphs[number].replay()
            tracer.record(comms[turn % 2], "all_gather", shape=(turn,), site="y")

    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(before)

    rank = read_ring(Path(tracer.path))
    assert check(rank) == 4 * 500 * (CALLS + 1)
    assert rank.lost == 0


def test_a_signal_handler_that_replays(rings: Path) -> None:
    tracer = tracer_in(rings, capacity=1 << 14)
    comms = [tracer.communicator(key, key, [0]) for key in "AB"]
    inner, outer = captured(tracer, comms, 1), captured(tracer, comms, 2)
    handled = 0

    def handler(*_arguments: object) -> None:
        nonlocal handled
        handled += 1
        inner.replay()

    previous = signal.signal(signal.SIGALRM, handler)
    signal.setitimer(signal.ITIMER_REAL, 0.0005, 0.0005)
    try:
        made = 0
        deadline = time.monotonic() + 20
        while handled < 50 and time.monotonic() < deadline:
            outer.replay()
            made += 1
            if tracer.ring.position > 4000:
                break
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, previous)

    assert handled
    assert check(read_ring(Path(tracer.path))) == (made + handled) * CALLS


@pytest.mark.parametrize("seed", range(3))
def test_a_kill_in_the_middle_of_replays(rings: Path, seed: int) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", WRITER, str(rings)], stdout=subprocess.PIPE, text=True, cwd=ROOT
    ) as writer:
        try:
            assert writer.stdout is not None
            path = Path(writer.stdout.readline().strip())
            wanted = random.Random(seed).randrange(1000, 20_000)
            deadline = time.monotonic() + 30
            while read_ring(path).lost < wanted:  # read while it is written, too
                assert time.monotonic() < deadline
        finally:
            os.kill(writer.pid, signal.SIGKILL)

    rank = read_ring(path)
    assert rank.lost >= wanted
    assert check(rank) > wanted
