"""Records what a program posts through toylib."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from ncclscope.tracing import callsite, session
from ncclscope.tracing.tracer import Tracer
from ncclscope_patches.probes.probe import Patch

# A call site is the first frame outside these files: the program's line.
callsite.add_plumbing(os.path.dirname(__file__))


class ToylibProbe(Patch):
    """Records all_reduce and all_gather of toylib."""

    name = "toylib"
    target = "toylib"
    supports = "toylib 1"

    def install(self, module: Any) -> None:
        self.replace(module.Group, "all_reduce", _before("all_reduce", "sum"), _after)
        self.replace(module.Group, "all_gather", _before("all_gather", None), _after)


def _before(op: str, redop: str | None) -> Callable[..., tuple[Tracer, int] | None]:
    def record(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Tracer, int] | None:
        tracer = session.current()
        if tracer is None:
            return None
        group, tensor = args
        comm = tracer.communicator(
            key=f"toylib:{group.name}",
            label=group.name,
            ranks=range(group.size),
            backend="toylib",
        )
        dtype = str(tensor.dtype).removeprefix("torch.")
        return tracer, tracer.record(comm, op, shape=tensor.shape, dtype=dtype, redop=redop)

    return record


def _after(token: tuple[Tracer, int], _result: Any) -> None:
    tracer, position = token
    tracer.complete(position)
