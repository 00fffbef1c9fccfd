"""A bar on the terminal for what takes longer than a moment."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

from rich.console import Console

from ncclscope.progress import watched
from ncclscope.render.console.terminal import stderr_console

__all__ = ["SHOWN_AFTER", "progress_for", "shown_progress"]

SHOWN_AFTER = 1.0
"""Seconds of work before anything is shown."""


@contextmanager
def progress_for(*, json: bool) -> Iterator[None]:
    """Shows how far a command is, unless its result is a document for another program.

    Args:
        json: Whether it is to print one.
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
    """Shows how far the work of a block is, and leaves nothing of it on the screen.

    Args:
        console: Where; nothing is shown where it is no terminal.
        after: Seconds of work before a bar appears.
        clock: What tells them.
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
                ended.callback(bars.stop)  # first, since Ctrl-C can come while it starts
                bars.start()

        with watched(show):
            yield
