"""How a process ends: what its ring says of it, and that tracing does not get in the way."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from ncclscope import open_run
from ncclscope.model import Rank
from ncclscope.ring import layout
from tests.support.programs import ROOT, run_program

pytestmark = pytest.mark.both_writers

BEGIN = """
import atexit, os, signal, sys, threading, time
import ncclscope
from ncclscope.tracing import session

def record(number):
    tracer = session.current()
    comm = tracer.communicator("k", "tp:0", [0])
    tracer.record(comm, "all_reduce", shape=(number,), dtype="float32", redop="sum")
"""


def run(source: str, rings: Path, status: int = 0, **variables: Any) -> tuple[Rank, str]:
    """Run a program and return its rank and its stderr."""
    completed = run_program(BEGIN + source, rings, NCCLSCOPE_DIR=rings, **variables)
    assert completed.returncode == status, completed.stderr
    (rank,) = open_run(rings).others
    return rank, completed.stderr


def shapes(rank: Rank) -> list[int]:
    log = rank.logs["k"]
    return [call.shape[0] for call in log.span(log.first, log.calls + 1) if call.shape]


@pytest.mark.parametrize("end", ["pass", "sys.exit(0)", "sys.exit()", "raise SystemExit"])
def test_a_normal_exit_is_recorded(rings: Path, end: str) -> None:
    rank, output = run(f"record(1)\n{end}", rings)

    assert rank.exited
    assert rank.alive is False
    assert "ended_with" not in rank.details
    assert output == ""
    assert shapes(rank) == [1]


def test_an_exit_with_a_status_is_an_end_in_order(rings: Path) -> None:
    rank, output = run("record(1)\nsys.exit(3)", rings, status=3)

    assert rank.exited
    assert "ended_with" not in rank.details
    assert output == ""


@pytest.mark.parametrize(
    ("end", "status"),
    [
        ("os._exit(0)", 0),
        ("os._exit(5)", 5),
        ("os.kill(os.getpid(), signal.SIGKILL)", -signal.SIGKILL),
        ("os.kill(os.getpid(), signal.SIGTERM)", -signal.SIGTERM),
        ("os.abort()", -signal.SIGABRT),
        ("import ctypes; ctypes.string_at(8)", -signal.SIGSEGV),
    ],
)
def test_an_abrupt_end_is_not_recorded_and_loses_nothing(
    rings: Path, end: str, status: int
) -> None:
    rank, _ = run(f"for number in range(100): record(number)\n{end}", rings, status)

    assert not rank.exited
    assert rank.alive is False
    assert shapes(rank) == list(range(100))


def test_what_has_ended_it_is_named(rings: Path) -> None:
    rank, output = run("record(1)\nraise ValueError('no such expert: 7')", rings, status=1)

    assert rank.exited
    assert rank.details["ended_with"] == "ValueError: no such expert: 7"
    assert output.endswith("ValueError: no such expert: 7\n")


def test_a_message_of_several_lines_is_kept_as_one(rings: Path) -> None:
    source = r"raise RuntimeError('\n    Failed in backward:\n    Input: []')"
    rank, _ = run(f"record(1)\n{source}", rings, status=1)

    assert rank.details["ended_with"] == "RuntimeError: Failed in backward: Input: []"


def test_an_exception_that_cannot_be_printed_is_named_too(rings: Path) -> None:
    source = """
class Strange(Exception):
    def __str__(self):
        raise RuntimeError

record(1)
raise Strange
"""
    rank, _ = run(source, rings, status=1)

    assert rank.exited
    assert rank.details["ended_with"] == "Strange"


def test_an_exception_in_a_thread_does_not_end_a_process(rings: Path) -> None:
    source = """
record(1)
thread = threading.Thread(target=lambda: 1 / 0)
thread.start()
thread.join()
"""
    rank, _ = run(source, rings)

    assert rank.exited
    assert "ended_with" not in rank.details


def test_an_error_of_an_interactive_session_does_not_end_it(rings: Path) -> None:
    source = """
import code
record(1)
console = code.InteractiveConsole()
sys.ps1 = ">>> "
console.push("1 / 0")
"""
    rank, _ = run(source, rings)

    assert rank.exited
    assert "ended_with" not in rank.details


LATE = """
class Late:
    def __init__(self, number):
        self.number = number
        self.tracer = session.current()
        self.comm = self.tracer.communicator("k")
        self.write = os.write

    def __del__(self):
        self.tracer.record(self.comm, "all_reduce", shape=(self.number, 1))
        self.tracer.record(self.comm, "all_reduce", shape=(self.number,), redop=f"r{self.number}")
        self.write(1, f"{self.number}\\n".encode())
"""


def test_recording_goes_on_while_the_interpreter_ends(rings: Path) -> None:
    source = """
def generate():
    try:
        yield
    finally:
        record(30)

atexit.register(record, 11)
record(1)
atexit.register(record, 10)
late = Late(20)
cycle = Late(21)
cycle.itself = cycle
generator = generate()
next(generator)
"""
    # What is registered before ncclscope's own is called after it.
    first = "import atexit\natexit.register(lambda: record(12))\n"
    completed = run_program(first + BEGIN + LATE + source, NCCLSCOPE_DIR=rings)
    (rank,) = open_run(rings).others

    assert (completed.returncode, completed.stderr) == (0, "")
    assert set(completed.stdout.split()) == {"20", "21"}
    assert rank.exited
    assert shapes(rank)[:4] == [1, 10, 11, 12]
    assert set(shapes(rank)[4:]) == {20, 21, 30}


def test_finalizers_that_outlive_the_modules_are_not_disturbed(rings: Path) -> None:
    source = """
