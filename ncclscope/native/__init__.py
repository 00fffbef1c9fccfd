"""The ring's core in C, where it serves: see ``src/ring.h``.

It is optional. Without a compiler at installation, on an interpreter without a GIL, or on another
platform, the writer in Python does the same, more slowly.
"""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType
from typing import Any

from ncclscope.settings import variable

__all__ = ["by_address", "core", "is_broken", "plugin_path", "why_not"]

_PLUGIN = Path(__file__).with_name("ncclscope-profiler.so")

_found: ModuleType | None = None
_why_not = ""
_is_broken = False


def core() -> ModuleType | None:
    """Return the extension module; None if the writer in Python serves."""
    return None if why_not() else _found


def by_address() -> dict[int, Any]:
    """Return a dict by the id of objects: the core's own, in which it finds them faster."""
    made: dict[int, Any] = {} if _found is None else _found.addresses()
    return made


def why_not() -> str:
    """Return why the extension does not serve, as a clause; empty if it does."""
    if variable("NATIVE") == "0":
        return "NCCLSCOPE_NATIVE=0 is set"
    return _why_not


def is_broken() -> bool:
    """Return whether the extension is part of this installation, is wanted, and does not load."""
    return _is_broken and variable("NATIVE") != "0"


def plugin_path() -> Path | None:
    """Return the path of NCCL's profiler plugin; None if it was not built."""
    return _PLUGIN if _PLUGIN.exists() else None


def _load() -> None:
    global _found, _why_not, _is_broken
    if "t" in sys.abiflags:
        _why_not = "this Python has no GIL, and the extension needs one"
        return
    try:
        from ncclscope.native import _core as found
    except ImportError as error:
        missing = isinstance(error, ModuleNotFoundError) or "partially initialized" in str(error)
        _is_broken = not missing
        _why_not = f"it does not load: {error}"
        if missing:
            _why_not = "it is not part of this installation"
    else:
        _found = found


_load()
