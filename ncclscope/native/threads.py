"""Number the threads of a process that post calls.

Calls of two threads have no order that the program determines. Those of threads that Python did
not start do: autograd runs a backward on a thread of its own, for which the caller waits.
"""

from __future__ import annotations

import threading
import weakref

from ncclscope import native

MOST_THREADS = 62
"""Threads that have a number of their own at one time: a record has six bits for it."""
SEVERAL = 63
"""The number of all further threads."""

_holders: dict[int, weakref.ref[threading.Thread]] = {}


class Own(threading.local):
    """What is known of the thread that asks.

    Attributes:
        number: From 1, and no other living thread has it. A thread that has ended leaves it to a
            later one. 0 for a thread that Python did not start, and ``SEVERAL`` where all numbers
            are taken.
    """

    def __init__(self) -> None:
        self.number: int = _take_number() if _core is None else _core.thread_number()


def _take_number() -> int:
    here = threading.get_ident()
    own = next((one for one in threading.enumerate() if one.ident == here), None)
    if own is None or isinstance(own, threading._DummyThread):
        return 0
    for number in range(1, MOST_THREADS + 1):
        holder = _holders.get(number)
        holding = None if holder is None else holder()
        if holding is None or not holding.is_alive():
            _holders[number] = weakref.ref(own)
            return number
    return SEVERAL


_core = native.core()
if _core is not None:
    _core.use_threads(threading._active, threading._DummyThread)  # type: ignore[attr-defined]
own = Own()