record(1)
late = Late(20)
sys.late = Late(22)
threading.late = Late(23)
session.current().late = Late(24)
"""
    completed = run_program(BEGIN + LATE + source, NCCLSCOPE_DIR=rings)
    (rank,) = open_run(rings).others

    assert (completed.returncode, completed.stderr) == (0, "")
    # Where the modules are empty already nothing can be recorded, and nothing is complained of.
    assert completed.stdout
    assert shapes(rank)[0] == 1
    assert set(shapes(rank)) <= {1, 20, 22, 23, 24}


def test_daemon_threads_that_still_record_do_no_harm(rings: Path) -> None:
    source = """
started = threading.Barrier(5)

def work(thread):
    record(thread)
    started.wait()
    while True:
        record(thread)

for thread in range(4):
    threading.Thread(target=work, args=(thread,), daemon=True).start()
started.wait()
"""
    rank, output = run("sys.setswitchinterval(1e-5)\n" + source, rings)

    assert output == ""
    assert rank.exited
    assert set(shapes(rank)) == {0, 1, 2, 3}
    log = rank.logs["k"]
    assert list(log.signatures(log.first, log.calls + 1)) == [
        call.signature for call in log.span(log.first, log.calls + 1)
    ]


def test_the_first_call_may_be_posted_while_the_process_ends(rings: Path) -> None:
    # A thread for the heartbeat can no longer be had, from Python 3.12 on.
    rank, output = run("atexit.register(record, 1)", rings)

    assert output == ""
    assert shapes(rank) == [1]


def test_without_a_thread_for_the_heartbeat_calls_are_recorded(rings: Path) -> None:
    source = """
import mmap, resource
import ncclscope.tracing.tracer
held = int(open("/proc/self/statm").read().split()[0]) * mmap.PAGESIZE
# Enough for the ring, too little for the stack of a thread.
threading.stack_size(256 << 20)
resource.setrlimit(resource.RLIMIT_AS, (held + (128 << 20), resource.RLIM_INFINITY))
try:
    threading.Thread(target=print).start()
except RuntimeError:
    record(1)
"""
    rank, output = run(source, rings)

    assert output == ""
    assert shapes(rank) == [1]


@pytest.mark.parametrize("stderr", ["sys.stderr = None", "sys.stderr.close()", "os.close(2)"])
def test_a_warning_that_nobody_can_read_does_no_harm(tmp_path: Path, stderr: str) -> None:
    source = f"""
import resource
resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, resource.RLIM_INFINITY))
{stderr}
assert session.current() is None
assert session.current() is None
print("went on")
"""
    completed = run_program(BEGIN + source, NCCLSCOPE_DIR=tmp_path / "rings", TMPDIR=tmp_path)

    assert completed.stdout == "went on\n"
    assert completed.returncode == 0


def heartbeat(ring: Path) -> int:
    with ring.open("rb") as file:
        file.seek(layout.HEADER_HEARTBEAT)
        return int.from_bytes(file.read(8), "little")


def wait_for_change(ring: Path, since: int) -> int:
    deadline = time.monotonic() + 20
    while (now := heartbeat(ring)) == since:
        assert time.monotonic() < deadline, "the heart has stopped"
        time.sleep(0.005)
    return now


@pytest.mark.parametrize("end", [signal.SIGKILL, signal.SIGSTOP])
def test_the_heartbeat_goes_on_while_the_program_waits_and_stops_with_it(
    rings: Path, end: signal.Signals
) -> None:
    source = f"""{BEGIN}
from ncclscope.tracing import tracer
tracer.HEARTBEAT_SECONDS = 0.02
record(1)
print(session.current().path, flush=True)
sys.stdin.read()
"""
    with subprocess.Popen(
        [sys.executable, "-c", source],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=ROOT,
        env=os.environ | {"NCCLSCOPE_DIR": str(rings)},
    ) as process:
        try:
            assert process.stdout is not None
            ring = Path(process.stdout.readline().strip())
            first = heartbeat(ring)
            second = wait_for_change(ring, first)
            third = wait_for_change(ring, second)
            (rank,) = open_run(rings).others
            assert rank.alive is True
            assert rank.last_seen_ns is not None
            assert first < second < third <= rank.last_seen_ns

            before = time.time_ns()
            process.send_signal(end)
            if end == signal.SIGKILL:
                # It is a zombie now, for nobody has waited for it: not alive.
                os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
            else:
                os.waitid(os.P_PID, process.pid, os.WSTOPPED | os.WNOWAIT)
            after = time.time_ns()

            (rank,) = open_run(rings).others
            assert rank.alive is (end == signal.SIGSTOP)
            assert rank.details.get("stopped", False) is (end == signal.SIGSTOP)
            assert not rank.exited
            assert rank.last_seen_ns is not None
            assert before - 10_000_000_000 < rank.last_seen_ns <= after
        finally:
            process.kill()
