"""Stacks of processes that are asleep, stopped, hung in the kernel, gone, or no Python."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from ncclscope.attach import native
from ncclscope.attach.native import merge_native, parse_pystack
from ncclscope.attach.proc_sample import read_sample, state_of
from ncclscope.attach.processes import describe
from ncclscope.attach.stacks import PySpy, find_py_spy, parse_dump
from ncclscope.model.snapshot import Stacks, Thread
from tests.support.snapshots import DATA

SLEEPER = "import sys, time\ndef deep():\n    print(flush=True)\n    time.sleep(1000)\ndeep()"
# The parent of a vfork waits in the kernel, in state D, until its child is gone.
HUNG = """
import ctypes, time
libc = ctypes.PyDLL(None)
print(flush=True)
if libc.vfork() == 0:
    libc.pause()
"""


@contextmanager
def python(source: str) -> Iterator[int]:
    with subprocess.Popen([sys.executable, "-c", source], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        try:
            yield process.pid
        finally:
            for child in children(process.pid):
                os.kill(child, signal.SIGKILL)
            process.kill()


def children(pid: int) -> list[int]:
    return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def wait_for_state(pid: int, letter: str) -> None:
    deadline = time.monotonic() + 30
    while state_of(pid) != letter:
        assert time.monotonic() < deadline, state_of(pid)
        time.sleep(0.01)


@pytest.fixture
def py_spy() -> PySpy:
    program = find_py_spy()
    assert program is not None
    return PySpy(program)


def functions(stacks: Stacks) -> list[str]:
    return [frame.name for thread in stacks.threads for frame in thread.frames]


def test_a_sleeping_process(py_spy: PySpy) -> None:
    with python(SLEEPER) as pid:
        wait_for_state(pid, "S")
        stacks = py_spy.read([pid])[pid]

    assert (stacks.error, functions(stacks)) == ("", ["<module>", "deep"])


def test_a_stopped_process_is_read_and_stays_stopped(py_spy: PySpy) -> None:
    with python(SLEEPER) as pid:
        wait_for_state(pid, "S")
        os.kill(pid, signal.SIGSTOP)
        wait_for_state(pid, "T")
        began = time.monotonic()
        stacks = py_spy.read([pid])[pid]

        assert functions(stacks) == ["<module>", "deep"]
        assert time.monotonic() - began < 4
        assert state_of(pid) == "T"


def test_a_process_that_hangs_in_the_kernel_hangs_nobody(py_spy: PySpy) -> None:
    with python(HUNG) as pid:
        wait_for_state(pid, "D")
        began = time.monotonic()
        stacks = py_spy.read([pid])[pid]
        sample = read_sample(pid)
        describe(pid)

    assert time.monotonic() - began < 10
    assert sample.state == "D"
    assert stacks.threads or stacks.error


def test_a_reader_that_hangs_is_given_up(tmp_path: Path) -> None:
    stuck = tmp_path / "py-spy"
    stuck.write_text("#!/bin/sh\nexec sleep 1000\n")
    stuck.chmod(0o755)
    began = time.monotonic()
    found = PySpy(str(stuck), time_limit=0.3).read(range(2, 10))

    assert time.monotonic() - began < 5
    assert {stacks.error for stacks in found.values()} == {"py-spy did not finish within 0.3 s"}


def test_a_process_without_python_is_reported(py_spy: PySpy) -> None:
    with subprocess.Popen(["sleep", "100"]) as process:
        found = py_spy.read([process.pid, 2**22 + 1])
        process.kill()

    assert found[process.pid].error == "py-spy finds no Python interpreter in it"
    assert found[2**22 + 1].error == "the process has ended"


def test_only_counters_are_kept_of_local_variables(py_spy: PySpy) -> None:
    source = (
        "import time\ndef loop(password):\n    step, layer_idx, total, key = 7, 12, 99, 'secret'\n"
        "    print(flush=True)\n    time.sleep(1000)\nloop('hunter2')"
    )
    with python(source) as pid:
        wait_for_state(pid, "S")
        stacks = py_spy.read([pid])[pid]

    (frame,) = [f for thread in stacks.threads for f in thread.frames if f.name == "loop"]
    assert frame.counters == {"step": 7, "layer_idx": 12}
    assert "hunter2" not in repr(stacks)


@pytest.mark.parametrize(
    "data", [b"", b"{}", b"[3]", b'[{"frames": [1]}]', b"[" * 100_000, b"\xff\xfe"]
)
def test_what_is_no_dump_is_refused(data: bytes) -> None:
    with pytest.raises(ValueError, match=r"."):
        parse_dump(data)


def test_hostile_text_is_made_printable() -> None:
    frame = {"name": "\x1b[31mred", "short_filename": "a\nb.py", "line": -5}
    (thread,) = parse_dump(json.dumps([{"frames": [frame]}]).encode()).threads

    assert thread.frames[0].function == "\\x1b[31mred"
    assert thread.frames[0].file == "a\\nb.py"
    assert thread.frames[0].line == 0


def test_frames_come_with_the_outermost_first() -> None:
    (main, *_) = parse_dump((DATA / "moe" / "first-2.json").read_bytes()).threads

    assert main.frames[0].name == "<module>"
    assert main.frames[-1].name == "qkv_proj"
    assert {"layer_idx": 13} in [frame.counters for frame in main.frames]


# --- native -----------------------------------------------------------------------------------

PYSTACK = """Traceback for thread 12 (pt_nccl_watchdg) [] (most recent call last):
    (C) File "???", line 0, in __clone3 (/usr/lib/libc.so.6)
    (C) File "a.cpp", line 3, in c10d::ProcessGroupNCCL::watchdog() (/x/libtorch.so)

