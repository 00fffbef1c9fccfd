"""Which tokens of which requests make up a step: continuous batching on KV blocks.

Prompts are computed in chunks, beside the requests that generate. A step is scheduled before the
one ahead of it has come back: of the token that it will bring, the position is known.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from blocks import BlockPool, block_keys
from plan import Plan
from ways import Way

from ncclscope_patches.routed_experts import RoutedExperts, StepDelta
from ncclscope_patches.routed_experts.records import Ticket

__all__ = ["UNKNOWN", "Finished", "Planned", "Request", "Scheduler", "Step"]

UNKNOWN = -1
"""In place of a token that a step in flight will bring; the worker knows it by then."""


@dataclass(eq=False)
class Request:
    """One request.

    Attributes:
        name: Its id.
        tokens: Those of the prompt, and the generated ones that have come back.
        prompt: How many the prompt has.
        limit: Tokens to be generated.
        wanted: Whether it opted in.
        keys: Of its prompt's full blocks, in the prefix cache.
        blocks: Its KV blocks.
        computed: Tokens that have been scheduled.
        sampled: Tokens whose generation has been scheduled.
        flying: Steps in flight that it is part of.
        published: Blocks that the prefix cache has been offered.
    """

    name: str
    tokens: list[int]
    prompt: int
    limit: int
    wanted: bool
    keys: list[bytes] = field(default_factory=list)
    blocks: list[int] = field(default_factory=list)
    computed: int = 0
    sampled: int = 0
    flying: int = 0
    published: int = 0

    @property
    def total(self) -> int:
        """Tokens that it has, those on their way included."""
        return self.prompt + self.sampled

    @property
    def generated(self) -> int:
        """Generated tokens that have come back."""
        return len(self.tokens) - self.prompt


@dataclass(frozen=True)
class Planned:
    """A request's part of a step.

    Attributes:
        request: Whose.
        position: Of its first token of the step.
        count: How many they are.
        samples: Whether a token is generated after the last one.
        blocks: Its KV blocks, as they are in this step.
    """

    request: Request
    position: int
    count: int
    samples: bool
    blocks: tuple[int, ...]

    @property
    def tokens(self) -> list[int]:
        """Those of the step, as far as they are known."""
        known = self.request.tokens[self.position : self.position + self.count]
        return known + [UNKNOWN] * (self.count - len(known))


@dataclass(frozen=True)
class Step:
    """A step. Without parts it is a dummy.

    Attributes:
        parts: In the order of the batch.
        tickets: Where its routing will go.
    """

    parts: Sequence[Planned] = ()
    tickets: Sequence[Ticket] = ()


@dataclass(frozen=True)
class Finished:
    """A request that has ended, and its routing if it gets any."""

    request: Request
    routed: RoutedExperts | None


class Scheduler:
    """Requests of one replica.

    Args:
        plan: Of the run.
        way: How their routing is come by.

    Attributes:
        preemptions: How often a request lost its blocks.
        cached_tokens: Tokens that were not computed since the prefix cache had them.
        routing_seconds: That went into routing, of outputs and of requests that ended.
    """

    def __init__(self, plan: Plan, way: Way) -> None:
        self.plan = plan
        self.way = way
        self.pool = BlockPool(plan.blocks)
        self.waiting: deque[Request] = deque()
        self.running: list[Request] = []
        self.preemptions = self.cached_tokens = 0
        self.routing_seconds = 0.0

    @property
    def busy(self) -> bool:
        """Whether a request has not ended."""
        return bool(self.waiting or self.running)

    def add(self, request: Request) -> None:
        """Take a request that fits into the KV cache."""
        request.keys = block_keys(request.tokens[: request.prompt], self.plan.block_size)
        self.way.admit(request)
        self.waiting.append(request)

    def schedule(self) -> Step:
        """Return the next step."""
        parts: list[Planned] = []
        tickets: list[Ticket] = []
        budget = self.plan.budget
        preempted = False
        for request in list(self.running):
            if request not in self.running or request.sampled == request.limit:
                continue
            count = min(request.total - request.computed, budget)
            if not count:
                break
            while not self._grow(request, request.computed + count):
                preempted = True
                if self._preempt_one(parts) is request:
                    break
            else:
                budget -= self._plan(request, count, parts, tickets)
        while self.waiting and budget and not preempted and len(self.running) < self.plan.running:
            request = self.waiting[0]
            # One that was preempted waits for its own tokens.
            if request.flying or not self._start(request, budget):
                break
            self.waiting.popleft()
            self.running.append(request)
            count = min(request.total - request.computed, budget)
            budget -= self._plan(request, count, parts, tickets)
        return Step(parts, tickets)

    def update(self, step: Step, sampled: Sequence[int], delta: StepDelta | None) -> list[Finished]:
        """Take the output of the oldest step in flight.

        Args:
            step: The step.
            sampled: Of each part, the token that was generated; anything where none was.
            delta: The routing that came with it.

        Returns:
            The requests that have ended with it.
        """
        begun = time.perf_counter()
        self.way.deliver(step.tickets, delta)
        self.routing_seconds += time.perf_counter() - begun
        ended = []
        for part, token in zip(step.parts, sampled, strict=True):
            request = part.request
            request.flying -= 1
            if part.samples:
                request.tokens.append(token)
                if request.generated == request.limit:
                    ended.append(request)
        return [self._finish(request) for request in ended]

    def _finish(self, request: Request) -> Finished:
        begun = time.perf_counter()
        routed = self.way.finish(request)
        self.routing_seconds += time.perf_counter() - begun
        self.running.remove(request)
        self.pool.release(reversed(request.blocks))
        return Finished(request, routed)

    def _plan(
        self, request: Request, count: int, parts: list[Planned], tickets: list[Ticket]
    ) -> int:
        """Make tokens of a request part of a step; return how many."""
        position = request.computed
        request.computed += count
        samples = request.computed == request.total
        request.sampled += samples
        request.flying += 1
        ticket = self.way.schedule(request, position, count)
        if ticket is not None:
            tickets.append(ticket)
        parts.append(Planned(request, position, count, samples, tuple(request.blocks)))
        # As vLLM does: before they have been computed. No step overtakes another.
        full = min(request.computed // self.plan.block_size, len(request.keys))
        for number in range(request.published, full):
            self.pool.publish(request.blocks[number], request.keys[number])
        request.published = max(request.published, full)
        return count

    def _start(self, request: Request, budget: int) -> bool:
        """Give a waiting request its first blocks, if there are enough."""
        size = self.plan.block_size
        hits = self.pool.hits(request.keys[: (request.total - 1) // size])
        cached = len(hits) * size
        self.pool.share(hits)
        request.blocks = list(hits)
        self.way.attach(request, hits, hits=True)
        if not self._grow(request, cached + min(request.total - cached, budget)):
            self.pool.release(reversed(hits))
            request.blocks = []
            self.way.preempt(request)
            return False
        request.computed = cached
        request.published = len(hits)
        self.cached_tokens += cached
        return True

    def _grow(self, request: Request, tokens: int) -> bool:
        need = -(-tokens // self.plan.block_size) - len(request.blocks)
        if need <= 0:
            return True
        fresh = self.pool.allocate(need)
        if fresh is None:
            return False
        request.blocks += fresh
        self.way.renew(fresh)
        self.way.attach(request, fresh)
        return True

    def _preempt_one(self, parts: Sequence[Planned]) -> Request:
        """Take the blocks of the newest request that is not part of the step; return it."""
        planned = {part.request.name for part in parts}
        request = next(
            request
            for request in reversed(self.running)
            if request.name not in planned and request.sampled < request.limit
        )
        self.running.remove(request)
        self.pool.release(reversed(request.blocks))
        self.way.preempt(request)
        request.blocks = []
        request.computed = request.published = 0
        self.waiting.appendleft(request)
        self.preemptions += 1
        return request
