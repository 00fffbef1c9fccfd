"""Collectives of one group, recorded once per logical call.

It works like a device communicator of an inference engine. The host posts, results are valid once
the stream has run, and variable-size collectives consist of one rooted collective per member.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from hashlib import blake2b
from operator import itemgetter
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from ncclscope.tracing import callsite, scope

if TYPE_CHECKING:
    from ncclscope.lab.progress import ProgressEntry
    from ncclscope.lab.stream import Stream
    from ncclscope.tracing.tracer import Tracer


def communicator_key(nonce: str, label: str, ranks: Sequence[int]) -> str:
    """Return the key of a group, the same on its members and different from all other groups.

    Args:
        nonce: Random text of the run.
        label: Label of the communicator.
        ranks: Global ranks of the members.
    """
    text = f"{nonce}/{label}/{','.join(map(str, ranks))}"
    return f"lab:{blake2b(text.encode(), digest_size=8).hexdigest()}"


class LabCommunicator:
    """One group of ranks.

    A group of one rank posts and records nothing: its results are its inputs.

    Args:
        tracer: Records the calls.
        stream: Runs the calls.
        progress: Counts the calls.
        group: The process group; None for a single member.
        label: Label such as ``tp:0``.
        ranks: Global ranks of the members.
        rank: Own global rank.
        nonce: Random text of the run.
        backend: Backend of the process group.
    """

    def __init__(
        self,
        tracer: Tracer,
        stream: Stream,
        progress: ProgressEntry,
        group: dist.ProcessGroup | None,
        *,
        label: str,
        ranks: Sequence[int],
        rank: int,
        nonce: str,
        backend: str,
    ) -> None:
        self.ranks = tuple(ranks)
        self.size = len(self.ranks)
        self.rank = self.ranks.index(rank)
        self._tracer = tracer
        self._stream = stream
        self._progress = progress
        self._group = group
        self._captures = False
        self._batch: list[tuple[tuple[str, str, int], Callable[[], None]]] | None = None
        if self.size > 1:
            key = communicator_key(nonce, label, ranks)
            self._comm = tracer.communicator(key, label, ranks, backend)

    def all_reduce(self, tensor: torch.Tensor, redop: str = "sum") -> torch.Tensor:
        """Reduce ``tensor`` in place."""
        if self.size > 1:
            op = getattr(dist.ReduceOp, redop.upper())
            work = partial(dist.all_reduce, tensor, op=op, group=self._group)
            self._post(work, "all_reduce", tensor, redop=redop)
        return tensor

    def all_gather(self, tensor: torch.Tensor) -> torch.Tensor:
        """Concatenate tensors ``[n, ...]`` of all members to ``[size * n, ...]``."""
        if self.size == 1:
            return tensor
        output = tensor.new_empty((self.size * tensor.shape[0], *tensor.shape[1:]))
        work = partial(dist.all_gather, list(output.chunk(self.size)), tensor, group=self._group)
        self._post(work, "all_gather", tensor, out_shape=output.shape)
        return output

    def all_gatherv(self, tensor: torch.Tensor, sizes: Sequence[int]) -> torch.Tensor:
        """Concatenate tensors ``[sizes[i], ...]`` of members ``i`` to ``[sum(sizes), ...]``."""
        if self.size == 1:
            return tensor
        output = tensor.new_empty((sum(sizes), *tensor.shape[1:]))
        work = partial(self._all_gatherv, output, tensor, sizes)
        self._post(work, "all_gatherv", tensor, sizes=sizes, out_shape=output.shape)
        return output

    def reduce_scatter(self, tensor: torch.Tensor) -> torch.Tensor:
        """Sum tensors ``[n, ...]``; return each member's ``n / size`` rows."""
        if self.size == 1:
            return tensor
        output = tensor.new_empty((tensor.shape[0] // self.size, *tensor.shape[1:]))
        work = partial(self._reduce_scatterv, output, tensor, [output.shape[0]] * self.size)
        self._post(work, "reduce_scatter", tensor, redop="sum", out_shape=output.shape)
        return output

    def reduce_scatterv(self, tensor: torch.Tensor, sizes: Sequence[int]) -> torch.Tensor:
        """Sum tensors ``[sum(sizes), ...]``; return each member's ``sizes[i]`` rows."""
        if self.size == 1:
            return tensor
        output = tensor.new_empty((sizes[self.rank], *tensor.shape[1:]))
        extra = {"redop": "sum", "sizes": sizes, "out_shape": output.shape}
        work = partial(self._reduce_scatterv, output, tensor, sizes)
        self._post(work, "reduce_scatterv", tensor, **extra)
        return output

    def broadcast(self, tensor: torch.Tensor, root: int) -> torch.Tensor:
        """Copy the tensor of ``root``, a rank of this communicator, to all members."""
        if self.size > 1:
            work = partial(dist.broadcast, tensor, src=self.ranks[root], group=self._group)
            self._post(work, "broadcast", tensor, root=root)
        return tensor

    def barrier(self) -> None:
        """Wait for all members, when the stream reaches it."""
        if self.size > 1:
            self._post(partial(dist.barrier, group=self._group), "barrier", None)

    def send(self, tensor: torch.Tensor, peer: int) -> None:
        """Send a tensor to ``peer``, a rank of this communicator."""
        work = partial(dist.send, tensor, dst=self.ranks[peer], group=self._group)
        self._post(work, "send", tensor, peer=peer)

    def recv(self, tensor: torch.Tensor, peer: int) -> torch.Tensor:
        """Receive into a tensor from ``peer``, a rank of this communicator."""
        work = partial(dist.recv, tensor, src=self.ranks[peer], group=self._group)
        self._post(work, "recv", tensor, peer=peer)
        return tensor

    @contextlib.contextmanager
    def capture(self) -> Iterator[None]:
        """Record the calls inside the block as captured; do not run them.

        This is what happens to a call during the capture of a CUDA graph. There is no graph here,
        and nothing is ever replayed.
        """
        self._captures = True
        try:
            yield
        finally:
            self._captures = False

    @contextlib.contextmanager
    def group(self) -> Iterator[None]:
        """Post the calls inside the block at its end, sorted by size.

        This is what ncclGroupStart and ncclGroupEnd do: NCCL sorts the calls between them by size,
        so that their order does not matter.
        """
        self._batch = []
        scope.enter_group()
        try:
            yield
        finally:
            scope.leave_group()
            batch, self._batch = self._batch, None
            for _, launch in sorted(batch, key=itemgetter(0)):
                launch()

    def _post(
        self, work: Callable[[], Any], op: str, tensor: torch.Tensor | None, **parameters: Any
    ) -> None:
        if tensor is not None:
            parameters["shape"] = tensor.shape
            parameters["dtype"] = str(tensor.dtype).removeprefix("torch.")
        # The call site is the caller of the collective method that called this one.
        found = callsite.locate(sys._getframe(2))
        site = callsite.describe(found[2], found[1]) if found else None
        position = self._tracer.record(
            self._comm, op, site=site, captured=self._captures, **parameters
        )
        self._progress.post()
        if self._captures:
            return
        launch = partial(self._stream.launch, work, position=position)
        if self._batch is None:
            launch()
        else:
            size = 0 if tensor is None else tensor.numel()
            self._batch.append(((op, parameters.get("dtype", ""), size), launch))

    # --- what the stream runs ----------------------------------------------------------------

    def _all_gatherv(
        self, output: torch.Tensor, tensor: torch.Tensor, sizes: Sequence[int]
    ) -> None:
        parts = torch.split(output, list(sizes))
        parts[self.rank].copy_(tensor)
        for root, part in zip(self.ranks, parts, strict=True):
            dist.broadcast(part, src=root, group=self._group)

    def _reduce_scatterv(
        self, output: torch.Tensor, tensor: torch.Tensor, sizes: Sequence[int]
    ) -> None:
        # Copy: gloo overwrites the tensors of ranks other than the root.
        parts = torch.split(tensor.clone(), list(sizes))
        for root, part in zip(self.ranks, parts, strict=True):
            dist.reduce(part, dst=root, group=self._group)
        output.copy_(parts[self.rank])
