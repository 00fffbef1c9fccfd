"""Random requests, steps, preemptions and ends: no token ever gets another one's routing."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from tests.routed.engine import BLOCKS, Engine, Request
from tests.support.examples import examples

TOKENS = st.integers(0, 1)
"""Few, so that requests often begin alike."""


class Scheduling(RuleBasedStateMachine):
    shared = True
    device = "cpu"

    def __init__(self) -> None:
        super().__init__()
        self.engine = Engine(shared=self.shared, device=self.device)

    def pick(self, data: st.DataObject, running: bool) -> Request:
        return data.draw(st.sampled_from([own for own in self.requests if own.running is running]))

    @property
    def requests(self) -> list[Request]:
        return self.engine.requests

    def has(self, running: bool) -> bool:
        return any(own.running is running for own in self.requests)

    @precondition(lambda self: len(self.requests) < 5)
    @rule(
        prompt=st.lists(TOKENS, min_size=1, max_size=14),
        opted_in=st.sampled_from([True, True, False]),
        limit=st.integers(1, 9),
        external=st.sampled_from([0, 0, 0, 1, 2]),
    )
    def admit(self, prompt: list[int], opted_in: bool, limit: int, external: int) -> None:
        self.engine.start(self.engine.admit(prompt, opted_in, limit, external))

    @precondition(lambda self: self.has(False))
    @rule(data=st.data())
    def resume(self, data: st.DataObject) -> None:
        self.engine.start(self.pick(data, False))

    @precondition(lambda self: self.has(True) and len(self.engine.flying) < 3)
    @rule(
        data=st.data(),
        fresh=st.lists(TOKENS, min_size=1, max_size=7),
        broken=st.sampled_from([None, None, None, 0, 3]),
    )
    def step(self, data: st.DataObject, fresh: list[int], broken: int | None) -> None:
        wishes = []
        for request in self.requests:
            if request.running and request.computed < len(request.tokens):
                budget = data.draw(st.integers(0, 9), label=f"tokens of {request.name}")
                drafts = data.draw(st.integers(0, 3), label="drafts")
                good = data.draw(st.integers(0, 3), label="accepted of them")
                if budget:
                    wishes.append((request, budget, drafts, good))
        self.engine.step(wishes, fresh, broken)

    @precondition(lambda self: self.engine.flying)
    @rule()
    def deliver(self) -> None:
        self.engine.deliver()

    @precondition(lambda self: self.has(True))
    @rule(data=st.data())
    def preempt(self, data: st.DataObject) -> None:
        self.engine.preempt(self.pick(data, True))

    @precondition(lambda self: self.requests)
    @rule(data=st.data(), abandon=st.booleans())
    def end(self, data: st.DataObject, abandon: bool) -> None:
        self.engine.end(data.draw(st.sampled_from(self.requests)), abandon=abandon)

    @precondition(lambda self: self.has(True) and self.engine.known)
    @rule()
    def forget_cache(self) -> None:
        self.engine.forget_cache()

    @invariant()
    def only_running_requests_are_kept(self) -> None:
        kept = {own.name for own in self.requests if own.opted_in}
        assert len(self.engine.collector) == len(kept)
        if self.engine.collector.store is not None:
            assert len(self.engine.collector.store) <= BLOCKS

    def teardown(self) -> None:
        while self.engine.flying:
            self.engine.deliver()
        for request in list(self.requests):
            self.engine.end(request)
        assert len(self.engine.collector) == 0
        assert self.engine.worker.transfer is not None
        assert self.engine.worker.transfer.free == 2


class SchedulingWithoutBlocks(Scheduling):
    shared = False


often = settings(
    max_examples=examples(120),
    stateful_step_count=50,
    deadline=None,
    derandomize=True,
    database=None,
)
TestByBlock = Scheduling.TestCase
TestByBlock.settings = often
TestByRequest = SchedulingWithoutBlocks.TestCase
TestByRequest.settings = often
