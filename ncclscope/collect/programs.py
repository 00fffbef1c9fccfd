"""Reach a node through a local program, whose stdout is the node's stream."""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import subprocess
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from ncclscope.errors import InputError

_LONGEST_TALK = 1 << 16
_END_SECONDS = 5.0


@dataclass(frozen=True)
class ProgramNode:
    """A node.

    Attributes:
        name: Its name.
        argv: The local command that reaches it.
    """

    name: str
    argv: Sequence[str]

    @contextmanager
    def open(self, timeout: float) -> Iterator[_Output]:
        """Run the program, and kill its process group at the end.

        Args:
            timeout: Seconds until reading raises TimeoutError.

        Raises:
            InputError: The program cannot be run.
        """
        try:
            # Its own session: Ctrl-C interrupts ncclscope, which then ends the program.
            program = subprocess.Popen(
                self.argv,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                start_new_session=True,
            )
        except OSError as error:
            raise InputError(f"{self.argv[0]} cannot be run: {error.strerror}") from None
        output = _Output(self.argv[0], program, time.monotonic() + timeout)
        try:
            yield output
        finally:
            output.close()


def last_line(talk: bytes | str) -> str:
    """Return the last line of what a program has printed; empty if there is none."""
    text = talk.decode("utf-8", "replace") if isinstance(talk, bytes) else talk
    return next((line.strip() for line in reversed(text.splitlines()) if line.strip()), "")


def failure_of(talk: bytes, status: int | None, name: str) -> str:
    """Return why a program failed, in one line; empty if it did not.

    Args:
        talk: What it has printed on stderr.
        status: Its exit status; None while it runs.
        name: Its name.
    """
    return (last_line(talk) or f"{name} exited with status {status}") if status else ""


class _Output:
    """The output of a program, until a deadline."""

    def __init__(self, name: str, program: subprocess.Popen[bytes], deadline: float) -> None:
        assert program.stdout is not None
        self._name = name
        self._program = program
        self._deadline = deadline
        self._stdout = program.stdout
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._stdout, selectors.EVENT_READ)
        self._talk = b""
        self._listener = threading.Thread(target=self._listen, daemon=True)
        self._listener.start()

    def read(self, size: int) -> bytes:
        """Return the next bytes, at most `size`; empty at the end."""
        left = self._deadline - time.monotonic()
        if left <= 0 or not self._selector.select(left):
            raise TimeoutError
        return os.read(self._stdout.fileno(), size)

    def reason(self) -> str:
        """Return the last line of its stderr, or its status; empty if it succeeded."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._program.wait(min(_END_SECONDS, max(0.0, self._deadline - time.monotonic())))
        self._listener.join(_END_SECONDS)
        return failure_of(self._talk, self._program.poll(), self._name)

    def close(self) -> None:
        """Terminate the program's process group."""
        self._selector.close()
        if self._program.poll() is None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._program.wait(0 if time.monotonic() >= self._deadline else 1.0)
        # srun and kubectl forward SIGTERM to the processes that they started remotely.
        for number in (signal.SIGTERM, signal.SIGKILL):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._program.pid, number)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._program.wait(1.0)
        self._program.wait()
        self._listener.join(_END_SECONDS)
        self._stdout.close()
        if self._program.stderr is not None and not self._listener.is_alive():
            self._program.stderr.close()

    def _listen(self) -> None:
        assert self._program.stderr is not None
        while data := os.read(self._program.stderr.fileno(), 4096):
            self._talk = (self._talk + data)[-_LONGEST_TALK:]
