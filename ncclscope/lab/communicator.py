"""Collectives of one group, recorded once per logical call.

The shape is that of a device communicator in an inference engine: the host posts, results
are there once the stream has come to them, and variable-size collectives are made of one
rooted collective per member.
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
    """Returns what the members of a group share, and no other group of any run has."""
    text = f"{nonce}/{label}/{','.join(map(str, ranks))}"
    return f"lab:{blake2b(text.encode(), digest_size=8).hexdigest()}"


class LabCommunicator:
    """One group of ranks.

    A group of one posts and records nothing: its results are its inputs.

    Args:
        tracer: Records the calls.
        stream: Runs them.
        progress: Counts them.
        group: The process group; None where it has only one member.
        label: Name for a person, such as ``tp:0``.
        ranks: Global ranks of the members.
        rank: Own global rank.
        nonce: What distinguishes this run from all others.
        backend: Of the process group.
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
        """Reduces in place."""
        if self.size > 1:
            self._post(_all_reduce, "all_reduce", tensor, tensor, redop, redop=redop)
        return tensor

    def all_gather(self, tensor: torch.Tensor) -> torch.Tensor:
        """Concatenates tensors of equal size."""
        if self.size == 1:
            return tensor
        output = tensor.new_empty((self.size * tensor.shape[0], *tensor.shape[1:]))
        self._post(_all_gather, "all_gather", tensor, output, tensor, out_shape=output.shape)
        return output

    def all_gatherv(self, tensor: torch.Tensor, sizes: Sequence[int]) -> torch.Tensor:
        """Concatenates tensors of which each member has another number of rows."""
        if self.size == 1:
            return tensor
        output = tensor.new_empty((sum(sizes), *tensor.shape[1:]))
        extra = {"sizes": sizes, "out_shape": output.shape}
        self._post(_all_gatherv, "all_gatherv", tensor, output, tensor, sizes, **extra)
        return output

    def reduce_scatter(self, tensor: torch.Tensor) -> torch.Tensor:
        """Sums, and leaves each member an equal share of the rows."""
        if self.size == 1:
            return tensor
        output = tensor.new_empty((tensor.shape[0] // self.size, *tensor.shape[1:]))
        extra = {"redop": "sum", "out_shape": output.shape}
        sizes = [output.shape[0]] * self.size
        self._post(_reduce_scatterv, "reduce_scatter", tensor, output, tensor, sizes, **extra)
        return output

    def reduce_scatterv(self, tensor: torch.Tensor, sizes: Sequence[int]) -> torch.Tensor:
        """Sums, and leaves each member its own number of rows."""
        if self.size == 1:
            return tensor
        output = tensor.new_empty((sizes[self.rank], *tensor.shape[1:]))
        extra = {"redop": "sum", "sizes": sizes, "out_shape": output.shape}
        self._post(_reduce_scatterv, "reduce_scatterv", tensor, output, tensor, sizes, **extra)
        return output

    def broadcast(self, tensor: torch.Tensor, root: int) -> torch.Tensor:
        """Copies the tensor of one member, a rank of this communicator, to all."""
        if self.size > 1:
            self._post(_broadcast, "broadcast", tensor, tensor, root, root=root)
        return tensor

    def barrier(self) -> None:
        """Waits for all members, when the stream comes to it."""
        if self.size > 1:
            self._post(_barrier, "barrier", None)

    def send(self, tensor: torch.Tensor, peer: int) -> None:
        """Sends a tensor to one member, a rank of this communicator."""
        self._post(_send, "send", tensor, tensor, peer, peer=peer)

    def recv(self, tensor: torch.Tensor, peer: int) -> torch.Tensor:
        """Fills a tensor with what one member sends, a rank of this communicator."""
        self._post(_recv, "recv", tensor, tensor, peer, peer=peer)
        return tensor

    @contextlib.contextmanager
    def capture(self) -> Iterator[None]:
        """Calls inside the block are recorded as captured, and not carried out.

        That is what becomes of a call while a CUDA graph is captured; there is no graph here,
        on no backend, and nothing is ever replayed.
        """
        self._captures = True
        try:
            yield
        finally:
            self._captures = False

    @contextlib.contextmanager
    def group(self) -> Iterator[None]:
        """Calls inside the block are carried out at its end, in an order of their own.

        That is what ncclGroupStart and ncclGroupEnd do: NCCL sorts what was posted between
        them by size, so that the order of posting does not count.
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
        # The line of interest is the one that called the method which called this one.
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

    # A copy, since gloo uses the tensor of whoever is not the root as working space.
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
