"""Warnings of the tracer, each printed once per process."""

from __future__ import annotations

import contextlib
import logging
import sys

from ncclscope.untrusted import printable

log = logging.getLogger("ncclscope")

_warned: set[str] = set()


def warn_once(topic: str, message: str) -> None:
    """Print a warning to the program's log or stderr, once per topic."""
    if topic in _warned:
        return
    _warned.add(topic)
    message = printable(message)  # it may name a file
    if log.hasHandlers():
        log.warning(message)
    elif sys.stderr is not None:  # it is None if the descriptor is closed
        with contextlib.suppress(OSError, ValueError):
            print(f"ncclscope: {message}", file=sys.stderr)
