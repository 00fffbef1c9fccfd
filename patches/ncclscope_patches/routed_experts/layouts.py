"""Which rows of what a router saw are this rank's.

===================  ===========================================================================
``CONCATENATED``     The tokens of all data-parallel ranks, one after the other.
``OWN``              This replica's tokens.
``SEQUENCE_SHARD``   This tensor-parallel rank's share of them; the last shares are shorter, or
                     padded to the length of the first.
``GATHERED_SHARDS``  The shares of all ranks of all replicas, one after the other. Each replica's
                     batch was padded first, and shared out then.
===================  ===========================================================================
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from ncclscope.errors import UsageError
from ncclscope_patches.routed_experts.capture import LayerCapture

__all__ = ["BatchLayout", "BatchRows", "capture_own", "own_rows", "recognise"]

Gather = Callable[[torch.Tensor], torch.Tensor]
"""Puts together equal numbers of rows of all ranks of the replica, in their order."""


class BatchLayout(enum.Enum):
    """What the rows of a router's output are."""

    CONCATENATED = "concatenated"
    OWN = "own"
    SEQUENCE_SHARD = "sequence shard"
    GATHERED_SHARDS = "gathered shards"


@dataclass(frozen=True)
class BatchRows:
    """How many rows who has in a step; the same on all ranks but for the ranks' own numbers.

    Attributes:
        tokens: Rows of each data-parallel rank.
        dp_rank: This one's place among them.
        tp: Ranks of a replica.
        tp_rank: This one's place in it.
        sequence_parallel: Whether the ranks of a replica share its tokens out among them.
        shards: Rows that each rank gave to be gathered, padding included, replica by replica.

    Raises:
        UsageError: The numbers do not go together.
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
        """Rows of this rank's replica."""
        return self.tokens[self.dp_rank]

    @property
    def shard(self) -> int:
        """Rows of the longest share of this replica."""
        return -(-self.own // self.tp)


def recognise(rows: int, batch: BatchRows) -> BatchLayout | None:
    """Report the layout by a number of rows, where the model's code does not say it.

    The answer is the same on all ranks of a replica. Whether it is sequence parallel has to be
    known: three rows may be a replica's only three, or one third of its nine.

    Args:
        rows: Rows of the router's output.
        batch: The step's.

    Returns:
        None where no layout has as many rows.
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

    Sequence shards are put together by one collective, so all ranks of the replica have to call
    it. It reads nothing from the device, and can be captured in a CUDA graph as far as `gather`
    can.

    Args:
        topk_ids: What the router chose, ``[rows, top_k]``.
        batch: The step's numbers of rows.
        layout: What the rows are.
        gather: For sequence shards of more than one rank.

    Returns:
        ``[batch.own, top_k]``.

    Raises:
        UsageError: There are not as many rows as the layout has.
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
    """Store the rows of this rank's replica, for a layer that is given others' as well.

    In a step that nobody wants it posts no collective. Rows of no known layout are not stored, so
    that their tokens are missing. A CUDA graph keeps the numbers that it was captured with: those
    of batches which were padded to its size.

    Args:
        sink: The layer's.
        topk_ids: What its router chose, ``[rows, top_k]``.
        batch: The step's numbers of rows.
        gather: For sequence shards of more than one rank.
        layout: What the rows are, where the model's code says it.
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
    # All padding of a replica is at its end, since it was there before the shares were.
    return topk_ids[start : start + batch.own]


def _padded(topk_ids: torch.Tensor, batch: BatchRows) -> torch.Tensor:
    """Return a share as long as the longest one: NCCL gathers equal ones."""
    missing = batch.shard - topk_ids.shape[0]
    if missing == 0:
        return topk_ids
    share = min(max(batch.own - batch.tp_rank * batch.shard, 0), batch.shard)
    _expect(topk_ids, share, BatchLayout.SEQUENCE_SHARD)
    return torch.cat([topk_ids, topk_ids.new_zeros((missing, topk_ids.shape[1]))])


def _expect(topk_ids: torch.Tensor, rows: int, layout: BatchLayout) -> None:
    if topk_ids.shape[0] != rows:
        raise UsageError(f"{topk_ids.shape[0]} rows where {layout.value} rows are {rows}")
