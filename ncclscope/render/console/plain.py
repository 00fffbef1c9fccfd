"""Screens as plain text, for test failures, XML and logs."""

from __future__ import annotations

import io

from rich.console import RenderableType

from ncclscope.render.console.terminal import SafeConsole

__all__ = ["plain_text"]


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
