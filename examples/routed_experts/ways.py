"""How a scheduler comes by its requests' routing: not at all, the old way, the new way."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from plan import Plan
from shared_memory_reference import SharedMemoryReference

from ncclscope_patches.routed_experts import (
    Collector,
    RoutedExperts,
    SlotStore,
    StepDelta,
    routed_tokens,
)
from ncclscope_patches.routed_experts.records import Ticket

if TYPE_CHECKING:
    from scheduler import Request

__all__ = ["NewWay", "OldWay", "Way", "way_of"]


class Way:
    """No routing. The others say what is different."""

    def admit(self, request: Request) -> None:
        """A request has come."""

    def renew(self, blocks: Sequence[int]) -> None:
        """KV blocks are about to get new content."""

    def attach(self, request: Request, blocks: Sequence[int], *, hits: bool = False) -> None:
        """A request's next tokens are in these blocks, those of a prefix-cache hit or new ones."""

    def schedule(self, request: Request, position: int, count: int) -> Ticket | None:
        """Tokens of a request are part of a step."""
        return None

    def deliver(self, tickets: Sequence[Ticket], delta: StepDelta | None) -> None:
        """The output of a step has come."""

    def preempt(self, request: Request) -> None:
        """A request has lost its blocks."""

    def finish(self, request: Request) -> RoutedExperts | None:
        """Return what the answer of a request that has ended says; it still has its blocks."""
        return None

    def close(self) -> None:
        """The scheduler ends."""


class OldWay(Way):
    """Reads the shared memory for each request that ends, whatever it asked for.

    Args:
        plan: Of the run.
        replica: Whose segment.
    """

    def __init__(self, plan: Plan, replica: int) -> None:
        self.plan = plan
        self._path = plan.segment(replica)
        self._segment: SharedMemoryReference | None = None

    def finish(self, request: Request) -> RoutedExperts | None:
        if not self.plan.read:
            return None
        if self._segment is None:
            # The worker has made it by now: it has run a step.
            self._segment = SharedMemoryReference(
                self.plan.shape, self.plan.slots, self._path, create=False
            )
        size = self.plan.block_size
        blocks = np.asarray(request.blocks, np.int64)
        slots = (blocks[:, None] * size + np.arange(size)).ravel()
        tokens = routed_tokens(request.prompt, request.generated)
        ids = self._segment.read(slots[:tokens])
        if not request.wanted:
            return None
        return RoutedExperts(ids, np.zeros(tokens, np.bool_), request.prompt)

    def close(self) -> None:
        if self._segment is not None:
            self._segment.close()


class NewWay(Way):
    """Collects what comes with the outputs of the steps.

    Args:
        plan: Of the run.
    """

    def __init__(self, plan: Plan) -> None:
        store = SlotStore(plan.shape, plan.block_size)
        self._collector = Collector(plan.shape, plan.block_size, store=store)

    def admit(self, request: Request) -> None:
        if request.wanted:
            self._collector.admit(request.name, request.prompt)

    def renew(self, blocks: Sequence[int]) -> None:
        self._collector.renew(blocks)

    def attach(self, request: Request, blocks: Sequence[int], *, hits: bool = False) -> None:
        self._collector.attach(request.name, blocks, hits=hits)

    def schedule(self, request: Request, position: int, count: int) -> Ticket | None:
        return self._collector.schedule(request.name, position, count)

    def deliver(self, tickets: Sequence[Ticket], delta: StepDelta | None) -> None:
        self._collector.deliver(tickets, delta)

    def preempt(self, request: Request) -> None:
        self._collector.preempt(request.name)

    def finish(self, request: Request) -> RoutedExperts | None:
        return self._collector.finish(request.name, request.generated)


def way_of(plan: Plan, replica: int) -> Way:
    """Return the way that a plan asks for, on a scheduler."""
    if plan.way == "old":
        return OldWay(plan, replica)
    return NewWay(plan) if plan.way == "new" else Way()
