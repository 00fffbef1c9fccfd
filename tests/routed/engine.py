"""A scheduler, a KV cache and a model, as small as can be, around the real pipeline.

Routing is a digest of all tokens up to the one that is routed. So a row that belongs to any other
content, of another request or of a rejected draft, is known as such wherever it turns up.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from hashlib import blake2b

import numpy as np
import torch

from ncclscope_patches.routed_experts import (
    Collector,
    RequestRows,
    RoutedExperts,
    RoutingShape,
    SlotStore,
)
from ncclscope_patches.routed_experts.capture import CaptureBuffer
from ncclscope_patches.routed_experts.records import Ticket
from ncclscope_patches.routed_experts.transfer import Flight
from ncclscope_patches.routed_experts.worker import RoutedExpertsWorker

SHAPE = RoutingShape(layers=2, top_k=2, experts=60_000)
BLOCK = 4
BLOCKS = 9
BATCH = 40


def truth(tokens: Sequence[int]) -> list[list[int]]:
    """Routing of the last of some tokens, ``[layers][top_k]``."""
    digest = blake2b(bytes(tokens), digest_size=16).digest()
    numbers = [int.from_bytes(digest[at : at + 4], "big") % SHAPE.experts for at in (0, 4, 8, 12)]
    return [numbers[:2], numbers[2:]]


@dataclass(eq=False)
class Request:
    """One request.

    Attributes:
        name: Its id.
        tokens: Those of the prompt, and all that were generated.
        prompt: How many the prompt has.
        opted_in: Whether it wants its routing.
        limit: Tokens to be generated.
        external: Blocks whose KV comes from elsewhere, after those of a prefix-cache hit.
        computed: Tokens that have been scheduled and accepted.
        answered: Generated tokens that have come back.
        blocks: KV blocks; each with the number of its content.
        attempts: Those of this attempt and of all before.
        parts: What a stream got.
    """

    name: str
    tokens: list[int]
    prompt: int
    opted_in: bool
    limit: int
    external: int = 0
    computed: int = 0
    answered: int = 0
    blocks: list[tuple[int, int]] = field(default_factory=list)
    attempts: list[list[tuple[int, int]]] = field(default_factory=list)
    parts: list[RoutedExperts] = field(default_factory=list)
    running: bool = False
    ended: bool = False


@dataclass(frozen=True)
class Planned:
    """A request's part of a step: rows from a position on, drafts, and how many are accepted."""

    request: Request
    position: int
    tokens: tuple[int, ...]
    pending_calls: int
    answers: int
    blocks: list[tuple[int, int]]


@dataclass(frozen=True)
class Launched:
    """A step in flight."""

    plan: tuple[Planned, ...]
    tickets: tuple[Ticket, ...]
    flight: Flight | None
    broken: frozenset[tuple[str, int]]
    """Rows for which a router gave an expert that does not exist."""


