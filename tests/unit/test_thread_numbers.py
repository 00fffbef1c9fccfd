"""Each living thread of Python has a number of its own, as far as six bits hold them."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap

import pytest

from ncclscope import native
from ncclscope.model.threads import SEVERAL

WRITERS = [
    pytest.param("0", id="python"),
    pytest.param(
        "1",
        id="c",
        marks=pytest.mark.skipif(native.core() is None, reason=native.why_not()),
    ),
]
pytestmark = pytest.mark.parametrize("writer", WRITERS)

PROLOGUE = """
import _thread, os, threading
from ncclscope.native.threads import own

def numbers(count):
    "Return the numbers of threads that live at one time, in the order in which they began."
    found, go_on = [], threading.Event()
    def ask(began):
        found.append(own.number)
        began.set()
        go_on.wait()
    threads = []
    for _ in range(count):
        began = threading.Event()
        threads.append(threading.Thread(target=ask, args=(began,)))
        threads[-1].start()
        began.wait()
    go_on.set()
    for thread in threads:
        thread.join()
    return found
"""


def printed(writer: str, program: str) -> list[int]:
    """Return the numbers that a process of its own prints."""
    done = subprocess.run(
        [sys.executable, "-c", PROLOGUE + textwrap.dedent(program)],
        env={**os.environ, "NCCLSCOPE_NATIVE": writer},
        capture_output=True,
        text=True,
        check=True,
    )
    return [int(each) for each in done.stdout.split()]


def test_a_thread_keeps_its_number(writer: str) -> None:
    assert printed(writer, "print(own.number, *numbers(3), own.number)") == [
        1,
        *(2, 3, 4),
        1,
    ]


def test_a_thread_that_has_ended_leaves_its_number_to_another(writer: str) -> None:
    program = """
    own.number
    for _ in range(300):
        print(*numbers(2), *numbers(3))
    """
    assert {*printed(writer, program)} == {2, 3, 4}


def test_further_threads_share_a_number_until_others_end(writer: str) -> None:
    program = """
    own.number
    print(*numbers(70))
    print(*numbers(1))
    """
    *many, last = printed(writer, program)

    assert many == [*range(2, 63), *[SEVERAL] * 9]
    assert last == 2


def test_threads_that_python_did_not_start_have_none(writer: str) -> None:
    program = """
    own.number
    done = threading.Event()
    _thread.start_new_thread(lambda: (print(own.number, flush=True), done.set()), ())
    done.wait()
    """
    assert printed(writer, program) == [0]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_threads_that_a_fork_left_behind_hold_no_number(writer: str) -> None:
    """The parent's 62 threads do not run in its child, nor in the child's own child."""
    program = """
    own.number
    asked, go_on = threading.Semaphore(0), threading.Event()
    def wait():
        own.number
        asked.release()
        go_on.wait()
    threads = [threading.Thread(target=wait) for _ in range(61)]
    for thread in threads:
        thread.start()
        asked.acquire()
    for _ in range(2):
        if child := os.fork():
            os.waitpid(child, 0)
            go_on.set()
            break
        print(own.number, *numbers(61), flush=True)
    """
    assert printed(writer, program) == [*range(1, 63)] * 2
