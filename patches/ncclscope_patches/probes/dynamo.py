"""Has Dynamo leave the probes alone.

After a graph break Dynamo looks at each frame that runs, the probes' too. It would compile
them, at the cost of seconds, and run them in its own simulation of Python, to no use.
"""

from __future__ import annotations

from typing import Any

from ncclscope_patches.probes.probe import Patch

__all__ = ["DynamoSkip"]

_PACKAGES = ("ncclscope", "ncclscope_patches")


class DynamoSkip(Patch):
    """Adds this project's packages to those that Dynamo does not trace."""

    name = "dynamo"
    target = "torch._dynamo.trace_rules"
    supports = "torch 2.6 to 2.15"
    records = False

    def install(self, module: Any) -> None:
        for package in _PACKAGES:
            module.add(package)
