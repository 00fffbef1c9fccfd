"""All-gather and reduce-scatter with a different number of rows per rank.

They are for backends without them, such as gloo. Like NCCL bindings, they use one broadcast or
reduction for each rank that has rows, so every member must pass the same sizes. Tracing records
each as one call with its sizes, not the calls inside it.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from itertools import accumulate
from typing import Any

from ncclscope.tracing import scope
from ncclscope_patches.probes import process_groups
from ncclscope_patches.probes.probe import Patch
from ncclscope_patches.probes.recording import NOBODY, Handle, record

_CALLER = 2
"""Frames from a ``before`` hook to the caller of the function that it guards."""


def all_gatherv(group: Any, ranks: Sequence[int], tensor: Any, sizes: Sequence[int]) -> Any:
    """Return the rows of all members, in the group's order.

    Args:
        group: The torch process group.
        ranks: Global ranks of its members, in the group's order.
        tensor: Own rows, ``[sizes[own], ...]``.
        sizes: Rows of each member, the same on all of them.

    Raises:
        ValueError: ``sizes`` does not match the rows or the number of members.
    """
    import torch.distributed as dist

    own = dist.get_rank(group)
    _require(len(sizes) == len(ranks), f"{len(sizes)} sizes for {len(ranks)} ranks")
    _require(tensor.shape[0] == sizes[own], f"{tensor.shape[0]} rows, not {sizes[own]}")
    output = tensor.new_empty((sum(sizes), *tensor.shape[1:]))
    for root, part in enumerate(_parts(output, sizes)):
        if root == own:
            part.copy_(tensor)
        if sizes[root]:
            dist.broadcast(part, ranks[root], group=group)
    return output


def reduce_scatterv(group: Any, ranks: Sequence[int], tensor: Any, sizes: Sequence[int]) -> Any:
    """Return this member's rows, summed over all members.

    Args:
        group: The torch process group.
        ranks: Global ranks of its members, in the group's order.
        tensor: Rows for all members, ``[sum(sizes), ...]``; not modified.
        sizes: Rows of each member, the same on all of them.

    Raises:
        ValueError: ``sizes`` does not match the rows or the number of members.
    """
    import torch.distributed as dist

    own = dist.get_rank(group)
    _require(len(sizes) == len(ranks), f"{len(sizes)} sizes for {len(ranks)} ranks")
    _require(tensor.shape[0] == sum(sizes), f"{tensor.shape[0]} rows, not {sum(sizes)}")
    # gloo leaves partial sums in the input of ranks other than the root.
    parts = _parts(tensor.clone(), sizes)
    for root, part in enumerate(parts):
        if sizes[root]:
            dist.reduce(part, ranks[root], group=group)
    return parts[own]


def _parts(tensor: Any, sizes: Sequence[int]) -> list[Any]:
    ends = list(accumulate(sizes))
    return [tensor[end - size : end] for size, end in zip(sizes, ends, strict=True)]


def _require(holds: bool, message: str) -> None:
    if not holds:
        raise ValueError(message)


class UnevenProbe(Patch):
    """Records each of the two functions as one call."""

    name = "uneven"
    target = "ncclscope_patches.probes.uneven"
    supports = "this version"

    def install(self, module: Any) -> None:
        for name, redop in (("all_gatherv", None), ("reduce_scatterv", "sum")):
            function = getattr(module, name)
            suppressed = self.guard_scope(function, lambda *_: scope.suppress(), scope.resume)
            before = _recording(name, redop)
            self.put(module, name, self.guard(suppressed, before, _returned))


def _recording(op: str, redop: str | None) -> Any:

    def before(args: tuple[Any, ...], _kwargs: dict[str, Any]) -> tuple[Handle, int] | None:
        group, _, tensor, sizes = args
        handle = process_groups.handles.of(group)
        if handle is NOBODY:
            return None
        call = (op, tensor.shape, tensor.dtype, redop, None, None, None, tuple(sizes))
        return handle, record(handle, call, sys._getframe(_CALLER))

    return before


def _returned(token: tuple[Handle, int], _result: Any) -> None:
    handle, position = token
    if handle.waits:
        handle.complete(position)
