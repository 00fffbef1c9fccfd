"""NCCL's profiler plugin on full disks, across forks, stopped and killed: no call is lost.

The program answers each command once its calls are made. A call that was answered for must be in
the ring, whatever happens next.
"""

from __future__ import annotations

import os
import random
import shutil
import signal
import threading
import time
from pathlib import Path

import pytest

import ncclscope
from ncclscope.ring.reader import RingFile
from tests.support.full_disks import fill
from tests.support.nccl_programs import Built, Program, call, comm

CAPACITY = 2048


def calls_in(path: Path) -> int:
    """Return the calls on all communicators of a ring, each held against its running hash."""
    (rank,) = ncclscope.open_run(path).ranks
    for log in rank.logs.values():
        calls = log.span(log.first, log.calls + 1)
        assert [one.seq for one in calls] == [*range(log.first, log.calls + 1)]
        assert {one.op for one in calls} <= {"all_reduce"}
    return sum(log.calls for log in rank.logs.values())


def made(rings: Path) -> int:
    """Return the calls recorded so far, in whatever ring."""
    total = 0
    for path in rings.glob("*.ring"):
        ring = RingFile(path)
        total += sum(state.seq for state in ring.states.values())
        ring.close()
    return total


def test_a_file_system_that_fills_up_neither_kills_nor_loses_a_call(
    nccl: Built, small: Path
) -> None:
    rings = small / "rings"
    program = Program(nccl, {"NCCLSCOPE_DIR": rings, "NCCLSCOPE_RECORDS": CAPACITY})
    program.ask(f"open {nccl.plugin} 5", comm(0), f"repeat 10 {call()}")
    fill(small)
    program.ask(f"repeat {3 * CAPACITY} {call()}", comm(0, at=1, hash=2), call(at=1))

    assert program.end() == (0, "")
    (path,) = rings.glob("*.ring")
    assert calls_in(path) == 10 + 3 * CAPACITY + 1


def test_a_full_file_system_sends_the_ring_to_another(nccl: Built, small: Path) -> None:
    fill(small)
    elsewhere = Path("/dev/shm", f"ncclscope-{os.getuid()}", f"test-{os.getpid()}")
    program = Program(nccl, {"NCCLSCOPE_DIR": small / elsewhere.name})
    program.ask(f"open {nccl.plugin} 5", comm(0), f"repeat 3000 {call()}")

    status, complained = program.end()

    try:
        assert (status, complained) == (0, "")
        (path,) = elsewhere.glob("*.ring")
        assert calls_in(path) == 3000
    finally:
        shutil.rmtree(elsewhere, ignore_errors=True)


@pytest.mark.parametrize("seed", range(3))
def test_what_was_answered_for_survives_stops_and_a_kill(
    nccl: Built, rings: Path, seed: int
) -> None:
    draw = random.Random(seed)
    program = Program(nccl, {"NCCLSCOPE_DIR": rings, "NCCLSCOPE_RECORDS": CAPACITY})
    program.ask(f"open {nccl.plugin} 5", comm(0))
    over = threading.Event()

    def disturb() -> None:
        while not over.is_set():
            os.kill(program.pid, signal.SIGSTOP)
            time.sleep(draw.random() * 0.005)
            os.kill(program.pid, signal.SIGCONT)
            time.sleep(draw.random() * 0.005)

    disturber = threading.Thread(target=disturb)
    disturber.start()
    answered = 0
    try:
        for _ in range(draw.randrange(50, 150)):
            count = draw.randrange(1, 50)
            program.ask(f"repeat {count} {call()}")
            answered += count
    finally:
        over.set()
        disturber.join()
    program.send("threads 1 100000000 0")
    time.sleep(draw.random() * 0.02)
    program.kill()

    (path,) = rings.glob("*.ring")
    assert calls_in(path) >= answered > 0


@pytest.mark.slow
def test_children_that_are_forked_while_threads_record_record_for_themselves(
    nccl: Built, rings: Path
) -> None:
    program = Program(nccl, {"NCCLSCOPE_DIR": rings, "NCCLSCOPE_RECORDS": CAPACITY})
    comms = [comm(0, 2, at=at, hash=at + 1) for at in range(4)]
    program.ask(f"open {nccl.plugin} 5", *comms, "background 4 100000000 0")
    (parent,) = rings.glob("*.ring")
    forks = 20
    for number in range(forks):
        before = made(rings)
        program.ask("fork", comm(0, 2, at=9, hash=99), f"repeat {number + 1} {call(at=9)}")
        # Answered by the parent, with the child's status.
        assert program.ask("parent") == [0]
        assert made(rings) > before
    program.kill()

    children = [path for path in rings.glob("*.ring") if path != parent]
    assert sorted(map(calls_in, children)) == [*range(1, forks + 1)]
    assert calls_in(parent) > 0
