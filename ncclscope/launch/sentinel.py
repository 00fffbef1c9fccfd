"""A stand-in for a program, which receives what is sent to many processes at once.

``kill(2)`` does not report whether a signal was sent to one process or to several. The program of
``ncclscope run`` is in the process group of ``run``, and bears a part of its command line. So a key
of the terminal, ``kill -- -PGID``, ``pkill -f train.py``, and a scheduler that signals each process
of a job reach the program without help, and once is enough. The sentinel is in that group as well,
with the program's name and command line, and nobody knows its pid. What reaches both ``run`` and
the sentinel has reached the program, and what reaches ``run`` alone is to be passed on.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import select
import signal
import socket
import struct
from collections.abc import Sequence

from ncclscope.launch.signals import SignalReader
from ncclscope.procfs import is_stopped

_ANSWER_MS = 1000
"""Milliseconds to wait for the sentinel, which somebody may have stopped."""
_LOOK_MS = 100
"""Milliseconds between two looks at a stopped program."""
_PR_SET_NAME = 15
_PID = struct.Struct("=i")
_NOTHING = _PID.pack(0)
_QUESTION = b"?"
_ANSWERED = 0
"""Follows the signals of an answer; no signal has this number."""
_MOST = 4096
"""Bytes of a message: one for each signal."""
_BOUNDS = slice(45, 49)
"""Where command line and environment lie in memory, in ``/proc/PID/stat`` after the name."""


class Sentinel:
    """Starts the sentinel, which ends with this process.

    Args:
        reader: Reads the signals of this process; all of them are blocked.
        command: Program and arguments that it stands in for.
    """

    def __init__(self, reader: SignalReader, command: Sequence[str]) -> None:
        self._socket, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._socket.setblocking(False)
        parent = os.getpid()
        self.pid: int | None = None
        """Its process id; None if it could not be started, or has ended."""
        with other, contextlib.suppress(OSError):  # at the limit of processes
            self.pid = os.fork()
            if self.pid == 0:
                try:
                    self._socket.close()
                    _resemble(command)
                    _serve(reader, other, parent)
                finally:
                    os._exit(0)

    def fileno(self) -> int:
        """Return the descriptor, which is readable when it has received a signal."""
        return self._socket.fileno()

    def read(self) -> list[int]:
        """Return the numbers of the signals that it has reported, without waiting."""
        found: list[int] = []
        with contextlib.suppress(OSError):
            while report := self._socket.recv(_MOST):
                found += report
        return found

    def ask(self) -> list[int]:
        """Return the numbers of all signals that it has received until now."""
        self._send(_QUESTION)
        found: list[int] = []
        poll = select.poll()
        poll.register(self._socket, select.POLLIN)
        while self.pid is not None and _ANSWERED not in found:
            if not poll.poll(_ANSWER_MS):
                os.kill(self.pid, signal.SIGCONT)  # somebody has stopped it
                break
            more = self.read()
            if not more:  # it has ended
                break
            found += more
        return [number for number in found if number != _ANSWERED]

    def continue_with(self, pid: int) -> None:
        """Continue this process when the process ``pid`` is not stopped any more.

        Whoever continues the program alone need not know of this process. :meth:`rest` revokes it.
        """
        self._send(_PID.pack(pid))

    def rest(self) -> None:
        """Revoke :meth:`continue_with`."""
        self._send(_NOTHING)

    def close(self) -> None:
        """End the sentinel."""
        self._socket.close()
        if self.pid is not None:
            os.kill(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)
            self.pid = None

    def _send(self, request: bytes) -> None:
        if self.pid is not None:
            with contextlib.suppress(OSError):
                self._socket.send(request)


def _resemble(command: Sequence[str]) -> None:
    """Take the name and the command line of a program, by which others may choose it.

    Without an environment nobody takes this process for a rank.
    """
    name = os.path.basename(os.fsencode(command[0]))  # the kernel cuts it
    ctypes.CDLL(None).prctl(_PR_SET_NAME, name, 0, 0, 0)
    with open("/proc/self/stat", "rb") as file:
        places = map(int, file.read().rpartition(b")")[2].split()[_BOUNDS])
    begin, end, variables, last = places
    words = b"\0".join(map(os.fsencode, command)) + b"\0"
    if begin and begin + len(words) <= end:
        ctypes.memmove(begin, words.ljust(end - begin, b"\0"), end - begin)
    if variables:
        ctypes.memset(variables, 0, last - variables)


def _serve(reader: SignalReader, client: socket.socket, parent: int) -> None:
    """Report each signal and answer, until the client has ended."""
    _leave_files_to_others({reader.fileno(), client.fileno()})
    poll = select.poll()
    poll.register(reader, select.POLLIN)
    poll.register(client, select.POLLIN)
    stopped = 0
    while True:
        ready = poll.poll(_LOOK_MS if stopped else None)
        request = b""
        if any(file == client.fileno() for file, _ in ready):
            request = client.recv(_PID.size)
            if not request:
                return
        if numbers := [one.number for one in reader.read() if one.sender != parent]:
            client.send(bytes(numbers[:_MOST]))
        if request == _QUESTION:
            client.send(bytes([_ANSWERED]))
        elif request:
            (stopped,) = _PID.unpack(request)
        if stopped and not is_stopped(stopped) and os.getppid() == parent:
            os.kill(parent, signal.SIGCONT)


def _leave_files_to_others(own: set[int]) -> None:
    """Close all other files: a reader of the program's output waits until nobody can write."""
    nothing = os.open(os.devnull, os.O_RDWR)
    for standard in range(3):
        if standard not in own:
            os.dup2(nothing, standard)
    for name in os.listdir("/proc/self/fd"):
        if int(name) > 2 and int(name) not in own:
            with contextlib.suppress(OSError):
                os.close(int(name))
