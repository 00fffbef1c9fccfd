"""Strategies for dispatch and combine, as sequences of collectives.

=================  =============================================================================
``always``         The whole sequence in every step, for any load: rows are padded to the
                   largest batch, so that all ranks enqueue the same calls with the same shapes.
``sentinel``       Every rank adds one row of zeros, routed to its own first expert with weight
                   0. So every rank has a row to send and an expert with work, and never takes the
                   short cut below. Batches keep their own sizes.
``data_dependent`` A rank whose experts get no token takes a short cut: it gathers routing
                   metadata in its replica and skips the rest. Ranks diverge as soon as some have
                   tokens and others have none. A buggy reference, not for use.
=================  =============================================================================
"""

from __future__ import annotations

import abc
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch

from ncclscope_patches.moe_dispatch.groups import ExpertGroups, pad_rows
from ncclscope_patches.moe_dispatch.placement import ExpertPlacement

NOWHERE = -1
"""Expert id that means no expert."""


@dataclass(frozen=True)
class Dispatched:
    """The input of a rank's experts: the rows of all members of its dispatch group.

    Padding rows belong to no token; they have no expert, or one with weight 0.

    Attributes:
        hidden: Hidden states, ``[rows, hidden]``.
        weights: Weights of each row's experts, ``[rows, k]``.
        ids: Global ids of those experts, ``[rows, k]``; -1 for none.
        extra: Further tensors, ``[rows, ...]`` each.
        sizes: Agreed number of rows of each member of the dispatch group.
        full: Whether the whole sequence is enqueued; False only on the short cut.
    """

    hidden: torch.Tensor
    weights: torch.Tensor
    ids: torch.Tensor
    extra: tuple[torch.Tensor, ...]
    sizes: tuple[int, ...]
    full: bool = True

    @property
    def rows(self) -> int:
        """Number of rows."""
        return self.hidden.shape[0]

    def each(
        self, change: Callable[[torch.Tensor], torch.Tensor], ids: torch.Tensor, **others: Any
    ) -> Dispatched:
        """Return a batch with these ids, and the other tensors changed in the order of fields.

        Args:
            change: Return what takes a tensor's place.
            ids: The new ids.
            **others: Other fields that change.
        """
        weights, hidden = change(self.weights), change(self.hidden)
        extra = tuple(map(change, self.extra))
        return replace(self, ids=ids, weights=weights, hidden=hidden, extra=extra, **others)


class Strategy(abc.ABC):
    """One way to dispatch and to combine.

    Args:
        groups: Process groups for the collectives.
        placement: Assignment of experts to ranks.

    Attributes:
        name: Name of the strategy.
    """

    name: ClassVar[str]

    def __init__(self, groups: ExpertGroups, placement: ExpertPlacement) -> None:
        self.groups = groups
        self.placement = placement
        self.owned = placement.owned(groups.expert.rank)

    @abc.abstractmethod
    def dispatch(self, batch: Dispatched) -> Dispatched:
        """Send a rank's own rows; return those of the whole dispatch group."""

    @abc.abstractmethod
    def collect(self, sent: Dispatched, output: torch.Tensor) -> torch.Tensor:
        """Sum what the dispatch group's experts made of a rank's own rows.

        Returns:
            At least as many rows as the rank has; the further ones belong to no token.
        """

    def combine(
        self, sent: Dispatched, output: torch.Tensor, shared: torch.Tensor | None
    ) -> torch.Tensor:
        """Return the rank's own rows with the output of all ranks' experts.

        Args:
            sent: What :meth:`dispatch` returned.
            output: Output of this rank's experts, ``[sent.rows, hidden]``.
            shared: Output of its shared experts for its own rows, ``[rows, hidden]``.

        Returns:
            ``[rows, hidden]``.
        """
        own = sent.sizes[self.groups.dispatch.rank]
        result = self.collect(sent, output)
        if shared is not None:
            result = result + pad_rows(shared, result.shape[0])
        elif result is output:
            result = output.clone()  # in a group of one, the tensor is the caller's
        if not self.groups.sequence_parallel:
            self.groups.tensor.sum(result)
        return result[:own]


class Always(Strategy):
    """The whole sequence, with equal shapes on all ranks."""

    name = "always"

    def dispatch(self, batch: Dispatched) -> Dispatched:
        # At least one row: without any, some versions of some backends enqueue nothing.
        rows = max(*batch.sizes, 1)

        def gather(own: torch.Tensor, fill: float = 0) -> torch.Tensor:
            return self.groups.dispatch.gather(pad_rows(own, rows, fill))

        return batch.each(gather, gather(batch.ids, NOWHERE))

    def collect(self, sent: Dispatched, output: torch.Tensor) -> torch.Tensor:
        return self.groups.dispatch.scatter(output)


class DataDependent(Strategy):
    """The whole sequence or a short cut, depending on rank-local data: the bug."""

    name = "data_dependent"

    def dispatch(self, batch: Dispatched) -> Dispatched:
        group = self.groups.dispatch
        ids = group.gather_sizes(batch.ids, batch.sizes)
        # Rank-local data decides what this rank enqueues.
        if not self._load(ids):
            return self._cut_short(batch, ids)
        return batch.each(lambda tensor: group.gather_sizes(tensor, batch.sizes), ids)

    def collect(self, sent: Dispatched, output: torch.Tensor) -> torch.Tensor:
        return self.groups.dispatch.scatter_sizes(output, sent.sizes)

    def combine(
        self, sent: Dispatched, output: torch.Tensor, shared: torch.Tensor | None
    ) -> torch.Tensor:
        if sent.full:
            return super().combine(sent, output, shared)
        own = sent.sizes[self.groups.dispatch.rank]
        nothing = output.new_zeros((own, *output.shape[1:]))
        return nothing if shared is None else nothing + shared

    def _load(self, ids: torch.Tensor) -> int:
        """Return the number of routings to this rank's experts."""
        return int(((ids >= self.owned.start) & (ids < self.owned.stop)).sum())

    def _cut_short(self, batch: Dispatched, ids: torch.Tensor) -> Dispatched:
        routed = ids[ids >= 0].flatten()
        counts = torch.bincount(routed, minlength=self.placement.experts)
        group = self.groups.tensor if self.groups.tp > 1 else self.groups.dispatch
        group.gather(counts.to(torch.int32).unsqueeze(0))
        return batch.each(lambda tensor: tensor[:0], batch.ids[:0], full=False)


class Sentinel(DataDependent):
    """Pads the routing, so that the short cut exists but is never taken."""

    name = "sentinel"

    def dispatch(self, batch: Dispatched) -> Dispatched:
        rows = batch.rows + 1
        padded = batch.each(
            lambda tensor: pad_rows(tensor, rows),
            pad_rows(batch.ids, rows, self.owned.start),
            sizes=tuple(size + 1 for size in batch.sizes),
        )
        return replace(super().dispatch(padded), sizes=batch.sizes)

    def collect(self, sent: Dispatched, output: torch.Tensor) -> torch.Tensor:
        return self.groups.dispatch.scatter_sizes(output, [size + 1 for size in sent.sizes])


STRATEGIES: dict[str, type[Strategy]] = {
    strategy.name: strategy for strategy in (Always, Sentinel, DataDependent)
}
"""Strategies by name."""
