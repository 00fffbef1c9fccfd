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

from ncclscope.tracing import callsite, scope

if TYPE_CHECKING:
    import torch
    from torch.distributed import ProcessGroup

    from ncclscope.lab.progress import ProgressEntry
    from ncclscope.lab.stream import Stream
    from ncclscope.tracing.tracer import Tracer

__all__ = ["LabCommunicator", "communicator_key"]


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
        group: ProcessGroup | None,
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
            self._post(_all_reduce, "all_reduce", tensor, tensor, redop, redop=redop)
        return tensor

    def all_gather(self, tensor: torch.Tensor) -> torch.Tensor:
        """Concatenate tensors ``[n, ...]`` of all members to ``[size * n, ...]``."""
        if self.size == 1:
            return tensor
        output = tensor.new_empty((self.size * tensor.shape[0], *tensor.shape[1:]))
        self._post(_all_gather, "all_gather", tensor, output, tensor, out_shape=output.shape)
        return output

    def all_gatherv(self, tensor: torch.Tensor, sizes: Sequence[int]) -> torch.Tensor:
        """Concatenate tensors ``[sizes[i], ...]`` of members ``i`` to ``[sum(sizes), ...]``."""
        if self.size == 1:
            return tensor
        output = tensor.new_empty((sum(sizes), *tensor.shape[1:]))
        extra = {"sizes": sizes, "out_shape": output.shape}
        self._post(_all_gatherv, "all_gatherv", tensor, output, tensor, sizes, **extra)
        return output

    def reduce_scatter(self, tensor: torch.Tensor) -> torch.Tensor:
        """Sum tensors ``[n, ...]``; return each member's ``n / size`` rows."""
        if self.size == 1:
            return tensor
        output = tensor.new_empty((tensor.shape[0] // self.size, *tensor.shape[1:]))
        extra = {"redop": "sum", "out_shape": output.shape}
        sizes = [output.shape[0]] * self.size
        self._post(_reduce_scatterv, "reduce_scatter", tensor, output, tensor, sizes, **extra)
        return output

    def reduce_scatterv(self, tensor: torch.Tensor, sizes: Sequence[int]) -> torch.Tensor:
        """Sum tensors ``[sum(sizes), ...]``; return each member's ``sizes[i]`` rows."""
        if self.size == 1:
            return tensor
        output = tensor.new_empty((sizes[self.rank], *tensor.shape[1:]))
        extra = {"redop": "sum", "sizes": sizes, "out_shape": output.shape}
        self._post(_reduce_scatterv, "reduce_scatterv", tensor, output, tensor, sizes, **extra)
        return output

    def broadcast(self, tensor: torch.Tensor, root: int) -> torch.Tensor:
        """Copy the tensor of ``root``, a rank of this communicator, to all members."""
        if self.size > 1:
            self._post(_broadcast, "broadcast", tensor, tensor, root, root=root)
        return tensor

    def barrier(self) -> None:
        """Wait for all members, when the stream reaches it."""
        if self.size > 1:
            self._post(_barrier, "barrier", None)

    def send(self, tensor: torch.Tensor, peer: int) -> None:
        """Send a tensor to ``peer``, a rank of this communicator."""
        self._post(_send, "send", tensor, tensor, peer, peer=peer)

    def recv(self, tensor: torch.Tensor, peer: int) -> torch.Tensor:
        """Receive into a tensor from ``peer``, a rank of this communicator."""
        self._post(_recv, "recv", tensor, tensor, peer, peer=peer)
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
        self,
        work: Callable[..., None],
        op: str,
        tensor: torch.Tensor | None,
        *arguments: Any,
        **parameters: Any,
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
        launch = partial(self._stream.launch, work, self, *arguments, position=position)
        if self._batch is None:
            launch()
        else:
            size = 0 if tensor is None else tensor.numel()
            self._batch.append(((op, parameters.get("dtype", ""), size), launch))


# --- what the stream runs ------------------------------------------------------------------


def _all_reduce(comm: LabCommunicator, tensor: torch.Tensor, redop: str) -> None:
    import torch.distributed as dist

    dist.all_reduce(tensor, op=getattr(dist.ReduceOp, redop.upper()), group=comm._group)


def _all_gather(comm: LabCommunicator, output: torch.Tensor, tensor: torch.Tensor) -> None:
    import torch.distributed as dist

    dist.all_gather(list(output.chunk(comm.size)), tensor, group=comm._group)


def _all_gatherv(
    comm: LabCommunicator, output: torch.Tensor, tensor: torch.Tensor, sizes: Sequence[int]
) -> None:
    import torch
    import torch.distributed as dist

    parts = torch.split(output, list(sizes))
    parts[comm.rank].copy_(tensor)
    for root, part in zip(comm.ranks, parts, strict=True):
        dist.broadcast(part, src=root, group=comm._group)


def _reduce_scatterv(
    comm: LabCommunicator, output: torch.Tensor, tensor: torch.Tensor, sizes: Sequence[int]
) -> None:
    import torch
    import torch.distributed as dist

    # Copy: gloo overwrites the tensors of ranks other than the root.
    parts = torch.split(tensor.clone(), list(sizes))
    for root, part in zip(comm.ranks, parts, strict=True):
        dist.reduce(part, dst=root, group=comm._group)
    output.copy_(parts[comm.rank])


def _broadcast(comm: LabCommunicator, tensor: torch.Tensor, root: int) -> None:
    import torch.distributed as dist

    dist.broadcast(tensor, src=comm.ranks[root], group=comm._group)


def _barrier(comm: LabCommunicator) -> None:
    import torch.distributed as dist

    dist.barrier(group=comm._group)


def _send(comm: LabCommunicator, tensor: torch.Tensor, peer: int) -> None:
    import torch.distributed as dist

    dist.send(tensor, dst=comm.ranks[peer], group=comm._group)


def _recv(comm: LabCommunicator, tensor: torch.Tensor, peer: int) -> None:
    import torch.distributed as dist

    dist.recv(tensor, src=comm.ranks[peer], group=comm._group)
