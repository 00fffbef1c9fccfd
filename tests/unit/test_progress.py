"""The bar for what takes longer than a moment, by a clock that a test sets."""

from __future__ import annotations

import io
from contextlib import suppress

from rich.console import Console

from ncclscope.progress import steps
from ncclscope.render.console.progress import shown_progress

UP_A_LINE_AND_ERASE = "\x1b[1A\x1b[2K"


def console(*, terminal: bool = True) -> tuple[Console, io.StringIO]:
    screen = io.StringIO()
    return Console(file=screen, force_terminal=terminal, width=80, _environ={}), screen


def work(seconds_of_each: float, *, terminal: bool = True, fails: bool = False) -> str:
    shown, screen = console(terminal=terminal)
    now = 0.0
    with suppress(KeyboardInterrupt), shown_progress(shown, after=1.0, clock=lambda: now):
        for part in steps("reading", range(8)):
            now += seconds_of_each
            if fails and part == 6:
                raise KeyboardInterrupt
    return screen.getvalue()


def test_what_is_quick_shows_nothing() -> None:
    assert work(0.1) == ""


def test_nothing_is_shown_where_there_is_no_terminal() -> None:
    assert work(10, terminal=False) == ""


def test_what_takes_long_shows_how_far_it_is_and_removes_it() -> None:
    screen = work(0.4)

    assert "reading" in screen
    assert "3/8" in screen  # the first after a second
    assert "2/8" not in screen
    assert screen.endswith(UP_A_LINE_AND_ERASE)


def test_the_bar_is_removed_when_the_work_is_interrupted() -> None:
    screen = work(0.4, fails=True)

    assert "3/8" in screen
    assert screen.endswith(UP_A_LINE_AND_ERASE)


def test_nothing_is_printed_after_the_block() -> None:
    shown, screen = console()
    with shown_progress(shown, after=0.0, clock=lambda: 0.0):
        pass
    assert list(steps("reading", "ab")) == ["a", "b"]
    assert screen.getvalue() == ""
