"""Readers of formats that other packages know, found by entry point."""

from __future__ import annotations

from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Protocol

from ncclscope.errors import InputError
from ncclscope.model import Rank

GROUP = "ncclscope.readers"


class Reader(Protocol):
    """Reads the files of one format, each of which holds what one process recorded.

    Attributes:
        suffix: Ends the names of these files, such as ``.toylog``.
    """

    suffix: str

    def read(self, path: Path) -> Rank:
        """Return what a file holds.

        Raises:
            DamagedFileError: It cannot be read; the others are read all the same.
        """
        ...


@cache
def load_readers() -> tuple[Reader, ...]:
    """Return an instance of each reader that another package installs.

    Raises:
        InputError: One cannot be loaded; it names the distribution it came with.
    """
    readers = []
    for point in metadata.entry_points(group=GROUP):
        try:
            readers.append(point.load()())
        except Exception as error:
            owner = point.dist.name if point.dist else "an unknown distribution"
            raise InputError(
                f"reader {point.name} of {owner} cannot be loaded: {error}",
                f"update or remove {owner}",
            ) from error
    return tuple(readers)


def reader_of(path: Path) -> Reader | None:
    """Return the reader of a file by its name; None if no other package reads it."""
    return next((one for one in load_readers() if path.name.endswith(one.suffix)), None)