class Engine:
    """All of it.

    Args:
        shared: Whether routing is kept by KV block, for prefix-cache hits.
        depth: Steps for which the worker has a place.
        device: Where the model is.
    """

    def __init__(self, *, shared: bool = True, depth: int = 2, device: str = "cpu") -> None:
        store = SlotStore(SHAPE, BLOCK) if shared else None
        self.collector = Collector(SHAPE, BLOCK, store=store)
        self.capture = CaptureBuffer(SHAPE, BATCH, device)
        self.worker = RoutedExpertsWorker(self.capture, depth=depth)
        self.shared = shared
        self.requests: list[Request] = []
        self.flying: deque[Launched] = deque()
        self.free = deque(range(BLOCKS))
        self.users: Counter[int] = Counter()
        self.content = [0] * BLOCKS
        self.known: dict[tuple[int, ...], int] = {}
        """KV blocks by all tokens up to their ends."""
        self.captured: set[tuple[int, int, int] | tuple[str, int]] = set()
        """What has been delivered: places in contents of blocks, or in requests."""
        self.admitted = 0

    # What the scheduler does.

    def admit(self, prompt: list[int], opted_in: bool, limit: int, external: int) -> Request:
        self.admitted += 1
        name = f"r{self.admitted}"
        request = Request(name, list(prompt), len(prompt), opted_in, limit, external)
        self.requests.append(request)
        if opted_in:
            self.collector.admit(name, len(prompt))
        return request

    def start(self, request: Request) -> None:
        """Give it the blocks that hold its first tokens already, and those that come by mail."""
        most = (len(request.tokens) - 1) // BLOCK
        hits: list[int] = []
        while len(hits) < most:
            block = self.known.get(tuple(request.tokens[: (len(hits) + 1) * BLOCK]))
            if block is None:
                break
            hits.append(block)
        for block in hits:
            if not self.users[block]:
                self.free.remove(block)
            self.users[block] += 1
        request.blocks = []
        self._attach(request, hits, hits=True)
        mailed = min(request.external, most - len(hits))
        if not self._allocate(request, (len(hits) + mailed) * BLOCK):
            mailed = 0
        request.computed = (len(hits) + mailed) * BLOCK
        self._publish(request)
        request.running = True

    def step(
        self,
        wishes: Sequence[tuple[Request, int, int, int]],
        fresh: Sequence[int],
        broken: int | None = None,
    ) -> None:
        """Launch a step.

        Args:
            wishes: Requests, each with at most some tokens of a prompt, drafts, accepted drafts.
            fresh: Tokens to be generated and drafted, used over and over.
            broken: Row for which the first layer's router gives nonsense.
        """
        stream = iter(fresh * BATCH)
        plan: list[Planned] = []
        rows: list[RequestRows] = []
        tickets: list[Ticket] = []
        batch: list[list[list[int]]] = []
        names: list[tuple[str, int]] = []
        for request, budget, drafts, good in wishes:
            left = len(request.tokens) - request.computed
            decode = left == 1
            tail = [next(stream) for _ in range(drafts)] if decode else []
            count = min(budget, left) + len(tail)
            # The scheduler counts on the drafts of steps that have not come back.
            ahead = sum(
                len(own.tokens) - own.pending_calls
                for launched in self.flying
                for own in launched.plan
                if own.request is request and own.blocks is request.blocks
            )
            end = request.computed + ahead + count
            if len(batch) + count > BATCH or not self._allocate(request, end):
                continue
            position = request.computed
            pending_calls = min(1 + good, count) if decode else count
            used = (request.tokens + tail)[position : position + count]
            answers = 0
            if decode:
                request.tokens += tail[: pending_calls - 1]
            if position + pending_calls == len(request.tokens):
                request.tokens.append(next(stream))
                answers = pending_calls if decode else 1
            request.computed = position + pending_calls
            self._publish(request)
            before = request.tokens[:position]
            own = Planned(request, position, tuple(used), pending_calls, answers, request.blocks)
            plan.append(own)
            ticket = self.collector.schedule(request.name, position + ahead, count)
            assert (ticket is None) is not request.opted_in
            if ticket is not None:
                tickets.append(ticket)
                rows.append(RequestRows(request.name, len(batch), count))
            for number in range(count):
                batch.append(truth(before + list(used[: number + 1])))
                names.append((request.name, number))
        if not plan:
            return
        bad: set[tuple[str, int]] = set()
        if broken is not None:
            batch[broken % len(batch)][0][1] = SHAPE.experts
            bad.add(names[broken % len(batch)])
        self.worker.begin_step(rows)
        ids = torch.tensor(batch, device=self.capture.device)
        for layer in range(SHAPE.layers):
            self.capture.layer(layer)(ids[:, layer])
        flight = self.worker.end_step()
        self.flying.append(Launched(tuple(plan), tuple(tickets), flight, frozenset(bad)))

    def deliver(self) -> None:
        """Take the output of the oldest step in flight."""
        step = self.flying.popleft()
        delta = None if step.flight is None else step.flight.take()
        self.collector.deliver(
            step.tickets,
            delta,
            {own.request.name: own.pending_calls for own in step.plan},
            {own.request.name: own.position for own in step.plan},
        )
        for own in step.plan:
            if delta is not None and own.request.opted_in:
                self._note(own, step.broken)
            if not own.request.ended:
                own.request.answered += own.answers
        for own in step.plan:
            request = own.request
            if request.ended:
                continue
            part = self.collector.take(request.name, request.answered)
            assert (part is None) is not request.opted_in
            if part is not None:
                self.check(request, part)
                request.parts.append(part)
            if request.answered >= request.limit:
                self.end(request)

    def preempt(self, request: Request) -> None:
        """Take its blocks away; it will be computed again, from its first token on."""
        self._release(request)
        self.collector.preempt(request.name)
        if request.blocks:
            request.attempts.append(request.blocks)
        request.blocks = []
        request.computed = 0
        request.running = False

    def end(self, request: Request, *, abandon: bool = False) -> None:
        """End it with as many tokens as have come back, and check what it gets."""
        self._release(request)
        request.ended = True
        self.requests.remove(request)
        if abandon:
            self.collector.abort(request.name)
            return
        result = self.collector.finish(request.name, request.answered)
        assert (result is None) is not request.opted_in
        if result is None:
            return
        assert result.tokens == request.prompt + max(request.answered - 1, 0)
        self.check(request, result)
        for part in request.parts:
            here = result.part(part.first, part.first + part.tokens)
            assert not (here.missing & ~part.missing).any()
            assert np.array_equal(here.ids[~part.missing], part.ids[~part.missing])
        ends = [part.first + part.tokens for part in request.parts]
        assert [part.first for part in request.parts] == [0, *ends][: len(ends)]

    def forget_cache(self) -> None:
        """Reset the prefix cache, for which nobody may use it."""
        for request in self.requests:
            if request.running:
                self.preempt(request)
        self.known.clear()
        if self.collector.store is not None:
            self.collector.store.clear()

    # What it is held against.

    def check(self, request: Request, result: RoutedExperts) -> None:
        """Every token's routing is its own, or missing; and missing only what never came."""
        assert result.ids.dtype == SHAPE.dtype
        assert result.missing_count == sum(length for _, length in result.missing_runs)
        for number in range(result.tokens):
            position = result.first + number
            expected = self._expected(request, position)
            assert result.missing[number] == (not expected), (request.name, position)
            if expected:
                assert result.ids[number].tolist() == truth(request.tokens[: position + 1])
            else:
                assert not result.ids[number].any()

    def _expected(self, request: Request, position: int) -> bool:
        if not self.shared:
            return (request.name, position) in self.captured
        number, offset = divmod(position, BLOCK)
        return any(
            number < len(blocks) and (*blocks[number], offset) in self.captured
            for blocks in [*request.attempts, request.blocks]
        )

    def _note(self, own: Planned, broken: frozenset[tuple[str, int]]) -> None:
        for number in range(own.pending_calls):
            if (own.request.name, number) in broken:
                continue
            block, offset = divmod(own.position + number, BLOCK)
            self.captured.add((own.request.name, own.position + number))
            self.captured.add((*own.blocks[block], offset))

    # The KV cache.

    def _allocate(self, request: Request, tokens: int) -> bool:
        need = -(-tokens // BLOCK) - len(request.blocks)
        if need > len(self.free):
            return False
        fresh = [self.free.popleft() for _ in range(max(need, 0))]
        for block in fresh:
            self.known = {key: own for key, own in self.known.items() if own != block}
            self.content[block] += 1
            self.users[block] = 1
        self.collector.renew(fresh)
        self._attach(request, fresh)
        return True

    def _attach(self, request: Request, blocks: Sequence[int], *, hits: bool = False) -> None:
        self.collector.attach(request.name, blocks, hits=hits)
        request.blocks.extend((block, self.content[block]) for block in blocks)

    def _publish(self, request: Request) -> None:
        """Offer full blocks to later requests, as vLLM does: before they have been computed."""
        for number in range(request.computed // BLOCK):
            key = tuple(request.tokens[: (number + 1) * BLOCK])
            self.known.setdefault(key, request.blocks[number][0])

    def _release(self, request: Request) -> None:
        for block, _ in request.blocks if request.running else ():
            self.users[block] -= 1
            if not self.users[block]:
                self.free.append(block)
