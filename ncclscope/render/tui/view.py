"""Live view of a job: draws samples and handles keys until the user quits."""

from __future__ import annotations

import contextlib
import io
import os
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import TextIO

from ncclscope.errors import NcclscopeError
from ncclscope.render.console.output import Output
from ncclscope.render.console.terminal import stdout_console
from ncclscope.render.console.watch import render_poll
from ncclscope.render.tui.events import Events
from ncclscope.render.tui.painter import Painter
from ncclscope.render.tui.picture import Picture
from ncclscope.render.tui.terminal import Terminal
from ncclscope.untrusted import printable
from ncclscope.watch.poll import Poll
from ncclscope.watch.watch import Watcher

_REDRAWN = 0.5
"""Seconds between two screens of which only numbers differ."""


class LiveView(Output):
    """Full-screen view of a job, controlled by keys.

    Args:
        watcher: Source of the samples.
    """

    def __init__(self, watcher: Watcher) -> None:
        self._watcher = watcher
        self._events = Events()
        self._terminal = Terminal()
        self._painter = Painter(
            sys.stdout.encoding or "utf-8", colour=not os.environ.get("NO_COLOR")
        )
        self._picture = Picture(
            " ".join(watcher.sources), self._events, has_keys=self._terminal.has_keys
        )
        self._stderr = _StderrCapture(self._events)
        self._look: Poll | None = None
        self._final: Poll | None = None
        self._looked_at = 0.0
        self._drawn_at = 0.0
        self._is_due = False

    def __enter__(self) -> LiveView:
        sys.stdout.flush()
        self._stderr.begin()
        try:
            self._terminal.__enter__()
        except BaseException:
            self._stderr.end()
            raise
        return self

    def __exit__(self, kind: object = None, *_others: object) -> None:
        self._terminal.__exit__()
        self._stderr.end()
        if kind in (None, KeyboardInterrupt) and self._look is not None:
            self._close(self._look)

    def show(self, poll: Poll) -> None:
        poll = self._with_final_verdict(poll)
        is_first = self._look is None
        begins = poll.in_trouble and (poll.news or is_first)
        self._look, self._looked_at = poll, time.time()
        self.in_trouble = poll.in_trouble
        self._events.note(poll)
        if begins:
            self._picture.turn_to(poll)
        if begins or is_first or poll.changed or time.monotonic() - self._drawn_at >= _REDRAWN:
            self._draw()

    def wait(self, seconds: float) -> bool:
        deadline = time.monotonic() + seconds
        while True:
            keys = self._terminal.wait(deadline - time.monotonic(), self._is_due)
            for key in keys:
                if key == "redraw":
                    self._painter.forget()
                self._picture.press(key)
            if self._picture.board.has_quit:
                return False
            if keys or self._is_due or self._terminal.is_resized:
                self._draw()
            if time.monotonic() >= deadline:
                return True

    def say(self, text: str) -> None:
        self._events.add(text)
        self._stderr.keep(f"ncclscope: {printable(text)}\n")

    @contextlib.contextmanager
    def away(self) -> Iterator[None]:
        with self._terminal.away():
            self._stderr.end()
            try:
                yield
            finally:
                self._stderr.begin()

    def _draw(self) -> None:
        self._is_due = not self._terminal.is_ready
        if self._is_due or self._look is None:
            return
        if self._terminal.is_resized:
            self._terminal.is_resized = False
            self._painter.forget()
        width, height = self._terminal.size()
        lines = self._picture.lines(self._look, width, height, self._looked_at)
        self._terminal.write(self._painter.paint(lines, width, height))
        self._drawn_at = time.monotonic()

    def _with_final_verdict(self, poll: Poll) -> Poll:
        """Return the sample with the verdict of a job that had ended before the watch began."""
        if poll.activity != "over" or poll.verdict is not None:
            self._final, self._picture.origin = None, ""
            return poll
        if self._final is None or self._final.ranks != poll.ranks:
            try:
                verdict = self._watcher.last_word()
                poll = replace(poll, verdict=verdict, status=verdict.status)
                self._picture.origin = "the job ended before this watch began"
            except NcclscopeError as error:
                self._events.add(str(error), "yellow")
            self._final = replace(poll, changed=True)
            return self._final
        return replace(poll, verdict=self._final.verdict, status=self._final.status)

    def _close(self, poll: Poll) -> None:
        """Print the last sample below the shell's prompt, after the alternate screen is gone."""
        console = stdout_console()
        width, height = console.size
        console.print(render_poll(poll, width, height - 2, " ".join(self._watcher.sources)))


class _StderrCapture(io.TextIOBase):
    """Take the place of stderr in the live view: lines are events, and printed at the end."""

    def __init__(self, events: Events) -> None:
        self._events = events
        self._stderr: TextIO | None = None
        self._kept: list[str] = []
        self._rest = ""

    def begin(self) -> None:
        """Replace ``sys.stderr`` if it is a terminal."""
        if sys.stderr is not None and sys.stderr.isatty():
            self._stderr, sys.stderr, self._rest = sys.stderr, self, ""

    def end(self) -> None:
        """Restore ``sys.stderr`` and print the captured text."""
        if self._stderr is None:
            return
        sys.stderr, self._stderr = self._stderr, None
        kept, self._kept = self._kept, []
        with contextlib.suppress(OSError, ValueError):
            sys.stderr.write("".join(kept))
            sys.stderr.flush()

    def keep(self, text: str) -> None:
        """Keep a text to print at the end; print it now if nothing is captured."""
        if self._stderr is not None:
            self._kept.append(text)
        else:
            with contextlib.suppress(OSError, ValueError):
                print(text, end="", file=sys.stderr, flush=True)

    def writable(self) -> bool:
        return True

    def write(self, text: str) -> int:
        *lines, self._rest = (self._rest + text).split("\n")
        for line in filter(None, lines):
            self._events.add(line.removeprefix("ncclscope: "), "yellow")
            self.keep(f"{line}\n")
        return len(text)
