"""The live view: shows looks on a terminal for as long as somebody leaves it open."""

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
from ncclscope.render.console.watch import render_look
from ncclscope.render.tui.events import Events
from ncclscope.render.tui.painter import Painter
from ncclscope.render.tui.picture import Picture
from ncclscope.render.tui.terminal import Terminal
from ncclscope.watch.watch import Poll, Watcher

__all__ = ["LiveView"]

_REDRAWN = 0.5
"""Seconds between two pictures in which only numbers have changed."""


class LiveView(Output):
    """Pictures of a job on a terminal, and keys to choose what they show.

    Args:
        watcher: Where the looks come from.
    """

    def __init__(self, watcher: Watcher) -> None:
        self._watcher = watcher
        self._events = Events()
        self._terminal = Terminal()
        self._painter = Painter(
            sys.stdout.encoding or "utf-8", colour=not os.environ.get("NO_COLOR")
        )
        self._picture = Picture(
            str(watcher.directory), self._events, has_keys=self._terminal.has_keys
        )
        self._talk = _Talk(self._events)
        self._look: Poll | None = None
        self._last_word: Poll | None = None
        self._looked_at = 0.0
        self._drawn_at = 0.0
        self._is_due = False

    def __enter__(self) -> LiveView:
        sys.stdout.flush()
        self._talk.begin()
        try:
            self._terminal.__enter__()
        except BaseException:
            self._talk.end()
            raise
        return self

    def __exit__(self, kind: object = None, *_others: object) -> None:
        self._terminal.__exit__()
        self._talk.end()
        if kind in (None, KeyboardInterrupt) and self._look is not None:
            self._close(self._look)

    def show(self, poll: Poll) -> None:
        poll = self._with_last_word(poll)
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
        self._talk.keep(f"ncclscope: {text}\n")

    @contextlib.contextmanager
    def away(self) -> Iterator[None]:
        with self._terminal.away():
            self._talk.end()
            try:
                yield
            finally:
                self._talk.begin()

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

    def _with_last_word(self, poll: Poll) -> Poll:
        """Adds what is to be said of a job that had ended before the watch began."""
        if poll.activity != "over" or poll.verdict is not None:
            self._last_word, self._picture.told = None, ""
            return poll
        if self._last_word is None or self._last_word.ranks != poll.ranks:
            try:
                verdict = self._watcher.last_word()
                poll = replace(poll, verdict=verdict, status=verdict.status)
                self._picture.told = "from what ended before this watch began"
            except NcclscopeError as error:
                self._events.add(str(error), "yellow")
            self._last_word = replace(poll, changed=True)
            return self._last_word
        kept = self._last_word
        return replace(poll, verdict=kept.verdict, status=kept.status)

    def _close(self, poll: Poll) -> None:
        """Leaves the last word where the shell goes on: the picture is gone with its screen."""
        console = stdout_console()
        width, height = console.size
        console.print(render_look(poll, width, height - 2, str(self._watcher.directory)))


class _Talk:
    """Keeps what goes to stderr off the picture: it is an event, and is said in the end."""

    def __init__(self, events: Events) -> None:
        self._events = events
        self._stderr: TextIO | None = None
        self._kept: list[str] = []

    def begin(self) -> None:
        """Takes the place of a stderr that is a terminal."""
        if sys.stderr is not None and sys.stderr.isatty():
            self._stderr, sys.stderr = sys.stderr, _Lines(self)

    def end(self) -> None:
        """Gives stderr back, with all that has been said."""
        if self._stderr is None:
            return
        sys.stderr, self._stderr = self._stderr, None
        kept, self._kept = self._kept, []
        with contextlib.suppress(OSError, ValueError):
            sys.stderr.write("".join(kept))
            sys.stderr.flush()

    def keep(self, text: str) -> None:
        """Keeps what is to be said in the end."""
        if self._stderr is not None:
            self._kept.append(text)
        else:
            with contextlib.suppress(OSError, ValueError):
                print(text, end="", file=sys.stderr, flush=True)

    def hear(self, line: str) -> None:
        """Takes what was printed."""
        self._events.add(line.removeprefix("ncclscope: "), "yellow")
        self.keep(f"{line}\n")


class _Lines(io.TextIOBase):
    """A stderr that passes lines on."""

    def __init__(self, talk: _Talk) -> None:
        self._talk = talk
        self._rest = ""

    def writable(self) -> bool:
        return True

    def write(self, text: str) -> int:
        *lines, self._rest = (self._rest + text).split("\n")
        for line in filter(None, lines):
            self._talk.hear(line)
        return len(text)