Traceback for thread 10 (python3) [] (most recent call last):
    (Python) File "/x/train.py", line 3, in main
        step()
    (C) File "???", line 0, in cuEventSynchronize (/usr/lib/libcuda.so)
"""


def test_threads_that_python_never_saw_are_added() -> None:
    seen = Stacks((Thread("MainThread", 10),))
    merged = merge_native(seen, parse_pystack(PYSTACK))

    assert [(thread.name, thread.tid) for thread in merged.threads] == [
        ("MainThread", 10),
        ("pt_nccl_watchdg", 12),
    ]
    assert merged.threads[0].native[-1].startswith("cuEventSynchronize")
    assert "watchdog" in merged.threads[1].native[-1]


def test_a_thread_number_that_is_too_long_is_cut() -> None:
    """Python refuses to read more than 4,300 digits."""
    (thread, *_) = parse_pystack(PYSTACK.replace("thread 12", f"thread {'9' * 5000}"))

    assert thread.name == "pt_nccl_watchdg"


@pytest.mark.skipif(not native.is_installed(), reason="pystack is not installed")
def test_c_frames_of_a_real_process() -> None:
    with python(SLEEPER) as pid:
        wait_for_state(pid, "S")
        threads = native.read_native(pid)

    assert not isinstance(threads, str)
    assert any("nanosleep" in frame for thread in threads for frame in thread.native)


# --- /proc ------------------------------------------------------------------------------------


def test_a_process_that_is_gone() -> None:
    assert read_sample(2**22 + 1).state == state_of(2**22 + 1) == "X"


def test_cpu_time_grows_with_work_and_switches_with_sleep() -> None:
    source = "import time\nprint(flush=True)\nwhile True:\n    sum(range(9999)); time.sleep(1e-4)"
    with python(source) as pid:
        first = read_sample(pid)
        deadline = time.monotonic() + 30
        while (last := read_sample(pid)).cpu_seconds < first.cpu_seconds + 0.1:
            assert time.monotonic() < deadline

    assert last.switches > first.switches + 10
    assert last.main_cpu_seconds > first.main_cpu_seconds
