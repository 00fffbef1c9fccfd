"""Where a campaign has its rings."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

__all__ = ["in_memory"]


@contextmanager
def in_memory() -> Iterator[Path]:
    """A directory for rings where jobs have theirs."""
    with tempfile.TemporaryDirectory(prefix="ncclscope-campaign-", dir="/dev/shm") as name:
        yield Path(name)
