"""The scheduler's side, one case at a time."""

from __future__ import annotations

import gc

import numpy as np
import pytest

from ncclscope.errors import UsageError
from ncclscope_patches.routed_experts import Collector, RoutingShape, SlotStore, StepDelta
from ncclscope_patches.routed_experts.shape import Ids
from ncclscope_patches.routed_experts.slots import Page
from tests.routed.rows import SHAPE, delta, rows

BLOCK = 4


@pytest.fixture
def store() -> SlotStore:
    return SlotStore(SHAPE, BLOCK)


@pytest.fixture
def collector(store: SlotStore) -> Collector:
    return Collector(SHAPE, BLOCK, store=store)


def compute(
    collector: Collector, request: str, position: int, ids: Ids, accepted: int | None = None
) -> None:
    """Schedule some tokens, and deliver them."""
    ticket = collector.schedule(request, position, len(ids))
    assert ticket is not None
    pending_calls = None if accepted is None else {request: accepted}
    collector.deliver([ticket], delta(**{request: ids}), pending_calls)


def give(collector: Collector, request: str, blocks: list[int]) -> None:
    """Give new blocks to a request."""
    collector.renew(blocks)
    collector.attach(request, blocks)


def test_steps_are_put_together() -> None:
    collector = Collector(SHAPE)
    collector.admit("a", 5)
    compute(collector, "a", 0, rows(0, 3))
    compute(collector, "a", 3, rows(3, 2))
    compute(collector, "a", 5, rows(5, 1))

    result = collector.finish("a", 2)

    assert result is not None
    assert np.array_equal(result.ids, rows(0, 6))
    assert result.ids.dtype == np.uint8
    assert result.missing_count == 0
    assert (result.prompt.tokens, result.generation.tokens) == (5, 1)
    assert np.array_equal(result.generation.ids, rows(5, 1))
    assert len(collector) == 0


@pytest.mark.parametrize(("generated", "tokens"), [(0, 5), (1, 5), (2, 6), (4, 8)])
def test_the_last_token_of_an_answer_is_not_routed(generated: int, tokens: int) -> None:
    collector = Collector(SHAPE)
    collector.admit("a", 5)
    compute(collector, "a", 0, rows(0, 10))
    result = collector.finish("a", generated)
    assert result is not None
    assert result.tokens == tokens
    assert np.array_equal(result.ids, rows(0, tokens))


def test_what_was_never_computed_is_missing() -> None:
    collector = Collector(SHAPE)
    collector.admit("a", 9)
    compute(collector, "a", 2, rows(2, 3))
    result = collector.finish("a", 0)
    assert result is not None
    assert result.missing_runs == ((0, 2), (5, 4))
    assert result.missing_count == 6
    assert np.array_equal(result.ids[2:5], rows(2, 3))
    assert not result.ids[5:].any()


def test_rejected_drafts_are_clipped() -> None:
    collector = Collector(SHAPE)
    collector.admit("a", 2)
    compute(collector, "a", 0, rows(0, 2))
    compute(collector, "a", 2, rows(90, 4), accepted=2)
    result = collector.finish("a", 9)
    assert result is not None
    assert np.array_equal(result.ids[2:4], rows(90, 2))
    assert result.missing_runs == ((4, 6),)


def test_more_cannot_be_accepted_than_was_scheduled() -> None:
    collector = Collector(SHAPE)
    collector.admit("a", 2)
    compute(collector, "a", 0, rows(0, 2), accepted=7)
    result = collector.finish("a", 2)
    assert result is not None
    assert result.missing_runs == ((2, 1),)


def test_rows_of_a_step_that_was_scheduled_past_rejected_drafts_move_back() -> None:
    collector = Collector(SHAPE)
    collector.admit("a", 1)
    first = collector.schedule("a", 0, 3)
    second = collector.schedule("a", 3, 1)
    assert first is not None
    assert second is not None
    collector.deliver([first], delta(a=rows(0, 3)), {"a": 1})
    collector.deliver([second], delta(a=rows(1, 1)), {"a": 1}, {"a": 1})
    result = collector.finish("a", 2)
    assert result is not None
    assert np.array_equal(result.ids, rows(0, 2))
    assert result.missing_count == 0


def test_a_prefix_cache_hit_finds_what_an_earlier_request_left(collector: Collector) -> None:
    collector.admit("a", 8)
    give(collector, "a", [3, 5])
    compute(collector, "a", 0, rows(0, 8))
    collector.finish("a", 1)

    collector.admit("b", 10)
    collector.attach("b", [3, 5], hits=True)
    give(collector, "b", [7])
    compute(collector, "b", 8, rows(40, 2))
    result = collector.finish("b", 1)

    assert result is not None
    assert result.missing_count == 0
    assert np.array_equal(result.ids, np.concatenate([rows(0, 8), rows(40, 2)]))


