"""Directories that hold an input while it is read."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

from tests.fuzz.inputs import BaseInput, Input

__all__ = ["Workplace"]


class Workplace:
    """Keeps the files of each base input on disk, so that only what is damaged need be written.

    Args:
        home: Where; each process has directories of its own there.
    """

    def __init__(self, home: Path) -> None:
        self._home = home

    @contextlib.contextmanager
    def laid_out(self, given: Input) -> Iterator[Path]:
        """Yield a directory that holds the files of an input, and put the base input's back."""
        base = given.base
        directory = self._directory(base)
        changed = given.changed
        try:
            for name, data in changed.items():
                _put(directory / name, data)
            yield directory
        finally:
            for name in changed:
                _put(directory / name, base.files.get(name))

    def _directory(self, base: BaseInput) -> Path:
        directory = self._home / str(os.getpid()) / base.name
        if not directory.is_dir():
            for name, data in base.files.items():
                _put(directory / name, data)
        return directory


def _put(path: Path, data: bytes | None) -> None:
    if data is None:
        path.unlink(missing_ok=True)
        return
    try:
        path.write_bytes(data)
    except FileNotFoundError:
        path.parent.mkdir(parents=True)
        path.write_bytes(data)
