"""Output files, compressed if their names end with ``.gz``."""

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
    """Open a file for writing, with gzip if the name ends with ``.gz``.

    Equal contents give equal files: the header holds neither time nor name.
    """
    with open_private(file) as raw:
        if file.suffix != ".gz":
            yield raw
            return
        with gzip.GzipFile("", "wb", fileobj=raw, mtime=0) as packed:
            yield cast("IO[bytes]", packed)
