"""Marks of the live view."""

from __future__ import annotations

MARKS = {
    "!": ("named by the verdict", "bold red"),
    "?": ("candidate of the verdict", "red"),
    "X": ("killed or crashed, others run", "yellow"),
    "*": ("stalled inside a collective", "yellow"),
    "<": ("behind its peers, not moving", "yellow"),
    "x": ("ended", "dim"),
    "": ("", ""),
}
"""Marks before a rank or a communicator: meaning and style, the worst first."""
