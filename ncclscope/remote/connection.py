"""The program that reaches a host, such as ssh, and what it was asked and has not answered."""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import subprocess
from collections import deque
from typing import IO, cast

from ncclscope.collect.programs import ProgramNode, last_line
from ncclscope.errors import DamagedFileError, InputError
from ncclscope.remote.frames import FAILED, GREETING, METHODS, OK, Frame, FrameReader, spell_frame
from ncclscope.untrusted import printable

_READ = 1 << 18
_LONGEST_TALK = 1 << 14
_LONGEST_REASON = 200
_END_SECONDS = 1.0
"""Seconds that a program has to end after its stdout, or after SIGTERM."""


class Connection:
    """A program and its pipes, none of which blocks.

    Args:
        node: The host.
        selector: Watches the pipes; the data of a key is the method to call.
        now: Seconds by a monotonic clock.

    Attributes:
        began: When it was started, in seconds by that clock.
        failure: Why it can be used no more; empty while it can.

    Raises:
        InputError: The program cannot be run.
    """

    def __init__(self, node: ProgramNode, selector: selectors.BaseSelector, now: float) -> None:
        self.began = now
        self.failure = ""
        self._name = node.argv[0]
        self._selector = selector
        try:
            # Its own session: Ctrl-C interrupts ncclscope, which then ends the program.
            self._program = subprocess.Popen(
                node.argv,
                bufsize=0,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                start_new_session=True,
            )
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or error
            raise InputError(f"{self._name} cannot be run: {reason}") from None
        pipes = (self._program.stdin, self._program.stdout, self._program.stderr)
        self._stdin, self._stdout, self._stderr = (cast("IO[bytes]", pipe) for pipe in pipes)
        self._reader = FrameReader(GREETING)
        self._unsent = bytearray()
        self._asked: deque[tuple[int, float]] = deque()
        self._dropped: set[int] = set()
        self._answers: dict[int, tuple[bytes | str, float]] = {}
        """Answers, each with the time at which it was read."""
        self._number = 0
        self._talk = b""
        self._ended: float | None = None
        self._kill_at: float | None = None
        for pipe, receive in ((self._stdout, self._receive), (self._stderr, self._listen)):
            os.set_blocking(pipe.fileno(), False)
            selector.register(pipe, selectors.EVENT_READ, receive)
        os.set_blocking(self._stdin.fileno(), False)

    @property
    def is_greeted(self) -> bool:
        """Whether the server on the host has answered."""
        return self._reader.greeted

    def ask(self, method: str, payload: bytes, now: float) -> int:
        """Send a request; return its number.

        Args:
            method: Name of one of `METHODS`.
            payload: Its argument.
            now: Seconds by the clock.
        """
        self._number += 1
        self._asked.append((self._number, now))
        if not self._unsent:
            self._selector.register(self._stdin, selectors.EVENT_WRITE, self._send)
        self._unsent += spell_frame(Frame(METHODS.index(method), self._number, payload))
        return self._number

    def has(self, number: int) -> bool:
        """Return whether a request is answered."""
        return number in self._answers

    def take(self, number: int) -> tuple[bytes | str, float]:
        """Return an answer, or the reason why the host has none, and when it was read."""
        return self._answers.pop(number)

    def drop(self, number: int) -> None:
        """Forget a request: nobody waits for its answer."""
        if self._answers.pop(number, None) is None:
            self._dropped.add(number)

    def check(self, now: float, timeout: float, start: float) -> None:
        """Find out whether the program has ended, or takes too long.

        Args:
            now: Seconds by the clock.
            timeout: Seconds that an answer may take.
            start: Seconds until the server must have greeted.
        """
        if self.failure:
            return
        if self._ended is not None:
            if self._program.poll() is not None or now - self._ended > _END_SECONDS:
                self.failure = self._why_it_ended()
        elif not self.is_greeted:
            if now - self.began > start:
                self.failure = f"no answer for {start:g} s"
        elif self._asked and now - self._asked[0][1] > timeout:
            self.failure = f"no answer for {timeout:g} s"

    def close(self, now: float) -> None:
        """Close the pipes, which ends the server, and tell the program to end."""
        for pipe in (self._stdin, self._stdout, self._stderr):
            self._forget(pipe)
        # srun forwards SIGTERM to the process that it started remotely.
        self._signal(signal.SIGTERM)
        self._kill_at = now + _END_SECONDS

    def is_buried(self, now: float) -> bool:
        """Return whether the closed program has ended; kill it if it takes too long."""
        if self._kill_at is not None and now >= self._kill_at:
            self._signal(signal.SIGKILL)
        return self._program.poll() is not None

    def bury(self) -> None:
        """Wait for the end of the closed program."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._program.wait(_END_SECONDS)
        self._signal(signal.SIGKILL)
        self._program.wait()

    # --- the pipes ---------------------------------------------------------------------------

    def _send(self, now: float) -> None:
        try:
            count = os.write(self._stdin.fileno(), self._unsent)
        except BlockingIOError:
            return
        except OSError:
            count = len(self._unsent)  # it reads no more, so it will end or fail to answer
        del self._unsent[:count]
        if not self._unsent:
            self._selector.unregister(self._stdin)

    def _receive(self, now: float) -> None:
        data = _read(self._stdout)
        if data is None:
            return
        if not data:
            self._selector.unregister(self._stdout)
            self._ended = now
            return
        try:
            for frame in self._reader.feed(data):
                self._take(frame, now)
        except DamagedFileError as error:
            self.failure = self.failure or str(error)

    def _take(self, frame: Frame, now: float) -> None:
        if not self._asked or frame.number != self._asked[0][0]:
            raise DamagedFileError("it answers what it was not asked")
        self._asked.popleft()
        if frame.number in self._dropped:
            self._dropped.remove(frame.number)
        elif frame.kind == OK:
            self._answers[frame.number] = frame.payload, now
        elif frame.kind == FAILED:
            self._answers[frame.number] = one_line(frame.payload) or "it failed", now
        else:
            raise DamagedFileError("it sends a message of an unknown kind")

    def _listen(self, now: float) -> None:
        data = _read(self._stderr)
        if data:
            self._talk = (self._talk + data)[-_LONGEST_TALK:]
        elif data is not None:
            self._selector.unregister(self._stderr)

    def _why_it_ended(self) -> str:
        while data := _read(self._stderr):
            self._talk = (self._talk + data)[-_LONGEST_TALK:]
        status = self._program.poll()
        if status:
            return one_line(self._talk) or f"{self._name} exited with status {status}"
        return self._reader.lack or "it has ended"

    def _forget(self, pipe: IO[bytes]) -> None:
        with contextlib.suppress(KeyError):
            self._selector.unregister(pipe)
        with contextlib.suppress(OSError):
            pipe.close()

    def _signal(self, number: int) -> None:
        # Not yet waited for, so that its process group cannot be another's.
        if self._program.returncode is None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self._program.pid, number)


def one_line(talk: bytes) -> str:
    """Return the last line of what a program has printed, shortened; empty if there is none."""
    return printable(last_line(talk)[:_LONGEST_REASON])


def _read(pipe: IO[bytes]) -> bytes | None:
    """Return what a pipe holds; empty at its end, None if it holds nothing now."""
    try:
        return os.read(pipe.fileno(), _READ)
    except BlockingIOError:
        return None
    except OSError:
        return b""
