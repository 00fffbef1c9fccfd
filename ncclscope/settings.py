"""Variables that a user sets, under both of their names."""

from __future__ import annotations

import os

__all__ = ["directory", "variable"]


def variable(name: str) -> str:
    """Return a variable of ours, such as ``DIR`` for ``NCCLSCOPE_DIR``; empty when unset.

    Each has a synonym with ``NCCL_SCOPE_`` in place of ``NCCLSCOPE_``: Ray's executors hand only
    names that begin with ``NCCL_`` to their workers.
    """
    return os.environ.get(f"NCCLSCOPE_{name}") or os.environ.get(f"NCCL_SCOPE_{name}") or ""


def directory() -> str | None:
    """Return where rings go, or None when tracing is off."""
    return None if os.environ.get("NCCLSCOPE") == "0" else variable("DIR") or None
