"""Environment variables of ncclscope, under both of their names."""

from __future__ import annotations

import os
from collections.abc import Mapping

NAMES = (
    "ARM",
    "DEVICE_PROGRESS",
    "DIR",
    "GUARD",
    "HINTED",
    "NATIVE",
    "NEXT_PROFILER",
    "RECORDS",
    "REPORTS",
    "RUN",
    "STORE_MB",
    "VLLM_CPU_MOE",
    "VLLM_DISPATCH",
    "VLLM_ROUTED_EXPERTS",
)
"""All variables, without their prefix."""
_PREFIXES = ("NCCLSCOPE_", "NCCL_SCOPE_")
_CLOSE = 0.7
"""Likeness of two names from which one is taken for a misspelling of the other."""


def variable(name: str, environment: Mapping[str, str] = os.environ) -> str:
    """Return a variable of ncclscope, such as ``DIR`` for ``NCCLSCOPE_DIR``; empty if unset.

    Each has a synonym with ``NCCL_SCOPE_`` in place of ``NCCLSCOPE_``, since Ray's executors pass
    only names with the prefix ``NCCL_`` to their workers.
    """
    return environment.get(f"NCCLSCOPE_{name}") or environment.get(f"NCCL_SCOPE_{name}") or ""


def directory() -> str | None:
    """Return the directory of rings, or None if tracing is off."""
    return None if os.environ.get("NCCLSCOPE") == "0" else variable("DIR") or None


def hints(environment: Mapping[str, str] = os.environ) -> list[str]:
    """Return a line for each variable that looks like a misspelling of one of ncclscope's."""
    lines = []
    for given in environment:
        prefix = next((one for one in _PREFIXES if given.startswith(one)), None)
        if prefix is not None and (name := given.removeprefix(prefix)) not in NAMES:
            import difflib

            close = difflib.get_close_matches(name, NAMES, 1, _CLOSE)
            lines += [f"{given} has no effect; did you mean {prefix}{one}?" for one in close]
    return lines


def hints_once() -> list[str]:
    """Return the same lines in the first process of a job, and none in what it starts."""
    lines = [] if variable("HINTED") else hints()
    if lines:
        os.environ["NCCLSCOPE_HINTED"] = "1"
    return lines
