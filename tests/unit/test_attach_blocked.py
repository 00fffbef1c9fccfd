"""What real processes wait for in the kernel, and what their source lines call."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from ncclscope import procfs
from ncclscope.attach.proc_sample import read_sample, started_seconds
from ncclscope.attach.source_lines import called_names
from ncclscope.attach.stacks import PySpy, find_py_spy

PLACES = {
    "sleep": "time.sleep(1000)",
    "futex": "lock = threading.Lock(); lock.acquire(); lock.acquire()",
    "lock": "a, b = open(n, 'w'), open(n, 'w'); fcntl.flock(a, 2); fcntl.flock(b, 2)",
    "socket": "a, b = socket.socketpair(); a.recv(1)",
    "pipe": "r, w = os.pipe(); os.read(r, 1)",
    "fifo": "os.mkfifo(n); open(n)",
    "poll": "select.select([], [], [], 1000)",
    "child": "os.waitpid(subprocess.Popen(['sleep', '5']).pid, 0)",
}


@contextmanager
def program(path: Path, source: str) -> Iterator[subprocess.Popen[bytes]]:
    path.write_text(source)
    with subprocess.Popen([sys.executable, path], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        try:
            yield process
        finally:
            process.kill()


@pytest.mark.parametrize("what", PLACES)
def test_a_system_call_says_what_is_waited_for(tmp_path: Path, what: str) -> None:
    source = (
        "import fcntl, os, select, socket, subprocess, threading, time\n"
        f"n = {str(tmp_path / 'name')!r}\nprint(flush=True)\n{PLACES[what]}\n"
    )
    with program(tmp_path / "program.py", source) as process:
        deadline = time.monotonic() + 30
        while (found := read_sample(process.pid).blocked) != what:
            assert time.monotonic() < deadline, found
            time.sleep(0.01)


@pytest.mark.parametrize(
    ("place", "waits"),
    [
        ("s = socket.socket(); s.bind(('127.0.0.1', 0)); s.listen(); s.accept()", True),
        ("a, b = socket.socketpair(); select.epoll().poll()", True),
        (PLACES["poll"], True),
        (PLACES["socket"], False),
        (PLACES["sleep"], False),
        (PLACES["futex"], False),
    ],
)
def test_a_server_without_requests_waits_for_input(tmp_path: Path, place: str, waits: bool) -> None:
    source = f"import select, socket, threading, time\nprint(flush=True)\n{place}\n"
    with program(tmp_path / "program.py", source) as process:
        deadline = time.monotonic() + 30
        while not read_sample(process.pid).blocked:
            assert time.monotonic() < deadline
            time.sleep(0.01)
        assert procfs.waits_for_input(process.pid) is waits


def test_a_thread_that_gets_no_processor_is_known(tmp_path: Path) -> None:
    """Three spin on one processor: each is ready to run, and has none two thirds of the time."""
    one = min(os.sched_getaffinity(0))
    source = f"import os\nos.sched_setaffinity(0, [{one}])\nprint(flush=True)\nwhile True: pass\n"
    with contextlib.ExitStack() as running:
        spinning = [
            running.enter_context(program(tmp_path / f"{number}.py", source)) for number in range(3)
        ]
        first = [read_sample(process.pid) for process in spinning]
        deadline = time.monotonic() + 60
        while True:
            last = [read_sample(process.pid) for process in spinning]
            pairs = list(zip(first, last, strict=True))
            delays = [two.main_delayed_seconds - one.main_delayed_seconds for one, two in pairs]
            if min(delays) > 1.0:
                break
            assert time.monotonic() < deadline
            time.sleep(0.05)
    used = [two.main_cpu_seconds - one.main_cpu_seconds for one, two in pairs]
    assert all(delay > more for delay, more in zip(delays, used, strict=True))


PARENT = """
import os, subprocess, sys
spin = "import os; print(os.getpid(), flush=True)\\nwhile True: pass"
script = f"{sys.executable} -c '{spin}'; true"
shell = subprocess.Popen(["sh", "-c", script], stdout=subprocess.PIPE)
print(int(shell.stdout.readline()), flush=True)
with open(sys.argv[0] + ".saved", "wb", buffering=0) as file:
    file.write(bytes(1 << 20))
shell.wait()
"""


def test_what_a_process_has_started_and_written_is_counted(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(PARENT)
    command = [sys.executable, str(tmp_path / "program.py")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        child = int(process.stdout.readline())
        deadline = time.monotonic() + 60
        try:
            while (seconds := started_seconds([process.pid])[process.pid]) < 0.2:
                assert time.monotonic() < deadline
                time.sleep(0.05)
            both = started_seconds([process.pid, child])
            while read_sample(process.pid).io_bytes < 1 << 20:
                assert time.monotonic() < deadline
                time.sleep(0.05)
        finally:
            os.kill(child, signal.SIGKILL)
        assert process.wait(30) == 0
    assert both[process.pid] < seconds


def test_nothing_is_known_of_a_process_that_is_gone(tmp_path: Path) -> None:
    assert read_sample(2**22 + 1).blocked == ""
    assert called_names(2**22 + 1, "/etc/passwd", 1) == ()


def test_the_calls_of_a_line_are_read_from_the_source(tmp_path: Path) -> None:
    source = (
        "import threading\nlock = threading.Lock()\nlock.acquire()\n"
        "class Here:\n    lock = lock\n    def wait(self, *rest):\n        with self.lock:\n"
        "            pass\nprint(flush=True)\nHere().wait(len('x'), str(1))\n"
    )
    reader = find_py_spy()
    assert reader is not None
    path = tmp_path / "program.py"
    with program(path, source) as process:
        deadline = time.monotonic() + 30
        while True:
            (thread,) = PySpy(reader).read_one(process.pid).threads or (None,)
            if thread is not None and thread.frames[-1].function.endswith("wait"):
                break
            assert time.monotonic() < deadline
        outer, last = thread.frames
        assert (last.path, last.installed) == (str(path), False)
        assert (last.calls, outer.calls) == (("self.lock.__enter__",), ())
        assert called_names(process.pid, str(path), 10) == ("Here", ".wait", "len", "str")
        assert called_names(process.pid, str(path), 99) == ()
        assert called_names(process.pid, str(tmp_path), 1) == ()
        os.utime(path, (time.time() + 100,) * 2)
        assert called_names(process.pid, str(path), 7) == (), "it was changed since"
