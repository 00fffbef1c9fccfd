"""Terminal of the live view: modes, size, keys, and output that never blocks.

A watch must go on while the terminal accepts nothing, because the user stopped it or the line is
down. So output goes through a non-blocking descriptor of our own: stdout is shared with the
program that started us, whose mode must not change.
"""

from __future__ import annotations

import contextlib
import os
import select
import shutil
import signal
import sys
import termios
import time
from collections.abc import Iterator
from types import FrameType
from typing import Any

from ncclscope.render.tui.keys import Keys

_ENTER = b"\x1b[?1049h\x1b[?25l\x1b[2J"
"""Switch to the alternate screen, without a cursor."""
_LEAVE = b"\x1b[?25h\x1b[?1049l"
_LEAVE_SECONDS = 1.0
"""Seconds that a terminal has to accept the bytes that restore it."""
_ESCAPE = 0.4
"""Seconds after which an escape is the key and not the beginning of a sequence."""
_SMALLEST = (20, 4)
_ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGTSTP)


def is_usable() -> bool:
    """Return whether stdout is a capable terminal, with this process in its foreground."""
    try:
        return (
            sys.stdout.isatty()
            and os.environ.get("TERM", "dumb") not in ("", "dumb", "unknown")
            and _is_ours(sys.stdout.fileno())
        )
    except (AttributeError, OSError, ValueError):
        return False


def _is_ours(descriptor: int) -> bool:
    """Return whether this process is in the terminal's foreground, or no shell controls it."""
    try:
        # 0 is a process group of another container: its shell does not control us.
        return os.tcgetpgrp(descriptor) in (0, os.getpgrp())
    except OSError:
        return True  # not a controlling terminal: no shell can put us into the background


