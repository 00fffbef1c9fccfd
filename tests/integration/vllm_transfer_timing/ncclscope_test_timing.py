"""A vLLM plugin for tests: the processor time that recording KV transfers takes.

A worker may end by a signal, so the sum is written to a file whenever a transfer has changed it.
``NCCLSCOPE_TEST_TIMING`` names the directory of these files, one for each process.
"""

from __future__ import annotations

import functools
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

RECORDING = (
    *("_arriving", "_request", "_matched", "_allocated", "_reported", "_finished"),
    *("_loading", "_self", "_worker_results"),
)
WRITE_NS = 200_000_000
"""Nanoseconds between two writes, which are not part of the sum."""

_nanoseconds = _calls = _written = 0


def register() -> None:
    """Entry point of the group ``vllm.general_plugins``."""
    from ncclscope_patches.vllm import transfers

    for name in RECORDING:
        function = getattr(transfers, name)
        if not hasattr(function, "__wrapped__"):
            setattr(transfers, name, _timed(function))


def _timed(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def call(*args: Any) -> Any:
        global _nanoseconds, _calls, _written
        began = time.thread_time_ns()
        try:
            return function(*args)
        finally:
            _nanoseconds += time.thread_time_ns() - began
            _calls += 1
            if (now := time.monotonic_ns()) - _written > WRITE_NS:
                _written = now
                path = Path(os.environ["NCCLSCOPE_TEST_TIMING"], str(os.getpid()))
                path.write_text(f"{_nanoseconds} {_calls}")

    return call