def test_a_hit_on_blocks_that_are_still_being_computed(collector: Collector) -> None:
    collector.admit("a", 4)
    give(collector, "a", [3])
    ticket = collector.schedule("a", 0, 4)
    assert ticket is not None
    collector.admit("b", 5)
    collector.attach("b", [3], hits=True)
    collector.abort("a")
    collector.deliver([ticket], delta(a=rows(0, 4)))
    result = collector.finish("b", 0)
    assert result is not None
    assert np.array_equal(result.ids[:4], rows(0, 4))
    assert result.missing_runs == ((4, 1),)


def test_a_hit_on_blocks_of_a_request_that_did_not_opt_in_is_missing(collector: Collector) -> None:
    collector.admit("a", 4)
    give(collector, "a", [3])
    compute(collector, "a", 0, rows(0, 4))
    collector.finish("a", 1)
    give(collector, "n", [3])
    assert collector.schedule("n", 0, 4) is None

    collector.admit("b", 5)
    collector.attach("b", [3], hits=True)
    result = collector.finish("b", 0)

    assert result is not None
    assert result.missing_count == 5


def test_blocks_that_come_from_elsewhere_are_missing(collector: Collector) -> None:
    for request in ("a", "b"):
        collector.admit(request, 6)
        give(collector, request, [1, 2])
        if request == "a":
            compute(collector, "a", 0, rows(0, 6))
            collector.finish("a", 1)
    compute(collector, "b", 4, rows(60, 2))
    result = collector.finish("b", 1)
    assert result is not None
    assert result.missing_runs == ((0, 4),)
    assert np.array_equal(result.ids[4:], rows(60, 2))


def test_a_block_that_is_used_again_before_its_step_has_come_back(collector: Collector) -> None:
    collector.admit("a", 4)
    give(collector, "a", [3])
    late = collector.schedule("a", 0, 4)
    assert late is not None
    collector.abort("a")
    collector.admit("b", 4)
    give(collector, "b", [3])
    collector.deliver([late], delta(a=rows(0, 4)))
    nothing = collector.finish("b", 0)
    assert nothing is not None
    assert nothing.missing_count == 4
    collector.admit("c", 5)
    collector.attach("c", [3], hits=True)
    result = collector.finish("c", 0)
    assert result is not None
    assert result.missing_count == 5


def test_a_block_that_is_used_again_before_its_request_has_ended(collector: Collector) -> None:
    collector.admit("a", 4)
    give(collector, "a", [3])
    compute(collector, "a", 0, rows(0, 4))
    collector.preempt("a")
    collector.admit("b", 4)
    give(collector, "b", [3])
    compute(collector, "b", 0, rows(50, 4))
    result = collector.finish("a", 1)
    assert result is not None
    assert np.array_equal(result.ids, rows(0, 4))


def test_of_two_attempts_the_longer_fills_what_the_first_left_open(collector: Collector) -> None:
    collector.admit("a", 8)
    give(collector, "a", [1, 2])
    compute(collector, "a", 0, rows(0, 3))
    collector.preempt("a")
    give(collector, "a", [3, 4])
    compute(collector, "a", 0, rows(0, 6))
    result = collector.finish("a", 0)
    assert result is not None
    assert np.array_equal(result.ids[:6], rows(0, 6))
    assert result.missing_runs == ((6, 2),)


def test_of_two_attempts_the_first_counts_where_both_know(collector: Collector) -> None:
    collector.admit("a", 6)
    give(collector, "a", [1, 2])
    compute(collector, "a", 0, rows(0, 6))
    before = collector.take("a", 1)
    collector.preempt("a")
    give(collector, "a", [3, 4])
    compute(collector, "a", 0, rows(70, 6))
    after = collector.finish("a", 1)
    assert before is not None
    assert after is not None
    assert np.array_equal(after.ids, rows(0, 6))
    assert np.array_equal(after.ids, before.ids)
    # Whoever shares the new blocks has what they were computed with.
    collector.admit("b", 5)
    collector.attach("b", [3], hits=True)
    shared = collector.finish("b", 0)
    assert shared is not None
    assert np.array_equal(shared.ids[:4], rows(70, 4))


