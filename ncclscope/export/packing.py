"""Files that are packed where their names say so."""

from __future__ import annotations

import gzip
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, cast

from ncclscope.private import open_private

__all__ = ["open_target"]


@contextmanager
def open_target(file: Path) -> Iterator[IO[bytes]]:
    """Opens a file for writing; with gzip where the name ends with ``.gz``.

    The same contents give the same file: no time and no name is written into it.
    """
    with open_private(file) as raw:
        if file.suffix != ".gz":
            yield raw
            return
        with gzip.GzipFile("", "wb", fileobj=raw, mtime=0) as packed:
            yield cast("IO[bytes]", packed)
