"""Forks: a child never writes into its parent's ring, and tracing never hurts it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ncclscope import open_run
from ncclscope.model import Rank
from tests.support.programs import run_program

pytestmark = pytest.mark.both_writers

BEGIN = """
import json, multiprocessing, os, sys, threading
import ncclscope
from ncclscope.tracing import scope, session

def record(times, shape):
    tracer = session.current()
    comm = tracer.communicator("k", "tp:0", [0])
    for number in range(times):
        tracer.record(comm, "all_reduce", shape=(shape, number), dtype="float32", redop="sum")

def wait(pid):
    status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    assert status == 0, status
"""


def processes(source: str, rings: Path, **options: Any) -> tuple[dict[int, Rank], Any]:
    """Run a program and return what each of its processes left, by pid, and what it printed."""
    completed = run_program(
        BEGIN + source, rings, NCCLSCOPE_DIR=rings, NCCLSCOPE_RECORDS=1024, **options
    )
    assert completed.returncode == 0, completed.stderr
    assert completed.stderr == ""
    run = open_run(rings)
    # Some have a number of their own, as they share a communicator.
    found = {rank.pid: rank for rank in run.processes}
    assert len(found) == len(list(rings.glob("*.ring"))) == len(run.processes)
    return found, json.loads(completed.stdout)


def shapes(rank: Rank) -> list[tuple[int, ...] | None]:
    log = rank.logs["k"]
    return [call.shape for call in log.span(log.first, log.calls + 1)]


def test_a_forked_child_gets_a_ring_of_its_own(rings: Path) -> None:
    found, (parent, child) = processes(
        """
record(5, 1)
child = os.fork()
if child == 0:
    record(7, 2)
    sys.exit(0)
wait(child)
record(3, 3)
print(json.dumps([os.getpid(), child]))
""",
        rings,
    )
    assert set(found) == {parent, child}
    assert shapes(found[parent]) == [(1, n) for n in range(5)] + [(3, n) for n in range(3)]
    assert shapes(found[child]) == [(2, n) for n in range(7)]
    assert found[child].details["parent"] == parent
    assert found[parent].exited
    assert found[child].exited


def test_a_child_that_goes_on_with_its_parents_tracer_leaves_no_trace_in_its_ring(
    rings: Path,
) -> None:
    # Everything that the program may still hold from before the fork is used in the child.
    found, (parent, _child) = processes(
        """
record(1000, 1)
tracer = session.current()
comm = tracer.communicator("k")
template = tracer.template(comm, "all_reduce", shape=(9, 9))
position = tracer.record(comm, "all_reduce", shape=(9, 9))
child = os.fork()
if child == 0:
    for number in range(3000):
        tracer.record(comm, "all_reduce", shape=(2, number), site=f"{number}")
        tracer.record(comm, "all_gatherv", shape=(2, 2), sizes=[number, 2])
        tracer.record(comm, "send", shape=(2, 2), peer=0)
        tracer.post(comm.channel, template.fixed, template.signature, 1, 1, 1, 1)
    tracer.step(5, tokens=3)
    tracer.complete(position)
    tracer.start(0)
    tracer.describe(rank=7)
    tracer.relabel(comm, "new")
    new = tracer.communicator("another", "dp:0", [0])
    tracer.record(new, "barrier")
    tracer.ring.store_heartbeat()
    tracer.close()
    sys.exit(0)
wait(child)
print(json.dumps([os.getpid(), child]))
""",
        rings,
    )
    assert set(found) == {parent}
    rank = found[parent]
    assert rank.logs["k"].calls == 1001
    assert shapes(rank) == [(1, n) for n in range(1000)] + [(9, 9)]
    assert rank.logs["k"].communicator.label == "tp:0"
    assert rank.logs["k"].call(1001).state == 0
    assert set(rank.logs) == {"k"}
    assert not rank.p2p
    assert not rank.steps
    assert rank.exited


def test_a_child_of_a_process_that_has_closed_its_tracer_does_not_write_into_it(
    rings: Path,
) -> None:
    found, (parent, _child) = processes(
        """
tracer = ncclscope.Tracer(sys.argv[1], capacity=1024)
comm = tracer.communicator("k")
tracer.record(comm, "all_reduce", shape=(1, 1))
tracer.close()
tracer.record(comm, "all_reduce", shape=(1, 2))
child = os.fork()
if child == 0:
    tracer.record(comm, "all_reduce", shape=(2, 1))
    sys.exit(0)
wait(child)
print(json.dumps([os.getpid(), child]))
""",
        rings,
    )
    assert set(found) == {parent}
    assert shapes(found[parent]) == [(1, 1), (1, 2)]


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_children_of_multiprocessing_have_rings_of_their_own_and_end_in_order(
    rings: Path, tmp_path: Path, method: str
) -> None:
    # What is spawned imports the program anew, so that it has to be a file.
    program = tmp_path / "program.py"
    program.write_text(
        BEGIN
        + """
def work(shape):
    record(shape + 3, shape)
    if shape == 3:
        raise ValueError("three is too many")

if __name__ == "__main__":
    context = multiprocessing.get_context(sys.argv[1])
    record(2, 1)
    children = [context.Process(target=work, args=(shape,)) for shape in (2, 3)]
    for child in children:
        child.start()
    for child in children:
        child.join()
    record(2, 4)
    assert [child.exitcode for child in children] == [0, 1]
    print(json.dumps([os.getpid(), *(child.pid for child in children)]))