def test_a_token_that_is_computed_again_unseen_is_missing(collector: Collector) -> None:
    collector.admit("a", 4)
    give(collector, "a", [1])
    compute(collector, "a", 0, rows(0, 4))
    ticket = collector.schedule("a", 2, 2)
    assert ticket is not None
    unseen = np.array([True, False])
    collector.deliver([ticket], StepDelta({"a": rows(60, 2)}, {"a": unseen}))
    result = collector.finish("a", 1)
    assert result is not None
    assert result.missing_runs == ((2, 1),)
    assert np.array_equal(result.ids[3:], rows(61, 1))


def test_a_step_in_flight_at_a_preemption_still_counts(collector: Collector) -> None:
    collector.admit("a", 4)
    give(collector, "a", [1])
    ticket = collector.schedule("a", 0, 4)
    assert ticket is not None
    for block in range(2, 6):
        collector.preempt("a")
        give(collector, "a", [block])
    collector.deliver([ticket], delta(a=rows(0, 4)))
    result = collector.finish("a", 1)
    assert result is not None
    assert np.array_equal(result.ids, rows(0, 4))


@pytest.mark.slow
@pytest.mark.parametrize(("tokens", "more"), [(40, 0), (38, 1)])
def test_preemptions_do_not_pile_up_what_was_captured(tokens: int, more: int) -> None:
    shape = RoutingShape(layers=5, top_k=3, experts=16)
    collector = Collector(shape, BLOCK)
    collector.admit("a", tokens)
    sizes = []
    for _ in range(12):
        compute(collector, "a", 0, rows(0, tokens, shape))
        collector.preempt("a")
        gc.collect()
        pages = [own for own in gc.get_objects() if type(own) is Page and own.shape == shape]
        sizes.append(sum(page.nbytes for page in pages))
    # Of all full pages one is kept; the last one is not full, and every attempt's own is.
    page = BLOCK * shape.token_bytes
    assert sizes == [(10 + attempt * more) * page for attempt in range(12)]


def test_a_stream_gets_each_token_once() -> None:
    collector = Collector(SHAPE, BLOCK)
    collector.admit("a", 6)
    compute(collector, "a", 0, rows(0, 4))
    parts = [collector.take("a", 0)]
    compute(collector, "a", 4, rows(4, 2))
    parts.append(collector.take("a", 1))
    for number in range(3):
        compute(collector, "a", 6 + number, rows(6 + number, 1))
        parts.append(collector.take("a", 2 + number))
    whole = collector.finish("a", 4)
    assert whole is not None
    sizes = [(part.first, part.tokens) for part in parts if part is not None]
    assert sizes == [(0, 0), (0, 6), (6, 1), (7, 1), (8, 1)]
    assert np.array_equal(whole.ids, rows(0, 9))
    assert [part.missing_count for part in parts if part is not None] == [0] * 5


def test_a_request_that_did_not_opt_in_leaves_no_trace(collector: Collector) -> None:
    collector.attach("n", [1])
    assert collector.schedule("n", 0, 3) is None
    collector.preempt("n")
    assert collector.take("n", 1) is None
    assert collector.finish("n", 1) is None
    collector.abort("n")
    assert len(collector) == 0
    assert collector.store is not None
    assert len(collector.store) == 0


def test_rows_that_were_not_captured_are_missing() -> None:
    collector = Collector(SHAPE)
    collector.admit("a", 3)
    ticket = collector.schedule("a", 0, 3)
    assert ticket is not None
    collector.deliver([ticket], StepDelta({"a": rows(0, 3)}, {"a": np.array([False, True, False])}))
    result = collector.finish("a", 1)
    assert result is not None
    assert result.missing_runs == ((1, 1),)
    assert not result.ids[1].any()


def test_a_step_that_never_came_is_missing() -> None:
    collector = Collector(SHAPE)
    collector.admit("a", 3)
    tickets = [collector.schedule("a", 0, 2), collector.schedule("a", 2, 1)]
    collector.deliver([own for own in tickets[:1] if own], None)
    collector.deliver([own for own in tickets[1:] if own], delta(a=rows(2, 1)))
    result = collector.finish("a", 1)
    assert result is not None
    assert result.missing_runs == ((0, 2),)


def test_a_name_that_is_used_again_gets_nothing_of_the_first() -> None:
    collector = Collector(SHAPE)
    collector.admit("a", 3)
    late = collector.schedule("a", 0, 3)
    collector.abort("a")
    collector.admit("a", 3)
    assert late is not None
    collector.deliver([late], delta(a=rows(0, 3)))
    result = collector.finish("a", 1)
    assert result is not None
    assert result.missing_count == 3


