"""Receive signals as records of the kernel, and start a program with the signals of its own.

A signalfd yields a whole record or none. ``signal.sigtimedwait`` of CPython 3.11 invents a signal
where a stop lasts beyond its timeout.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import struct
from collections.abc import Iterator
from typing import NamedTuple

CAUGHT = frozenset(map(int, signal.valid_signals())) - {signal.SIGKILL, signal.SIGSTOP}
"""Signals that a process can receive. The C library keeps two of the 64 for itself."""
ENDING = frozenset({signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTERM})
"""Signals by which people and schedulers end a program."""
FROM_KERNEL = 0x80
"""Origin of a signal that the kernel sent, as for a key of the terminal (``SI_KERNEL``)."""
_FAULTS = frozenset(
    getattr(signal, f"SIG{name}") for name in ("ABRT", "BUS", "FPE", "ILL", "SEGV", "SYS", "TRAP")
)
_RECORD = struct.Struct("=IiiI112x")
_AT_ONCE = 64
_PR_SET_PDEATHSIG = 1


class Received(NamedTuple):
    """One signal.

    Attributes:
        number: Its number.
        origin: How it was sent, as ``si_code`` of sigaction(2).
        sender: Process that sent it; 0 for the kernel, or for a process of an outer namespace.
    """

    number: int
    origin: int
    sender: int


class SignalReader:
    """Reads the blocked signals that a process has received; a forked child reads its own."""

    def __init__(self) -> None:
        libc = ctypes.CDLL(None, use_errno=True)
        bits = sum(1 << (number - 1) for number in CAUGHT)
        mask = ctypes.create_string_buffer(bits.to_bytes(8, "little"), 128)
        # The flags of signalfd are those of open.
        self._file: int = libc.signalfd(-1, mask, os.O_NONBLOCK | os.O_CLOEXEC)
        if self._file < 0:
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))

    def fileno(self) -> int:
        """Return the descriptor, which is readable while a signal is pending."""
        return self._file

    def read(self) -> list[Received]:
        """Return the pending signals, without waiting."""
        found: list[Received] = []
        with contextlib.suppress(BlockingIOError):
            while True:
                data = os.read(self._file, _AT_ONCE * _RECORD.size)
                for number, _, origin, sender in _RECORD.iter_unpack(data):
                    found.append(Received(number, origin, sender))
        return found


class Inherited:
    """Blocks all signals, and remembers what a program would have inherited instead.

    Interpreters ignore SIGPIPE and SIGXFSZ. What these were before is lost, so a program begins
    with the default, as :mod:`subprocess` has it.
    """

    def __init__(self) -> None:
        self._parent = os.getpid()
        self._prctl = ctypes.CDLL(None).prctl
        self._ignores_children = signal.getsignal(signal.SIGCHLD) is signal.SIG_IGN
        if self._ignores_children:
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # or the kernel would reap the program
        self._blocked = signal.pthread_sigmask(signal.SIG_BLOCK, CAUGHT)

    def restore(self) -> None:
        """Unblock the signals."""
        signal.pthread_sigmask(signal.SIG_SETMASK, self._blocked)

    def prepare_child(self) -> None:
        """Call this in a forked child, before it executes the program.

        If this process is killed, the program is as well: who kills this process means the program.
        """
        self._prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
        if os.getppid() not in (self._parent, 0):  # it ended before the line above
            os._exit(128 + signal.SIGKILL)
        if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
            signal.signal(signal.SIGINT, signal.SIG_DFL)  # the handler would lose one
        if self._ignores_children:
            signal.signal(signal.SIGCHLD, signal.SIG_IGN)
        self.restore()


def stop_with(number: int) -> None:
    """Stop this process by a signal, until another one continues it."""
    if number == signal.SIGSTOP:
        os.kill(os.getpid(), number)
        return
    previous = signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {number})
    signal.pthread_sigmask(signal.SIG_BLOCK, {number})
    signal.signal(number, previous)


def end_with(number: int) -> None:
    """End this process by a signal, so that its parent sees the same end as the program's."""
    signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {number})


def disregard_others() -> None:
    """Receive all signals again, and do nothing about those that are not for this process.

    A scheduler may send them to each process of a job. They are caught, not ignored: what this
    process starts would ignore them, too.
    """
    kept = ENDING | {signal.SIGCHLD, signal.SIGCONT, signal.SIGPIPE, signal.SIGXFSZ, *_FAULTS}
    for number in CAUGHT - kept:
        signal.signal(number, lambda *_: None)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())


@contextlib.contextmanager
def interruptible() -> Iterator[None]:
    """Raise KeyboardInterrupt inside the block at the first signal that ends programs."""

    def interrupt(_number: int, _frame: object) -> None:
        raise KeyboardInterrupt

    taken = [one for one in ENDING if signal.getsignal(one) is not signal.SIG_IGN]  # nohup
    for number in taken:
        signal.signal(number, interrupt)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, taken)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_BLOCK, taken)
