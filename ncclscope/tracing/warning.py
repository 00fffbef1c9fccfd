"""Warnings of the tracer, each once in the life of a process."""

from __future__ import annotations

import contextlib
import logging
import sys

__all__ = ["warn_once"]

log = logging.getLogger("ncclscope")

_warned: set[str] = set()


def warn_once(topic: str, message: str) -> None:
    """Print a warning where the program's own warnings go, unless its topic had one before."""
    if topic in _warned:
        return
    _warned.add(topic)
    if log.hasHandlers():
        log.warning(message)
    elif sys.stderr is not None:  # it is None where the descriptor is closed
        with contextlib.suppress(OSError, ValueError):
            print(f"ncclscope: {message}", file=sys.stderr)