class Terminal:
    """Context manager of the terminal that restores it at the end.

    It restores the terminal however the block ends, and while Ctrl-Z stops the program.

    Attributes:
        has_keys: Whether keys can be read.
        is_shown: Whether the alternate screen is active.
        is_resized: Whether the screen must be drawn whole; reset by the caller that draws.
    """

    def __init__(self) -> None:
        self._given = sys.stdout.fileno()
        self._input = _input()
        self.has_keys = self._input >= 0
        self.is_shown = False
        self._output = -1
        self._modes: list[Any] | None = None
        self._pending = b""
        self._keys = Keys()
        self._pressed_at = 0.0
        self.is_resized = False
        self._is_away = False
        self._previous: dict[int, Any] = {}
        self._pipe = (-1, -1)

    def __enter__(self) -> Terminal:
        try:
            self._pipe = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
            self._output = _own_descriptor(self._given)
            for number, handler in (
                (signal.SIGWINCH, self._on_resize),
                (signal.SIGTSTP, self._on_stop),
                (signal.SIGCONT, self._on_continue),
            ):
                if signal.getsignal(number) is not signal.SIG_IGN:
                    self._previous[number] = signal.signal(number, handler)
            self._show()
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(self, *_exception: object) -> None:
        self._end()

    def _end(self) -> None:
        # A second Ctrl-C must not interrupt this.
        blocked = signal.pthread_sigmask(signal.SIG_BLOCK, _ENDING)
        try:
            self._hide()
            for number, handler in self._previous.items():
                signal.signal(number, handler)
            self._previous = {}
            for descriptor in (self._output, *self._pipe):
                if descriptor >= 0:
                    os.close(descriptor)
            self._output, self._pipe = -1, (-1, -1)
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, blocked)

    # --- output ------------------------------------------------------------------------------

    def size(self) -> tuple[int, int]:
        """Return the size in columns and lines."""
        try:
            columns, lines = os.get_terminal_size(self._given)
        except OSError:
            columns = lines = 0
        if not columns or not lines:  # a serial line has no size
            columns, lines = shutil.get_terminal_size()
        return max(columns, _SMALLEST[0]), max(lines, _SMALLEST[1])

    def write(self, data: bytes) -> None:
        """Write as much as the terminal accepts now, and keep the rest for later."""
        self._pending += data
        self._flush()

    @property
    def is_ready(self) -> bool:
        """Whether the terminal has accepted all output and can show another screen."""
        if not self.is_shown and not self._is_away and _is_ours(self._given):
            self._show()  # we were in the background
        self._flush()
        return self.is_shown and not self._pending

    @contextlib.contextmanager
    def away(self) -> Iterator[None]:
        """Restore the terminal inside the block, for programs that write to it."""
        self._hide()
        self._is_away = True
        try:
            yield
        finally:
            self._is_away = False
            if _is_ours(self._given):
                self._show()

    def _flush(self) -> None:
        if not self._pending or not self.is_shown:
            return
        try:
            self._pending = self._pending[os.write(self._output, self._pending) :]
        except BlockingIOError:
            return
        except OSError:
            self._pending = b""  # the terminal is gone; go on watching for --on-hang

    def _show(self) -> None:
        if self.is_shown:
            return
        self.is_shown = True  # first, so that _hide() undoes a failure below
        self._take_keys()
        self._pending = b""
        self.is_resized = True
        self.write(_ENTER)

    def _take_keys(self) -> None:
        """Read keys one by one, without echo. Ctrl-C and Ctrl-Z keep their meaning."""
        if self._input < 0:
            return
        try:
            if self._modes is None:  # save them once: later they may be ours
                self._modes = termios.tcgetattr(self._input)
            modes = [*self._modes[:6], list(self._modes[6])]
            modes[3] &= ~(termios.ICANON | termios.ECHO)
            modes[6][termios.VMIN], modes[6][termios.VTIME] = 1, 0
            termios.tcsetattr(self._input, termios.TCSANOW, modes)
        except (OSError, termios.error):
            self._input, self.has_keys, self._modes = -1, False, None

    def _hide(self) -> None:
        if not self.is_shown:
            return
        # Without an alternate screen, the shell goes on below ours.
        self.write(f"\x1b[0m\x1b[{self.size()[1]};1H\x1b[K".encode() + _LEAVE)
        deadline = time.monotonic() + _LEAVE_SECONDS
        while self._pending and (left := deadline - time.monotonic()) > 0:
            select.select([], [self._output], [], left)
            self._flush()
        self._pending = b""
        if self._modes is not None:
            with contextlib.suppress(OSError, termios.error):
                # Not TCSADRAIN, which blocks while the terminal accepts nothing.
                termios.tcsetattr(self._input, termios.TCSANOW, self._modes)
        self.is_shown = False

    # --- input -------------------------------------------------------------------------------

    def wait(self, seconds: float, waiting: bool = False) -> list[str]:
        """Wait for a key, a change of size, or the timeout.

        Args:
            seconds: Timeout in seconds.
            waiting: Whether to return as soon as the terminal accepts another screen.

        Returns:
            The keys that were pressed.
        """
        inputs = [self._pipe[0]]
        if self._input >= 0 and self.is_shown:
            inputs.append(self._input)
        outputs = [self._output] if self.is_shown and (self._pending or waiting) else []
        if self._keys.waits:
            seconds = min(seconds, _ESCAPE)
        ready, writable, _ = select.select(inputs, outputs, [], max(0.0, seconds))
        if writable:
            self._flush()
        if self._pipe[0] in ready:
            with contextlib.suppress(BlockingIOError):
                os.read(self._pipe[0], 512)
        if self._input in ready:
            return self._read()
        if self._keys.waits and time.monotonic() - self._pressed_at >= _ESCAPE:
            return self._keys.end()
        return []

    def _read(self) -> list[str]:
        self._pressed_at = time.monotonic()
        try:
            data = os.read(self._input, 1024)
        except BlockingIOError:
            return []
        except OSError:
            data = b""
        if not data:
            self._input, self.has_keys = -1, False  # the terminal is gone
        return self._keys.take(data)

    # --- signals -----------------------------------------------------------------------------

    def _on_resize(self, _number: int, _frame: FrameType | None) -> None:
        self.is_resized = True
        self._wake()

    def _on_stop(self, number: int, _frame: FrameType | None) -> None:
        self._hide()
        previous = signal.signal(number, signal.SIG_DFL)
        signal.raise_signal(number)
        # Execution goes on here after SIGCONT, whose handler shows the screen again.
        signal.signal(number, previous)

    def _on_continue(self, _number: int, _frame: FrameType | None) -> None:
        if self.is_shown:  # stopped by SIGSTOP, which cannot be handled
            self._take_keys()
            self.is_resized = True
        elif not self._is_away and _is_ours(self._given):
            self._show()
        self._wake()

    def _wake(self) -> None:
        with contextlib.suppress(OSError):
            os.write(self._pipe[1], b".")


def _input() -> int:
    """Return the descriptor to read keys from; -1 without one."""
    try:
        descriptor = sys.stdin.fileno()
        return descriptor if os.isatty(descriptor) and _is_ours(descriptor) else -1
    except (AttributeError, OSError, ValueError):
        return -1


def _own_descriptor(given: int) -> int:
    """Return a non-blocking descriptor of the terminal; a duplicate if it cannot be opened."""
    with contextlib.suppress(OSError):
        own = os.open(os.ttyname(given), os.O_WRONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
        if os.fstat(own).st_rdev == os.fstat(given).st_rdev:
            return own
        os.close(own)
    return os.dup(given)