def test_a_store_keeps_no_more_pages_than_it_may() -> None:
    store = SlotStore(SHAPE, BLOCK, max_pages=2)
    collector = Collector(SHAPE, BLOCK, store=store)
    collector.admit("a", 12)
    give(collector, "a", [0, 1, 2])
    compute(collector, "a", 0, rows(0, 12))
    own = collector.finish("a", 1)
    collector.admit("b", 13)
    collector.attach("b", [0, 1, 2], hits=True)
    shared = collector.finish("b", 0)
    assert own is not None
    assert shared is not None
    assert own.missing_count == 0
    assert len(store) == 2
    assert shared.missing_runs == ((0, 4), (12, 1))


def test_a_reset_forgets_the_cache(collector: Collector, store: SlotStore) -> None:
    collector.admit("a", 4)
    give(collector, "a", [3])
    compute(collector, "a", 0, rows(0, 4))
    assert store.nbytes == 4 * SHAPE.token_bytes
    store.clear()
    collector.admit("b", 5)
    collector.attach("b", [3], hits=True)
    result = collector.finish("b", 0)
    assert result is not None
    assert result.missing_count == 5
    own = collector.finish("a", 1)
    assert own is not None
    assert own.missing_count == 0


def test_what_does_not_go_together_is_refused(collector: Collector, store: SlotStore) -> None:
    collector.admit("a", 4)
    with pytest.raises(UsageError, match="being collected for already"):
        collector.admit("a", 4)
    with pytest.raises(UsageError, match="has 0 blocks of 4 tokens, none for 1 tokens"):
        collector.schedule("a", 0, 1)
    give(collector, "a", [1])
    with pytest.raises(UsageError, match="none for 2 tokens from token 3 on"):
        collector.schedule("a", 3, 2)
    ticket = collector.schedule("a", 0, 2)
    assert ticket is not None
    with pytest.raises(UsageError, match="has 1 rows where 2 tokens were scheduled"):
        collector.deliver([ticket], delta(a=rows(0, 1)))
    with pytest.raises(UsageError, match=r"int64 \[2, 3, 2\] is no routing of 3 layers, top 2"):
        collector.deliver([ticket], delta(a=rows(0, 2).astype(np.int64)))
    with pytest.raises(UsageError, match="is no routing of 3 layers"):
        collector.deliver([ticket], delta(a=rows(0, 2)[:, :2]))
    with pytest.raises(UsageError, match="routing of the draft model, not of the target model"):
        collector.deliver([ticket], StepDelta({"a": rows(0, 2)}, model="draft"))
    with pytest.raises(UsageError, match="none for its 2 tokens from token 3 on"):
        collector.deliver([ticket], delta(a=rows(0, 2)), positions={"a": 3})
    with pytest.raises(UsageError, match="store is not one of blocks of 8"):
        Collector(SHAPE, 8, store=store)
    with pytest.raises(UsageError, match="hold nothing"):
        SlotStore(SHAPE, 0)


@pytest.mark.slow
def test_a_hundred_thousand_requests_leave_nothing_behind() -> None:
    shape = RoutingShape(layers=2, top_k=2, experts=8)
    store = SlotStore(shape, BLOCK)
    collector = Collector(shape, BLOCK, store=store)
    ids = rows(0, 6, shape)

    def one(number: int) -> None:
        name = f"r{number}"
        blocks = [number % 50, (number + 1) % 50]
        if number % 5 == 0:  # Somebody who wants nothing uses the blocks in between.
            collector.renew(blocks)
            return
        collector.admit(name, 6)
        if number % 5 == 1:
            collector.attach(name, [(number - 1) % 50], hits=True)
            give(collector, name, blocks[1:])
        else:
            give(collector, name, blocks)
        ticket = collector.schedule(name, 0, 6)
        if number % 5 == 2:
            collector.preempt(name)
            give(collector, name, blocks)
        assert ticket is not None
        collector.deliver([ticket], delta(**{name: ids}))
        if number % 5 == 3:
            collector.abort(name)
        else:
            collector.finish(name, 1)

    def objects() -> int:
        gc.collect()
        return len(gc.get_objects())

    for number in range(1000):
        one(number)
    before, bytes_before = objects(), store.nbytes
    for number in range(1000, 100_000):
        one(number)
    assert len(collector) == 0
    assert len(store) <= 50
    assert store.nbytes <= max(bytes_before, 50 * BLOCK * shape.token_bytes)
    assert abs(objects() - before) < 200
