"""Consoles for results (stdout) and for diagnostics (stderr), and screens as plain text."""

from __future__ import annotations

import io
import re
from collections.abc import Iterable

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment

from ncclscope.untrusted import printable

_PLAIN = str.maketrans("−–·…→←×≤≥│─╭╮╰╯├┤", "---.><x<>|-++++++")
"""What terminals show that know ASCII only, each as wide as what it replaces."""
_COMMAND = re.compile(r"^(\s*:):")


class SafeConsole(Console):
    """Console that escapes control characters in texts, and others where only ASCII is shown.

    Labels of communicators, call sites, hosts and paths come from the job, and any of them may hold
    an escape sequence. A CI runner obeys a line that begins with ``::``, as a wrapped text may.
    """

    _nested = False

    def render(
        self, renderable: RenderableType, options: ConsoleOptions | None = None
    ) -> Iterable[Segment]:
        """Yield the segments of a renderable, with control characters escaped."""
        # rich calls this for each part of a screen, too; only of the whole are the lines known.
        whole, self._nested = not self._nested, True
        try:
            found = self._safe(super().render(renderable, options))
            yield from _disarmed(found) if whole else found
        finally:
            if whole:
                self._nested = False

    def _safe(self, segments: Iterable[Segment]) -> Iterable[Segment]:
        ascii_only = self.options.ascii_only
        for segment in segments:
            text, style, control = segment
            if not control and (not text.isprintable() or "##[" in text):
                segment = Segment("\n".join(map(printable, text.split("\n"))), style)
            if ascii_only and not segment.text.isascii():
                text = segment.text.translate(_PLAIN).encode("ascii", "replace").decode()
                segment = Segment(text, segment.style, segment.control)
            yield segment


def _disarmed(segments: Iterable[Segment]) -> Iterable[Segment]:
    """Yield segments in which no line has the form of a CI runner's command."""
    begin = ""
    """What the current line holds so far: blanks and at most one colon; else a letter."""
    for segment in segments:
        text, style, control = segment
        if control or not text:
            yield segment
            continue
        lines = (begin + text).split("\n")
        lines = [_COMMAND.sub(r"\1\\x3a", line) for line in lines]
        yield Segment("\n".join(lines)[len(begin) :], style)
        last = lines[-1]
        begin = last if not last.strip() or last.strip() == ":" else "."


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