"""
    )
    completed = run_program(
        "import runpy, sys; sys.argv[:] = sys.argv[1:]; "
        "runpy.run_path(sys.argv[0], run_name='__main__')"
        if method == "fork"
        else "import subprocess, sys; sys.exit(subprocess.call([sys.executable, *sys.argv[1:]]))",
        program,
        method,
        NCCLSCOPE_DIR=rings,
        NCCLSCOPE_RECORDS=1024,
    )
    assert completed.returncode == 0, completed.stderr
    found = {rank.pid: rank for rank in open_run(rings).others}
    parent, good, bad = json.loads(completed.stdout)

    assert set(found) == {parent, good, bad}
    assert shapes(found[parent]) == [(1, 0), (1, 1), (4, 0), (4, 1)]
    assert shapes(found[good]) == [(2, n) for n in range(5)]
    assert shapes(found[bad]) == [(3, n) for n in range(6)]
    assert all(rank.exited for rank in found.values())
    ended = {pid: rank.details.get("ended_with") for pid, rank in found.items()}
    assert ended[parent] is None
    assert ended[good] is None
    if method == "fork":
        assert ended[bad] == "ValueError: three is too many"


def test_forks_while_other_threads_record(rings: Path) -> None:
    # In each child, a lock that another thread had taken has no owner any more, and what it
    # was about to write is half done. A child that waited for such a lock would hang.
    found, (parent, children, recorded) = processes(
        """
sys.setswitchinterval(1e-6)
stop = threading.Event()
counts = [0, 0, 0]

def work(thread):
    tracer = session.current()
    comm = tracer.communicator("k", "tp:0", [0])
    number = 0
    while not stop.is_set():
        number += 1
        # New parameters each time, so that there is something to intern.
        tracer.record(comm, "all_gatherv", shape=(thread, number), sizes=[number], site=f"{number}")
        counts[thread] += 1

session.current()
threads = [threading.Thread(target=work, args=(thread,)) for thread in range(3)]
for thread in threads:
    thread.start()
children = []
for number in range(40):
    child = os.fork()
    if child == 0:
        tracer = session.current()
        assert tracer.ring.path.name.split("-")[-2] == str(os.getpid())
        record(10, 1000 + number)
        tracer.record(tracer.communicator("new"), "barrier")
        os._exit(0)
    wait(child)
    children.append(child)
stop.set()
for thread in threads:
    thread.join()
print(json.dumps([os.getpid(), children, sum(counts)]))
""",
        rings,
        timeout=60,
    )
    assert set(found) == {parent, *children}
    log = found[parent].logs["k"]
    assert log.calls == recorded
    assert [call.seq for call in log.span(log.first, log.calls + 1)] == list(
        range(log.first, log.calls + 1)
    )
    assert {call.op for call in log.span(log.first, log.calls + 1)} == {"all_gatherv"}
    assert "new" not in found[parent].logs
    for number, child in enumerate(children):
        assert shapes(found[child]) == [(1000 + number, n) for n in range(10)]
        assert not found[child].exited


@pytest.mark.parametrize("first", [True, False])
def test_locks_that_other_threads_held_are_free_in_a_child(rings: Path, first: bool) -> None:
    found, (parent, child) = processes(
        """
first = """
        + str(first)
        + """
tracer = ncclscope.Tracer(sys.argv[1], capacity=1024) if first else session.current()
opened, done = threading.Event(), threading.Event()

def hold():
    texts = getattr(tracer.ring._interner, "_lock", threading.Lock())
    with session._lock, tracer._lock, tracer.ring._lock, texts:
        tracer.ring._interner._busy = True
        opened.set()
        done.wait()

thread = threading.Thread(target=hold)
thread.start()
opened.wait()
child = os.fork()
if child == 0:
    comm = tracer.communicator("old", "tp:0", [0])
    tracer.record(comm, "all_reduce", shape=(3,), site="old")
    tracer.relabel(comm, "tp:1")
    tracer.describe(rank=3)
    record(4, 2)
    os._exit(0)
wait(child)
done.set()
thread.join()
print(json.dumps([os.getpid(), child]))
""",
        rings,
    )
    assert shapes(found[child]) == [(2, n) for n in range(4)]
    assert not found[parent].logs


def test_what_other_threads_had_open_is_closed_in_a_child(rings: Path) -> None:
    _, (groups, suppressing, own) = processes(
        """
opened, done = threading.Event(), threading.Event()

def work():
    with scope.suppressed():
        scope.enter_group()
        opened.set()
        done.wait()

thread = threading.Thread(target=work)
thread.start()
opened.wait()
scope.enter_group()
reading, writing = os.pipe()
with scope.suppressed():
    child = os.fork()
    if child == 0:
        os.write(writing, json.dumps([
            list(scope.groups) == [threading.get_ident()],
            list(scope.suppressing) == [threading.get_ident()],
            scope.is_suppressed() and scope.group_number() > 0,
        ]).encode())
        os._exit(0)
wait(child)
done.set()
thread.join()
record(1, 1)
print(os.read(reading, 1000).decode())
""",
        rings,
    )
    assert (groups, suppressing, own) == (True, True, True)
