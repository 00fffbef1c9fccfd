"""Find this rank's rows in a router's output.

===================  ===========================================================================
``CONCATENATED``     The tokens of all data-parallel ranks, concatenated.
``OWN``              This replica's tokens.
``SEQUENCE_SHARD``   This tensor-parallel rank's shard of them; the last shards are shorter, or
                     padded to the length of the first.
``GATHERED_SHARDS``  The shards of all ranks of all replicas, concatenated. Each replica's batch
                     was padded before it was sharded.
===================  ===========================================================================
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from ncclscope.errors import UsageError
from ncclscope_patches.routed_experts.capture import LayerCapture

Gather = Callable[[torch.Tensor], torch.Tensor]
"""Gather equally many rows from all ranks of the replica, in rank order."""


class BatchLayout(enum.Enum):
    """The layout of the rows of a router's output."""

    CONCATENATED = "concatenated"
    OWN = "own"
    SEQUENCE_SHARD = "sequence shard"
    GATHERED_SHARDS = "gathered shards"


@dataclass(frozen=True)
class BatchRows:
    """The numbers of rows in a step; equal on all ranks, except `dp_rank` and `tp_rank`.

    Attributes:
        tokens: Number of rows of each data-parallel rank.
        dp_rank: This rank's data-parallel rank.
        tp: Number of ranks of a replica.
        tp_rank: This rank's tensor-parallel rank.
        sequence_parallel: Whether the ranks of a replica shard its tokens.
        shards: Number of rows of each rank's gathered shard, including padding, in replica order.

    Raises:
        UsageError: The numbers are inconsistent.
    """

    tokens: tuple[int, ...]
    dp_rank: int = 0
    tp: int = 1
    tp_rank: int = 0
    sequence_parallel: bool = False
    shards: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if not 0 <= self.dp_rank < len(self.tokens) or not 0 <= self.tp_rank < self.tp:
            raise UsageError(
                f"no rank {self.tp_rank} of {self.tp} in replica {self.dp_rank} "
                f"of {len(self.tokens)}"
            )
        if self.shards and len(self.shards) != len(self.tokens) * self.tp:
            raise UsageError(
                f"{len(self.shards)} shards of {len(self.tokens)} replicas of {self.tp} ranks"
            )
        if min(self.tokens, default=0) < 0 or min(self.shards, default=0) < 0:
            raise UsageError("a number of rows below 0")

    @property
    def own(self) -> int:
        """Number of rows of this rank's replica."""
        return self.tokens[self.dp_rank]

    @property
    def shard(self) -> int:
        """Number of rows of this replica's longest shard."""
        return -(-self.own // self.tp)


def recognise(rows: int, batch: BatchRows) -> BatchLayout | None:
    """Infer the layout from a number of rows, if the model's code does not determine it.

    The result is equal on all ranks of a replica. Whether it is sequence parallel must be known:
    three rows may be all of a replica, or one third of nine.

    Args:
        rows: Number of rows of the router's output.
        batch: The step's numbers of rows.

    Returns:
        The layout; None if no layout has that many rows.
    """
    counts = {
        BatchLayout.OWN: batch.own,
        BatchLayout.CONCATENATED: sum(batch.tokens),
    }
    if batch.sequence_parallel:
        counts = {BatchLayout.SEQUENCE_SHARD: batch.shard}
        if batch.shards:
            counts[BatchLayout.GATHERED_SHARDS] = sum(batch.shards)
    return next((layout for layout, count in counts.items() if count == rows), None)


def own_rows(
    topk_ids: torch.Tensor, batch: BatchRows, layout: BatchLayout, gather: Gather | None = None
) -> torch.Tensor:
    """Return the rows of this rank's replica, in the order of its batch.

    Sequence shards are gathered by one collective, so all ranks of the replica must call this. It
    does not synchronise with the device, and can be captured in a CUDA graph if `gather` can.

    Args:
        topk_ids: The router's expert ids, ``[rows, top_k]``.
        batch: The step's numbers of rows.
        layout: Layout of the rows.
        gather: Gather sequence shards; needed for more than one rank.

    Returns:
        ``[batch.own, top_k]``.

    Raises:
        UsageError: The number of rows does not match the layout.
    """
    if layout is BatchLayout.OWN:
        _expect(topk_ids, batch.own, layout)
        return topk_ids
    if layout is BatchLayout.CONCATENATED:
        _expect(topk_ids, sum(batch.tokens), layout)
        first = sum(batch.tokens[: batch.dp_rank])
        return topk_ids[first : first + batch.own]
    if layout is BatchLayout.GATHERED_SHARDS:
        _expect(topk_ids, sum(batch.shards), layout)
        return _from_shards(topk_ids, batch)
    if batch.tp == 1:
        _expect(topk_ids, batch.own, layout)
        return topk_ids
    if gather is None:
        raise UsageError("sequence shards cannot be put together without a collective")
    return gather(_padded(topk_ids, batch))[: batch.own]


def capture_own(
    sink: LayerCapture,
    topk_ids: torch.Tensor,
    batch: BatchRows,
    gather: Gather | None = None,
    layout: BatchLayout | None = None,
) -> None:
    """Store the rows of this rank's replica, for a layer that also sees others' rows.

    In a step without requests that opted in, it enqueues no collective. Rows of an unknown layout
    are not stored, so their tokens are missing. A CUDA graph keeps the numbers of its capture,
    which are those of batches padded to its size.

    Args:
        sink: The layer's part of the buffer.
        topk_ids: Its router's expert ids, ``[rows, top_k]``.
        batch: The step's numbers of rows.
        gather: Gather sequence shards; needed for more than one rank.
        layout: Layout of the rows, if the model's code determines it.
    """
    if not sink.buffer.writes:
        return
    layout = layout or recognise(topk_ids.shape[0], batch)
    if layout is not None:
        sink(own_rows(topk_ids, batch, layout, gather))


def _from_shards(topk_ids: torch.Tensor, batch: BatchRows) -> torch.Tensor:
    first = batch.dp_rank * batch.tp
    start = sum(batch.shards[:first])
    sizes: Sequence[int] = batch.shards[first : first + batch.tp]
    if sum(sizes) < batch.own:
        raise UsageError(f"shards of {list(sizes)} rows do not hold {batch.own} tokens")
    # A replica's padding is at its end, since the batch was padded before it was sharded.
    return topk_ids[start : start + batch.own]


def _padded(topk_ids: torch.Tensor, batch: BatchRows) -> torch.Tensor:
    """Pad a shard to the longest one, since NCCL gathers equal sizes."""
    missing = batch.shard - topk_ids.shape[0]
    if missing == 0:
        return topk_ids
    share = min(max(batch.own - batch.tp_rank * batch.shard, 0), batch.shard)
    _expect(topk_ids, share, BatchLayout.SEQUENCE_SHARD)
    return torch.cat([topk_ids, topk_ids.new_zeros((missing, topk_ids.shape[1]))])


def _expect(topk_ids: torch.Tensor, rows: int, layout: BatchLayout) -> None:
    if topk_ids.shape[0] != rows:
        raise UsageError(f"{topk_ids.shape[0]} rows where {layout.value} rows are {rows}")
