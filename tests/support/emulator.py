"""A terminal that a test reads as a person would: a pseudo terminal with pyte behind it."""

from __future__ import annotations

import fcntl
import os
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import Any

import pyte

from tests.support.programs import ROOT

__all__ = ["Emulator"]

PATIENCE = 60.0
_LEADER = """
import fcntl, os, sys, termios
fcntl.ioctl(1, termios.TIOCSCTTY, 0)
os.execv(sys.argv[1], sys.argv[1:])
"""
"""Makes the terminal that of its session, as a login does, and becomes the program."""
_ALTERNATE, _CURSOR = 1049 << 5, 25 << 5


class Emulator:
    """Runs a program on a terminal of its own.

    Args:
        command: The program and its arguments.
        columns: Of the terminal.
        lines: Of the terminal.
        stdin: A descriptor for its standard input; the terminal when absent.
        stderr: The same for its standard error.
        **environment: Variables on top of the test's own; None takes one away.

    Attributes:
        received: All that the program has written.
        process: The program.
    """

    def __init__(
        self,
        command: Sequence[object],
        columns: int = 80,
        lines: int = 24,
        *,
        stdin: int | None = None,
        stderr: int | None = None,
        **environment: str | None,
    ) -> None:
        self.received = b""
        self._screen = pyte.Screen(columns, lines)
        self._stream = pyte.ByteStream(self._screen)
        self._master, self._slave = os.openpty()
        self._set_size(columns, lines)
        self.modes = self._modes()
        self.process = subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", _LEADER, *map(str, command)],
            stdin=self._slave if stdin is None else stdin,
            stdout=self._slave,
            stderr=self._slave if stderr is None else stderr,
            start_new_session=True,
            cwd=ROOT,
            env=_environment(environment),
        )

    def __enter__(self) -> Emulator:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait(10)
        os.close(self._master)
        os.close(self._slave)

    # --- what a person does ------------------------------------------------------------------

    def press(self, keys: str | bytes) -> None:
        """Write a text as if it were typed."""
        os.write(self._master, keys if isinstance(keys, bytes) else keys.encode())

    def resize(self, columns: int, lines: int) -> None:
        """Change the size of the terminal's window."""
        self._screen.resize(lines, columns)
        self._set_size(columns, lines)

    def hold(self, *, held: bool) -> None:
        """Stop all output of the terminal, as Ctrl-S does, or let it go on."""
        termios.tcflow(self._slave, termios.TCOOFF if held else termios.TCOON)

    # --- what a person sees ------------------------------------------------------------------

    @property
    def screen(self) -> str:
        """Lines of the screen."""
        return "\n".join(line.rstrip() for line in self._screen.display)

    def line(self, wanted: str) -> str:
        """Return the first line that contains a text."""
        return next(line for line in self.screen.splitlines() if wanted in line)

    def style(self, wanted: str) -> Any:
        """Return the first character of a text with its style, as pyte has it."""
        for number, line in enumerate(self._screen.display):
            if wanted in line:
                return self._screen.buffer[number][line.index(wanted)]
        raise AssertionError(f"{wanted!r} is not on the screen:\n{self.screen}")

    def cells(self, line: int) -> list[Any]:
        """Returns the characters of a line, each with its style: pyte's."""
        row = self._screen.buffer[line]
        return [row[column] for column in range(self._screen.columns)]

    def wait_for(self, *wanted: str | Callable[[str], bool]) -> str:
        """Read until the screen shows all of this; return it.

        Args:
            *wanted: Texts, or conditions on the screen.
        """
        return self._read(lambda: all(_is_met(one, self.screen) for one in wanted), wanted)

    def end(self) -> int:
        """Read until the program has ended; return its status."""
        self._read(lambda: self.process.poll() is not None, "its end")
        while self.receive(0.0):
            pass
        return self.process.wait(PATIENCE)

    @property
    def is_restored(self) -> bool:
        """Whether it is as it was before: modes, screen, cursor."""
        return (
            self._modes() == self.modes
            and _ALTERNATE not in self._screen.mode
            and _CURSOR in self._screen.mode
        )

    @property
    def is_taken(self) -> bool:
        """Whether a picture is shown: another screen, no cursor."""
        return _ALTERNATE in self._screen.mode and _CURSOR not in self._screen.mode

    @property
    def echoes(self) -> bool:
        """Whether what is typed is shown."""
        return bool(self._modes()[3] & termios.ECHO)

    # --- how ---------------------------------------------------------------------------------

    def _read(self, condition: Callable[[], bool], wanted: object) -> str:
        deadline = time.monotonic() + PATIENCE
        while not condition():
            assert time.monotonic() < deadline, f"{wanted} never came:\n{self.screen}"
            self.receive(0.1)
        return self.screen

    def receive(self, seconds: float) -> bool:
        """Take in what the program writes within some seconds; return whether there was any."""
        ready, _, _ = select.select([self._master], [], [], seconds)
        if not ready:
            return False
        data = os.read(self._master, 65536)
        self.received += data
        self._stream.feed(data)
        return True

    def _modes(self) -> list[Any]:
        return termios.tcgetattr(self._slave)

    def _set_size(self, columns: int, lines: int) -> None:
        fcntl.ioctl(self._slave, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))


def _is_met(wanted: str | Callable[[str], bool], screen: str) -> bool:
    return wanted in screen if isinstance(wanted, str) else wanted(screen)


def _environment(changes: Mapping[str, str | None]) -> dict[str, str]:
    found = {**os.environ, "TERM": "xterm-256color", "LANG": "C.UTF-8", "PYTHONPATH": str(ROOT)}
    for name in ("COLUMNS", "LINES", "NO_COLOR"):
        found.pop(name, None)
    for name, value in changes.items():
        found.pop(name, None)
        if value is not None:
            found[name] = value
    return found
