"""Recognise in the stacks of a process that it waits for requests, as a server does."""

from __future__ import annotations

from collections.abc import Sequence

from ncclscope.engine.processes.frames import user_frame, wait_of
from ncclscope.model.snapshot import Frame, Stacks, Thread

_OWN_THREADS = "ncclscope-"
_OF_WORKERS = "shm_broadcast.py"


def is_fed(stacks: Stacks, *waiting: str) -> bool:
    """Return whether a process has another thread of the program that may fill a queue.

    Args:
        stacks: Stacks of the process.
        *waiting: Names of threads that do not fill it.
    """
    return bool(_others(stacks, waiting))


def awaits_requests(waits: str | None, frames: Sequence[Frame]) -> bool:
    """Return whether an engine waits for requests, and not for a queue of its workers.

    Args:
        waits: What it waits for.
        frames: Its stack, down to the wait.
    """
    return waits == "queue" and not is_of_workers(frames)


def is_of_workers(frames: Sequence[Frame]) -> bool:
    """Return whether a stack ends in a queue between an engine of vLLM and its workers."""
    return frames[-1].base == _OF_WORKERS


def waits_in_thread(stacks: Stacks, name: str, frames: Sequence[Frame]) -> bool:
    """Return whether a thread waits for others of its program, one of which waits for requests.

    That is the shape of a server whose main thread waits for the end, while another receives the
    requests and posts the collectives. Threads of installed packages also write logs from a queue.

    Args:
        stacks: Stacks of the process.
        name: Name of the thread.
        frames: Its stack, the outermost frame first.
    """
    if not frames or frames[-1].base != "threading.py" or wait_of(frames[-1]) != "lock":
        return False
    others = _others(stacks, (name,))
    return any(_receives(one, is_alone=len(others) == 1) for one in others)


def _others(stacks: Stacks, names: Sequence[str]) -> list[Thread]:
    return [
        one
        for one in stacks.threads
        if one.frames and one.name not in names and not one.name.startswith(_OWN_THREADS)
    ]


def _receives(thread: Thread, *, is_alone: bool) -> bool:
    """Return whether a thread of the user's program waits for input, in a queue or from outside.

    Args:
        thread: The thread.
        is_alone: Whether no other thread could fill a queue.
    """
    if user_frame(thread.frames) is None:
        return False
    waiting = next((frame for frame in thread.frames if wait_of(frame) is not None), None)
    if waiting is None or wait_of(waiting) != "queue":
        return False
    return waiting.base != "queue.py" or not is_alone
