"""Number of examples that property tests draw: a fifth in `make test`, all in `make test-all`."""

from __future__ import annotations

import os

__all__ = ["EVERYTHING", "examples"]

EVERYTHING = os.environ.get("NCCLSCOPE_TESTS") == "all"
"""Whether everything is run, as `make test-all` does."""


def examples(count: int) -> int:
    """Return the number of examples to draw; a thorough run draws `count`."""
    return count if EVERYTHING else max(10, count // 5)
