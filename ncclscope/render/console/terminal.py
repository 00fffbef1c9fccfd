"""Consoles for results (stdout) and for talk (stderr)."""

from __future__ import annotations

from collections.abc import Iterable

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment

from ncclscope.untrusted import printable

__all__ = ["SafeConsole", "stderr_console", "stdout_console"]


class SafeConsole(Console):
    """Prints nothing that a terminal would act on but what rich itself makes of styles.

    Names of communicators, places in programs, hosts and paths are other people's, and any of
    them may hold an escape sequence.
    """

    def render(
        self, renderable: RenderableType, options: ConsoleOptions | None = None
    ) -> Iterable[Segment]:
        """Yields what a renderable consists of."""
        for segment in super().render(renderable, options):
            text, style, control = segment
            if control or text.isprintable():
                yield segment
            else:
                yield Segment("\n".join(map(printable, text.split("\n"))), style)


def stdout_console() -> Console:
    """Where results go. Colour, width and NO_COLOR are rich's business."""
    return SafeConsole(highlight=False, emoji=False, markup=False)


def stderr_console() -> Console:
    """Where everything goes that is no result."""
    return SafeConsole(stderr=True, highlight=False, emoji=False, markup=False)
