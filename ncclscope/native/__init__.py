"""The compiled core, which writes rings from C; the Python writer serves where it is missing."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

__all__ = ["plugin_path", "why_not"]

_PLUGIN = Path(__file__).with_name("libnccl-profiler-ncclscope.so")


def _load() -> str:
    """Load the extension and return why that failed; empty if it did not."""
    if "t" in sys.abiflags:
        return "this Python has no GIL, and the extension needs one"
    try:
        importlib.import_module("ncclscope.native._core")
    except ModuleNotFoundError:
        return "it is not part of this installation"
    except ImportError as error:
        return str(error)
    return ""


_REASON = _load()


def why_not() -> str:
    """Return why the compiled core does not serve; empty if it does."""
    return _REASON


def plugin_path() -> Path | None:
    """Return the profiler plugin for NCCL, or None if this installation has none."""
    return _PLUGIN if _PLUGIN.is_file() else None
