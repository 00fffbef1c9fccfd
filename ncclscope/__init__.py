"""Find the rank that left the common sequence of collectives, and where.

Importing this package imports neither torch nor vllm nor pandas, and numpy only when a reader is
used: the tracer runs inside other programs.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ncclscope.engine.verdict import Verdict, diagnose
    from ncclscope.errors import NcclscopeError
    from ncclscope.explanation import Explanation, explain
    from ncclscope.model import Call, Communicator, Finding, Rank, Run
    from ncclscope.readers import open_run
    from ncclscope.tracing.tracer import Tracer

__version__ = "0.1.0"

_HOMES = {
    "Call": "ncclscope.model",
    "Communicator": "ncclscope.model",
    "Explanation": "ncclscope.explanation",
    "Finding": "ncclscope.model",
    "NcclscopeError": "ncclscope.errors",
    "Rank": "ncclscope.model",
    "Run": "ncclscope.model",
    "Tracer": "ncclscope.tracing.tracer",
    "Verdict": "ncclscope.engine.verdict",
    "diagnose": "ncclscope.engine.verdict",
    "explain": "ncclscope.explanation",
    "open_run": "ncclscope.readers",
}

__all__ = [
    "Call",
    "Communicator",
    "Explanation",
    "Finding",
    "NcclscopeError",
    "Rank",
    "Run",
    "Tracer",
    "Verdict",
    "diagnose",
    "explain",
    "open_run",
]


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(home), name)


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__"])
