"""File systems without room."""

from __future__ import annotations

from pathlib import Path

__all__ = ["fill"]


def fill(point: Path) -> None:
    """Leave no byte free on the file system that is mounted at `point`."""
    with open(point / "filler", "wb", buffering=0) as file:
        piece = 1 << 16
        while piece:
            try:
                file.write(bytes(piece))
            except OSError:
                piece //= 2
