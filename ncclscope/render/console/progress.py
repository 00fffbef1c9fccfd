"""Progress bar for commands that take longer than a second."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

from rich.console import Console

from ncclscope.progress import watched
from ncclscope.render.console.terminal import stderr_console

SHOWN_AFTER = 1.0
"""Seconds of work before a bar appears."""


@contextmanager
def progress_for(*, json: bool) -> Iterator[None]:
    """Show the progress of a command, unless its output is for another program.

    Args:
        json: Whether the command prints JSON.
    """
    if json and not sys.stdout.isatty():
        yield
        return
    with shown_progress(stderr_console(), after=SHOWN_AFTER):
        yield


@contextmanager
def shown_progress(
    console: Console, *, after: float, clock: Callable[[], float] = time.monotonic
) -> Iterator[None]:
    """Show the progress of a block of work, then remove the bar.

    Args:
        console: Console to draw on; without a terminal nothing is shown.
        after: Seconds of work before a bar appears.
        clock: Returns the time in seconds.
    """
    if not console.is_terminal or console.is_dumb_terminal:
        yield
        return
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

    start = clock()
    with ExitStack() as ended:
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
        bars = Progress(*columns, console=console, transient=True)
        task = bars.add_task("")
        shown = False

        def show(doing: str, done: int, total: int) -> None:
            nonlocal shown
            if not shown and clock() - start < after:
                return
            bars.update(task, description=doing, completed=done, total=total)
            if not shown:
                shown = True
                ended.callback(bars.stop)  # first, since Ctrl-C may interrupt start()
                bars.start()

        with watched(show):
            yield
