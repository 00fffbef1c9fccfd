"""How tokens get to the experts and back, as sequences of collectives.

=================  =============================================================================
``always``         The whole sequence in every step, whatever the load: rows are padded to the
                   largest batch, so that all ranks post the same calls of the same shapes.
``sentinel``       Every rank adds one row of zeros, routed to its own first expert with weight
                   0. None is without a row to send or an expert without work, so the short cut
                   below is never taken. Batches travel in their own sizes.
``data_dependent`` A rank whose experts were given no token takes a short cut: it gathers routing
                   metadata in its replica and leaves out the rest. Ranks part as soon as some
                   have tokens and others have none. To be caught, not to be used.
=================  =============================================================================
"""

from __future__ import annotations

import abc
from dataclasses import dataclass, replace
from typing import ClassVar

import torch

from ncclscope_patches.moe_dispatch.groups import ExpertGroups, pad_rows
from ncclscope_patches.moe_dispatch.placement import ExpertPlacement

__all__ = ["NOWHERE", "STRATEGIES", "Always", "DataDependent", "Dispatched", "Sentinel", "Strategy"]

NOWHERE = -1
"""In place of an expert's number: none."""


@dataclass(frozen=True)
class Dispatched:
    """What a rank's experts are given: the rows of all members of its dispatch group.

    There may be rows that belong to no token. No expert is given them, or one with weight 0.

    Attributes:
        hidden: Hidden states, ``[rows, hidden]``.
        weights: Of each token's experts, ``[rows, k]``.
        ids: Those experts, numbered over all ranks, ``[rows, k]``; -1 for none.
        extra: What else was sent along, ``[rows, ...]`` each.
        sizes: Rows of each member of the dispatch group, as they were agreed on.
        full: Whether the whole sequence is posted; False on the short cut alone.
    """

    hidden: torch.Tensor
    weights: torch.Tensor
    ids: torch.Tensor
    extra: tuple[torch.Tensor, ...]
    sizes: tuple[int, ...]
    full: bool = True

    @property
    def rows(self) -> int:
        """How many there are."""
        return self.hidden.shape[0]


class Strategy(abc.ABC):
    """One way to dispatch and to combine.

    Args:
        groups: Where it is done.
        placement: Which rank has which expert.

    Attributes:
        name: As it is asked for.
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
        """Return the rank's own rows, with what the experts of all ranks contribute."""
        own = sent.sizes[self.groups.dispatch.rank]
        result = self.collect(sent, output)
        if shared is not None:
            result = result + pad_rows(shared, result.shape[0])
        elif result is output:
            result = output.clone()  # a group of one: it is the caller's own
        if not self.groups.sequence_parallel:
            self.groups.tensor.sum(result)
        return result[:own]


class Always(Strategy):
    """The whole sequence, in shapes that are equal on all ranks."""

    name = "always"

    def dispatch(self, batch: Dispatched) -> Dispatched:
        # One row at least: with none, some versions of some backends post nothing.
        rows = max(*batch.sizes, 1)

        def gather(own: torch.Tensor, fill: float = 0) -> torch.Tensor:
            return self.groups.dispatch.gather(pad_rows(own, rows, fill))

        return replace(
            batch,
            ids=gather(batch.ids, NOWHERE),
            weights=gather(batch.weights),
            hidden=gather(batch.hidden),
            extra=tuple(gather(tensor) for tensor in batch.extra),
        )

    def collect(self, sent: Dispatched, output: torch.Tensor) -> torch.Tensor:
        return self.groups.dispatch.scatter(output)


class DataDependent(Strategy):
    """The whole sequence or a short cut, as a rank sees fit: the bug."""

    name = "data_dependent"

    def dispatch(self, batch: Dispatched) -> Dispatched:
        group = self.groups.dispatch
        ids = group.gather_sizes(batch.ids, batch.sizes)
        # What this rank alone knows decides about what it posts.
        if not self._load(ids):
            return self._cut_short(batch, ids)
        return replace(
            batch,
            ids=ids,
            weights=group.gather_sizes(batch.weights, batch.sizes),
            hidden=group.gather_sizes(batch.hidden, batch.sizes),
            extra=tuple(group.gather_sizes(tensor, batch.sizes) for tensor in batch.extra),
        )

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
        """Return how often tokens are routed to this rank's experts."""
        return int(((ids >= self.owned.start) & (ids < self.owned.stop)).sum())

    def _cut_short(self, batch: Dispatched, ids: torch.Tensor) -> Dispatched:
        routed = ids[ids >= 0].flatten()
        counts = torch.bincount(routed, minlength=self.placement.experts)
        group = self.groups.tensor if self.groups.tp > 1 else self.groups.dispatch
        group.gather(counts.to(torch.int32).unsqueeze(0))
        return replace(
            batch,
            ids=batch.ids[:0],
            weights=batch.weights[:0],
            hidden=batch.hidden[:0],
            extra=tuple(tensor[:0] for tensor in batch.extra),
            full=False,
        )


class Sentinel(DataDependent):
    """The routing is padded, so that the short cut is there and never taken."""

    name = "sentinel"

    def dispatch(self, batch: Dispatched) -> Dispatched:
        rows = batch.rows + 1
        padded = replace(
            batch,
            ids=pad_rows(batch.ids, rows, self.owned.start),
            weights=pad_rows(batch.weights, rows),
            hidden=pad_rows(batch.hidden, rows),
            extra=tuple(pad_rows(tensor, rows) for tensor in batch.extra),
            sizes=tuple(size + 1 for size in batch.sizes),
        )
        return replace(super().dispatch(padded), sizes=batch.sizes)

    def collect(self, sent: Dispatched, output: torch.Tensor) -> torch.Tensor:
        return self.groups.dispatch.scatter_sizes(output, [size + 1 for size in sent.sizes])


STRATEGIES: dict[str, type[Strategy]] = {
    strategy.name: strategy for strategy in (Always, Sentinel, DataDependent)
}
"""By name."""
