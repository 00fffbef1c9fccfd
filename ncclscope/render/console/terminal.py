"""Consoles for results (stdout) and for diagnostics (stderr), and screens as plain text."""

from __future__ import annotations

import io
from collections.abc import Iterable

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment

from ncclscope.untrusted import printable

_PLAIN = str.maketrans("−–·…→←×≤≥│─╭╮╰╯├┤", "---.><x<>|-++++++")
"""What terminals show that know ASCII only, each as wide as what it replaces."""


class SafeConsole(Console):
    """Console that escapes control characters in texts, and others where only ASCII is shown.

    Labels of communicators, call sites, hosts and paths come from the job, and any of them may hold
    an escape sequence.
    """

    def render(
        self, renderable: RenderableType, options: ConsoleOptions | None = None
    ) -> Iterable[Segment]:
        """Yield the segments of a renderable, with control characters escaped."""
        ascii_only = self.options.ascii_only
        for segment in super().render(renderable, options):
            text, style, control = segment
            if not (control or text.isprintable()):
                segment = Segment("\n".join(map(printable, text.split("\n"))), style)
            if ascii_only and not segment.text.isascii():
                text = segment.text.translate(_PLAIN).encode("ascii", "replace").decode()
                segment = Segment(text, segment.style, segment.control)
            yield segment


def stdout_console() -> Console:
    """Return the console for results (stdout). rich decides on colour, width and NO_COLOR."""
    return SafeConsole(highlight=False, emoji=False, markup=False)


def stderr_console() -> Console:
    """Return the console for diagnostics (stderr)."""
    return SafeConsole(stderr=True, highlight=False, emoji=False, markup=False)


def plain_text(screen: RenderableType, width: int = 100) -> str:
    """Return a screen as a terminal without colours shows it; ``width`` is in columns."""
    output = io.StringIO()
    console = SafeConsole(
        file=output,
        width=width,
        height=10_000,
        color_system=None,
        force_terminal=False,
        highlight=False,
        emoji=False,
        markup=False,
    )
    console.print(screen)
    return "\n".join(line.rstrip() for line in output.getvalue().splitlines())
