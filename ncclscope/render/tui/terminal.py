"""The terminal: its modes, its size, its keys, and bytes for it that wait for nobody.

A watch must go on while the terminal takes nothing, because somebody has stopped it or a line
is down. Hence what is written goes through a descriptor of our own that never blocks: the one
we were given is shared with whoever started us, and stays as it is.
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

__all__ = ["Terminal", "is_usable"]

_ENTER = b"\x1b[?1049h\x1b[?25l\x1b[2J"
"""The alternate screen, without a cursor."""
_LEAVE = b"\x1b[?25h\x1b[?1049l"
_LAST_WORDS = 1.0
"""Seconds that a terminal has to take what brings it back."""
_ESCAPE = 0.4
"""Seconds after which an escape is the key and not the beginning of another."""
_SMALLEST = (20, 4)
_ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGTSTP)


def is_usable() -> bool:
    """Whether stdout is a terminal that can show a picture, and that is ours to draw on."""
    try:
        return (
            sys.stdout.isatty()
            and os.environ.get("TERM", "dumb") not in ("", "dumb", "unknown")
            and _is_ours(sys.stdout.fileno())
        )
    except (AttributeError, OSError, ValueError):
        return False


def _is_ours(descriptor: int) -> bool:
    """Whether we are in the foreground of a terminal, where it has such a thing."""
    try:
        # 0 is a group of another container's: no shell of ours has put us into the background.
        return os.tcgetpgrp(descriptor) in (0, os.getpgrp())
    except OSError:
        return True  # nobody's: there is no shell that could have put us into the background


class Terminal:
    """A terminal that shows pictures, as a context manager that brings it back.

    It comes back however the block ends; also while the program is stopped by Ctrl-Z.

    Attributes:
        has_keys: Whether keys can be read.
        is_shown: Whether pictures can be seen now.
        is_resized: Whether all has to be drawn anew; set back by whoever does it.
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
        # A second Ctrl-C is not to leave half of it undone.
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

    # --- what it shows -----------------------------------------------------------------------

    def size(self) -> tuple[int, int]:
        """Returns columns and lines."""
        try:
            columns, lines = os.get_terminal_size(self._given)
        except OSError:
            columns = lines = 0
        if not columns or not lines:  # as on a serial line, which knows nothing of it
            columns, lines = shutil.get_terminal_size()
        return max(columns, _SMALLEST[0]), max(lines, _SMALLEST[1])

    def write(self, data: bytes) -> None:
        """Writes, as far as the terminal takes it; the rest follows as soon as it does."""
        self._pending += data
        self._flush()

    @property
    def is_ready(self) -> bool:
        """Whether it has taken all that was written, and can take another picture."""
        if not self.is_shown and not self._is_away and _is_ours(self._given):
            self._show()  # it was in the background
        self._flush()
        return self.is_shown and not self._pending

    @contextlib.contextmanager
    def away(self) -> Iterator[None]:
        """Brings the terminal back for a while, for programs that write on it."""
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
            self._pending = b""  # it is gone; what is watched is not, and others may be told

    def _show(self) -> None:
        if self.is_shown:
            return
        self.is_shown = True  # first, so that whatever happens now is undone
        self._take_keys()
        self._pending = b""
        self.is_resized = True
        self.write(_ENTER)

    def _take_keys(self) -> None:
        """Has keys come one by one, and not be shown. Ctrl-C and Ctrl-Z stay what they are."""
        if self._input < 0:
            return
        try:
            if self._modes is None:  # those of the first time: later they may be ours
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
        # Where there is no other screen, the shell goes on below the picture.
        self.write(f"\x1b[0m\x1b[{self.size()[1]};1H\x1b[K".encode() + _LEAVE)
        deadline = time.monotonic() + _LAST_WORDS
        while self._pending and (left := deadline - time.monotonic()) > 0:
            select.select([], [self._output], [], left)
            self._flush()
        self._pending = b""
        if self._modes is not None:
            with contextlib.suppress(OSError, termios.error):
                # Not TCSADRAIN: a terminal that takes nothing would keep us for ever.
                termios.tcsetattr(self._input, termios.TCSANOW, self._modes)
        self.is_shown = False

    # --- what comes from it ------------------------------------------------------------------

    def wait(self, seconds: float, waiting: bool = False) -> list[str]:
        """Waits for a key, for another size, or for the time to pass.

        Args:
            seconds: How long.
            waiting: Whether to come back as soon as the terminal can take another picture.

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
            self._input, self.has_keys = -1, False  # the other end is gone
        return self._keys.take(data)

    # --- signals -----------------------------------------------------------------------------

    def _on_resize(self, _number: int, _frame: FrameType | None) -> None:
        self.is_resized = True
        self._wake()

    def _on_stop(self, number: int, _frame: FrameType | None) -> None:
        self._hide()
        previous = signal.signal(number, signal.SIG_DFL)
        signal.raise_signal(number)
        # Here it goes on, after SIGCONT, whose handler shows the picture again.
        signal.signal(number, previous)

    def _on_continue(self, _number: int, _frame: FrameType | None) -> None:
        if self.is_shown:  # it was stopped by a signal that nobody can handle
            self._take_keys()
            self.is_resized = True
        elif not self._is_away and _is_ours(self._given):
            self._show()
        self._wake()

    def _wake(self) -> None:
        with contextlib.suppress(OSError):
            os.write(self._pipe[1], b".")


def _input() -> int:
    """Returns the descriptor that keys come from; -1 where there is none."""
    try:
        descriptor = sys.stdin.fileno()
        return descriptor if os.isatty(descriptor) and _is_ours(descriptor) else -1
    except (AttributeError, OSError, ValueError):
        return -1


def _own_descriptor(given: int) -> int:
    """Opens a terminal once more, not to block; where that fails, there is what was given."""
    with contextlib.suppress(OSError):
        own = os.open(os.ttyname(given), os.O_WRONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
        if os.fstat(own).st_rdev == os.fstat(given).st_rdev:
            return own
        os.close(own)
    return os.dup(given)
