"""A toy model of mixture-of-experts layers, over real collectives.

Each layer sums over the replica as attention does, routes, sends its tokens to the experts of all
workers, and takes them back. What it must come to is known, so mixed up rows are counted.
"""

from __future__ import annotations

import datetime
import time

import numpy as np
import torch
import torch.distributed as dist
from board import Entry
from plan import Plan
from truth import Numbers, routing

from ncclscope_patches.moe_dispatch import (
    Dispatched,
    ExpertGroups,
    ExpertPlacement,
    MoEDispatcher,
    RowGroup,
)
from ncclscope_patches.routed_experts.capture import CaptureBuffer

__all__ = ["Model", "TimedGroup", "make_groups"]

_FACTORS = 4
"""Number of values by which an expert may multiply."""
_JOIN = datetime.timedelta(minutes=2)


class TimedGroup(RowGroup):
    """A group whose longest call is noted.

    Args:
        group: The process group.
        entry: Where it is noted.
    """

    def __init__(self, group: dist.ProcessGroup | None, entry: Entry) -> None:
        super().__init__(group)
        self._entry = entry

    def gather(self, rows: torch.Tensor) -> torch.Tensor:
        begun = time.perf_counter()
        try:
            return super().gather(rows)
        finally:
            self._entry.most("wait_us", time.perf_counter() - begun)

    def scatter(self, rows: torch.Tensor) -> torch.Tensor:
        begun = time.perf_counter()
        try:
            return super().scatter(rows)
        finally:
            self._entry.most("wait_us", time.perf_counter() - begun)

    def sum(self, rows: torch.Tensor) -> torch.Tensor:
        begun = time.perf_counter()
        try:
            return super().sum(rows)
        finally:
            self._entry.most("wait_us", time.perf_counter() - begun)


def make_groups(plan: Plan, rank: int, entry: Entry) -> ExpertGroups:
    """Join the workers, whose collectives then have the plan's timeout."""
    dist.init_process_group(
        "gloo",
        init_method=plan.meeting("workers"),
        rank=rank,
        world_size=plan.world_size,
        timeout=_JOIN,
    )

    def own(families: list[range], name: str) -> TimedGroup:
        found = None
        for ranks in families:
            if len(ranks) > 1:
                timeout = datetime.timedelta(seconds=plan.timeout)
                group = dist.new_group(list(ranks), timeout=timeout, group_desc=name)
                found = group if rank in ranks else found
        return TimedGroup(found, entry)

    world, tp = plan.world_size, plan.tp
    expert = own([range(world)], "ep")
    tensor = own([range(first, first + tp) for first in range(0, world, tp)], "tp")
    peers = own([range(first, world, tp) for first in range(tp)], "dp")
    return ExpertGroups(expert, expert if tp == 1 else peers, tensor, expert, tp == 1)


class Model:
    """One worker's part of it.

    Args:
        plan: Of the run.
        groups: Where collectives are posted.
        capture: What the layers write their routing to.
        entry: Where wrong rows are counted.
    """

    def __init__(
        self, plan: Plan, groups: ExpertGroups, capture: CaptureBuffer, entry: Entry
    ) -> None:
        self.plan = plan
        self.groups = groups
        self._entry = entry
        placement = ExpertPlacement(plan.experts, groups.expert.size)
        # Sizes are agreed on once a step, and nothing else can differ.
        self._dispatcher = MoEDispatcher(groups, placement, strategy="always", verify=False)
        self._sinks = [capture.layer(number) for number in range(plan.layers)]

    def forward(self, tokens: Numbers, positions: Numbers) -> None:
        """Run all layers on a batch; every worker has to."""
        plan, rows = self.plan, len(tokens)
        sizes = self._dispatcher.agree(rows)
        ids = torch.from_numpy(
            routing(tokens, positions, plan.layers, plan.top_k, plan.experts)
        ).transpose(0, 1)
        weights = torch.full((rows, plan.top_k), 1 / plan.top_k)
        values = torch.from_numpy((tokens % 64 + 1).astype(np.float32))
        own = values.unsqueeze(1).repeat(1, plan.hidden)
        for number, sink in enumerate(self._sinks):
            hidden = self.groups.tensor.sum(own.clone()) / plan.tp
            chosen = ids[number].contiguous()
            sink(chosen)
            sent = self._dispatcher.dispatch(hidden, weights, chosen, sizes)
            found = self._dispatcher.combine(sent, self._experts(sent))
            expected = own * (chosen % _FACTORS + 1).float().mean(dim=1, keepdim=True)
            wrong = ~torch.isclose(found, expected).all(dim=1)
            if wrong.any():
                self._entry.add("wrong_rows", int(wrong.sum()))

    def _experts(self, sent: Dispatched) -> torch.Tensor:
        """Return the output of this worker's experts for some rows."""
        owned = self._dispatcher.owned
        here = (sent.ids >= owned.start) & (sent.ids < owned.stop)
        factors = (sent.ids % _FACTORS + 1) * sent.weights * here
        return sent.hidden * factors.sum(dim=1, keepdim=True)
