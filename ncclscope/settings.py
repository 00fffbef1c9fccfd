"""Environment variables of ncclscope, under both of their names."""

from __future__ import annotations

import os
from collections.abc import Mapping


def variable(name: str, environment: Mapping[str, str] = os.environ) -> str:
    """Return a variable of ncclscope, such as ``DIR`` for ``NCCLSCOPE_DIR``; empty if unset.

    Each has a synonym with ``NCCL_SCOPE_`` in place of ``NCCLSCOPE_``, since Ray's executors pass
    only names with the prefix ``NCCL_`` to their workers.
    """
    return environment.get(f"NCCLSCOPE_{name}") or environment.get(f"NCCL_SCOPE_{name}") or ""


def directory() -> str | None:
    """Return the directory of rings, or None if tracing is off."""
    return None if os.environ.get("NCCLSCOPE") == "0" else variable("DIR") or None
