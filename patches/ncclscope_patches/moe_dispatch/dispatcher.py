"""Dispatch tokens to their experts, and combine the experts' outputs."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from ncclscope.errors import DispatchError, UsageError
from ncclscope_patches.moe_dispatch.agreement import agree
from ncclscope_patches.moe_dispatch.groups import ExpertGroups, pad_rows
from ncclscope_patches.moe_dispatch.placement import ExpertPlacement
from ncclscope_patches.moe_dispatch.strategies import STRATEGIES, Dispatched

Experts = Callable[[Dispatched], torch.Tensor]
"""Return the output of a rank's own experts for each row, weighted and summed, `[rows, hidden]`."""


class MoEDispatcher:
    """Dispatch and combine of mixture-of-experts layers, with one of several strategies.

    Every rank must construct it with equal arguments, and call the same methods in the same order.
    The first call detects a mismatch.

    Args:
        groups: Process groups for the collectives.
        placement: Assignment of experts to ranks.
        strategy: Name in :data:`~ncclscope_patches.moe_dispatch.strategies.STRATEGIES`.
        verify: Whether ranks compare their plans before each dispatch, by one small all_gather on
            the control group. Without it, ranks that disagree on sizes hang.

    Raises:
        UsageError: There is no such strategy, or there are fewer experts than ranks.
    """

    def __init__(
        self,
        groups: ExpertGroups,
        placement: ExpertPlacement,
        *,
        strategy: str = "always",
        verify: bool = True,
    ) -> None:
        if strategy not in STRATEGIES:
            raise UsageError(
                f"there is no strategy {strategy!r}", f"choose one of {', '.join(STRATEGIES)}"
            )
        if placement.ranks != groups.expert.size:
            raise UsageError(
                f"experts are placed on {placement.ranks} ranks, of {groups.expert.size}"
            )
        self.groups = groups
        self.placement = placement
        self.verify = verify
        self._strategy = STRATEGIES[strategy](groups, placement)
        kind = "own rows on each rank" if groups.sequence_parallel else "rows of the replica"
        self._plan = f"{strategy}, {placement.experts} experts, tp {groups.tp}, {kind}"

    @property
    def strategy(self) -> str:
        """Name of the strategy."""
        return self._strategy.name

    @property
    def owned(self) -> range:
        """The experts of this rank."""
        return self._strategy.owned

    def agree(self, rows: int) -> tuple[int, ...]:
        """Exchange the ranks' numbers of rows at the start of a step.

        Args:
            rows: This rank's number of rows, at least 0. It is equal on all ranks of a replica,
                unless each rank holds its own rows.

        Returns:
            The rows of each member of the dispatch group; equal on all ranks.

        Raises:
            DispatchError: The ranks do not match; raised on all of them.
        """
        wrong = f"{rows} rows" if rows < 0 else ""
        plan = f"{self._plan}, {'' if self.verify else 'not '}verified"
        table = agree(self.groups.control, plan, wrong=wrong, rows=rows)
        if self.groups.sequence_parallel:
            return tuple(table)
        tp = self.groups.tp
        for first in range(0, len(table), tp):
            if len(set(table[first : first + tp])) > 1:
                # All ranks have this table, so all of them raise.
                members = self.groups.expert.ranks
                plans = {rank: f"{own} rows" for rank, own in zip(members, table, strict=True)}
                own = " ".join(str(members[first + place]) for place in range(tp))
                raise DispatchError(
                    f"ranks {own} of one replica have {table[first : first + tp]} rows",
                    "give all ranks of a replica the same batch, or each its own rows with "
                    "sequence_parallel",
                    plans=plans,
                )
        return tuple(table[::tp])

    def dispatch(
        self,
        hidden: torch.Tensor,
        topk_weights: torch.Tensor,
        topk_ids: torch.Tensor,
        sizes: Sequence[int],
        extra: Sequence[torch.Tensor] = (),
    ) -> Dispatched:
        """Send rows to the experts.

        Args:
            hidden: Own hidden states, ``[rows, hidden]``.
            topk_weights: Weights of each row's experts, ``[rows, k]``.
            topk_ids: Global ids of those experts, ``[rows, k]``; -1 for none.
            sizes: Rows of each member of the dispatch group, from :meth:`agree`.
            extra: Further tensors to send, such as scales, ``[rows, ...]`` each.

        Returns:
            The input of this rank's experts.

        Raises:
            DispatchError: The ranks' plans differ, or the arguments of one are inconsistent;
                raised on all ranks, unless ``verify`` is off.
        """
        batch = Dispatched(hidden, topk_weights, topk_ids, tuple(extra), tuple(sizes))
        wrong = self._complaint(batch)
        if self.verify:
            agree(self.groups.control, self._describe(batch), wrong=wrong)
        elif wrong:
            raise DispatchError(f"{self._describe(batch)}: {wrong}")
        return self._strategy.dispatch(batch)

    def combine(
        self, sent: Dispatched, output: torch.Tensor, shared: torch.Tensor | None = None
    ) -> torch.Tensor:
        """Return the rank's own rows, summed over the experts of all ranks.

        Args:
            sent: The result of :meth:`dispatch`.
            output: Output of this rank's experts, ``[sent.rows, hidden]``.
            shared: Output of this rank's shared experts for its own rows, ``[rows, hidden]``. If
                the ranks of a replica hold the same rows, each gives a partial sum.

        Returns:
            ``[rows, hidden]``; equal on all ranks of a replica if they hold the same rows.
        """
        return self._strategy.combine(sent, output, shared)

    def apply(
        self,
        hidden: torch.Tensor,
        topk_weights: torch.Tensor,
        topk_ids: torch.Tensor,
        sizes: Sequence[int],
        experts: Experts,
        *,
        shared: torch.Tensor | None = None,
        extra: Sequence[torch.Tensor] = (),
    ) -> torch.Tensor:
        """Dispatch, run the experts, and combine.

        Args:
            hidden: Own hidden states, ``[rows, hidden]``.
            topk_weights: Weights of each row's experts, ``[rows, k]``.
            topk_ids: Global ids of those experts, ``[rows, k]``; -1 for none.
            sizes: Rows of each member of the dispatch group, from :meth:`agree`.
            experts: Computes this rank's experts: from the dispatched rows to their output,
                ``[sent.rows, hidden]``.
            shared: Output of the shared experts, as for :meth:`combine`.
            extra: Further tensors to send, ``[rows, ...]`` each.

        Returns:
            ``[rows, hidden]``, as from :meth:`combine`.
        """
        sent = self.dispatch(hidden, topk_weights, topk_ids, sizes, extra)
        return self.combine(sent, experts(sent), shared)

    def join_sequence(self, rows: torch.Tensor, sizes: Sequence[int]) -> torch.Tensor:
        """Gather a replica's rows if each of its ranks holds its own.

        Args:
            rows: This rank's rows, ``[rows, ...]``.
            sizes: Numbers of rows of all ranks, from :meth:`agree`.

        Returns:
            The replica's rows, equal on all its ranks.
        """
        tensor = self.groups.tensor
        if not self.groups.sequence_parallel or tensor.size == 1:
            return rows
        first = self.groups.expert.rank // tensor.size * tensor.size
        own = list(sizes)[first : first + tensor.size]
        most = max(*sizes, 1)
        gathered = torch.split(tensor.gather(pad_rows(rows, most)), most)
        return torch.cat([part[:size] for part, size in zip(gathered, own, strict=True)])

    def _complaint(self, batch: Dispatched) -> str:
        """Return what is inconsistent in this rank's arguments; empty if they are valid."""
        group = self.groups.dispatch
        if len(batch.sizes) != group.size:
            return f"{len(batch.sizes)} sizes for {group.size} ranks"
        if min(batch.sizes) < 0:
            return "a size below 0"
        own = batch.sizes[group.rank]
        if batch.ids.dim() != 2 or batch.ids.shape != batch.weights.shape:
            return f"top-k {list(batch.ids.shape)} with weights {list(batch.weights.shape)}"
        for tensor in (batch.hidden, batch.ids, *batch.extra):
            if not tensor.dim() or tensor.shape[0] != own:
                return f"{list(tensor.shape)} where it has {own} rows"
        return ""

    def _describe(self, batch: Dispatched) -> str:
        """Return the plan of a dispatch, which must be equal on all ranks."""
        tensors = (batch.hidden, batch.weights, batch.ids, *batch.extra)
        types = " ".join(
            f"{list(tensor.shape[1:])} {str(tensor.dtype).removeprefix('torch.')}"
            for tensor in tensors
        )
        return f"{self._plan}, sizes {' '.join(map(str, batch.sizes))}, rows of {types}"
