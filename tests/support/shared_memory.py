"""Whether vLLM's CPU workers exchange tensors through shared memory on this machine.

vLLM has those operators only in what it compiled for AVX-512. On other processors its workers use
gloo, whose calls other tests see.
"""

from __future__ import annotations

from pathlib import Path

import pytest

__all__ = ["BACKEND", "needs_shared_memory"]

_HAS_OPERATORS = " avx512f" in Path("/proc/cpuinfo").read_text("ascii", "replace")
BACKEND = "shm" if _HAS_OPERATORS else "gloo"
"""Backend of the collectives of a tensor-parallel group."""
needs_shared_memory = pytest.mark.skipif(
    not _HAS_OPERATORS, reason="vLLM's shared-memory operators need AVX-512"
)
