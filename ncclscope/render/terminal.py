"""Consoles for results (stdout) and for talk (stderr)."""

from __future__ import annotations

from rich.console import Console

__all__ = ["stderr_console", "stdout_console"]


def stdout_console() -> Console:
    """Where results go. Colour, width and NO_COLOR are rich's business."""
    return Console(highlight=False, emoji=False, markup=False)


def stderr_console() -> Console:
    """Where everything goes that is no result."""
    return Console(stderr=True, highlight=False, emoji=False, markup=False)
