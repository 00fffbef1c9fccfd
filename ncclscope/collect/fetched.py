"""Copies of what URLs name, for commands that read files."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from ncclscope.collect.commands import own_command, urls
from ncclscope.collect.delivery import collect
from ncclscope.collect.urls import is_url
from ncclscope.errors import InputError

__all__ = ["local_paths"]

_SECONDS = 600.0
_PARALLEL = 4


@contextmanager
def local_paths(paths: Sequence[str]) -> Iterator[list[str]]:
    """Yield `paths` with a directory of copies in place of each URL; it lasts for the block.

    Raises:
        InputError: A URL cannot be read.
    """
    given = [path for path in paths if is_url(path)]
    if not given:
        yield list(paths)
        return
    with tempfile.TemporaryDirectory(prefix="ncclscope-") as folder:
        nodes = urls(given, own_command())
        for one in collect(nodes, Path(folder), timeout=_SECONDS, parallel=_PARALLEL):
            if one.status != "delivered":
                raise InputError(one.reason.removeprefix("ncclscope: "))
        yield [*(path for path in paths if not is_url(path)), folder]
