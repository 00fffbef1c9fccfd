"""What each JSON document says of its own origin."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from ncclscope import __version__


def stamped(document: Mapping[str, Any]) -> dict[str, Any]:
    """Return a document with ncclscope's version and the time in ns since 1970."""
    return {**document, "version": __version__, "time_ns": time.time_ns()}
