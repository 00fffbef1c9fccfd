"""Make Dynamo skip the probes.

After a graph break Dynamo traces each frame that runs, including the probes'. Compiling them
takes seconds and has no benefit.
"""

from __future__ import annotations

from typing import Any

from ncclscope_patches.probes.probe import Note

_PACKAGES = ("ncclscope", "ncclscope_patches")


class DynamoSkip(Note):
    """Adds ncclscope's packages to those that Dynamo does not trace."""

    name = "dynamo"
    target = "torch._dynamo.trace_rules"

    def install(self, module: Any) -> None:
        for package in _PACKAGES:
            module.add(package)
