"""Which rows are a rank's own: on real ranks, which put sequence shards together over gloo."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

pytest.importorskip("torch")

import torch

from ncclscope.errors import UsageError
from ncclscope_patches.moe_dispatch import sequence_chunk
from ncclscope_patches.routed_experts import RequestRows, RoutingShape
from ncclscope_patches.routed_experts.capture import CaptureBuffer
from ncclscope_patches.routed_experts.layouts import (
    BatchLayout,
    BatchRows,
    capture_own,
    own_rows,
    recognise,
)
from ncclscope_patches.routed_experts.worker import RoutedExpertsWorker
from tests.moe import pool
from tests.moe.case import RANKS, Layout
from tests.moe.pool import Ranks, groups_of
from tests.support.examples import examples

SHAPE = RoutingShape(layers=2, top_k=2, experts=1 << 16)
PADDING = (1 << 16) - 1
TOKENS = 24

OWN, CONCATENATED, SHARD, GATHERED = (
    BatchLayout.OWN,
    BatchLayout.CONCATENATED,
    BatchLayout.SEQUENCE_SHARD,
    BatchLayout.GATHERED_SHARDS,
)

many = settings(
    max_examples=examples(60),
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ranks]:
    with pool.started(tmp_path_factory.mktemp("routed")) as processes:
        yield processes


def routing(replica: int, layer: int, tokens: int) -> torch.Tensor:
    """Return the experts that a layer's router chooses for a replica, ``[tokens, top_k]``."""
    first = torch.arange(tokens).reshape(-1, 1) * 10 + layer + 1000 * replica
    return torch.cat([first, first + 5000], dim=1)


def padded(ids: torch.Tensor, count: int) -> torch.Tensor:
    return torch.cat([ids, ids.new_full((count - len(ids), ids.shape[1]), PADDING)])


def seen(batch: BatchRows, layout: BatchLayout, layer: int) -> torch.Tensor:
    """Return what the router of a rank sees, or puts out."""
    every = [routing(replica, layer, count) for replica, count in enumerate(batch.tokens)]
    own = every[batch.dp_rank]
    if layout is OWN:
        return own
    if layout is CONCATENATED:
        return torch.cat(every)
    if layout is SHARD:
        return padded(own[sequence_chunk(len(own), batch.tp, batch.tp_rank)], batch.shard)
    # The batch is padded first, for a CUDA graph perhaps, and shared out then.
    shards = [
        padded(ids, sum(batch.shards[replica * batch.tp : (replica + 1) * batch.tp]))
        for replica, ids in enumerate(every)
    ]
    return torch.cat(shards)


def capture_on_rank(
    rank: int, tp: int, tokens: tuple[int, ...], layout: BatchLayout, known: bool
) -> tuple[list[list[list[int]]], bool]:
    """Capture a step; return the rank's rows, and whether some are missing."""
    dp_rank, tp_rank = divmod(rank, tp)
    sequence_parallel = layout in (SHARD, GATHERED)
    longest = [-(-count // tp) + (layout is GATHERED) for count in tokens]
    shards = tuple(count for count in longest for _ in range(tp)) if sequence_parallel else ()
    batch = BatchRows(tokens, dp_rank, tp, tp_rank, sequence_parallel, shards)
    gather = groups_of(Layout(tp, sequence_parallel)).tensor.gather
    worker = RoutedExpertsWorker(CaptureBuffer(SHAPE, TOKENS))
    worker.begin_step([RequestRows("all", 0, batch.own)])
    for layer in range(SHAPE.layers):
        ids = seen(batch, layout, layer)
        sink = worker.capture.layer(layer)
        capture_own(sink, ids, batch, gather, layout if known else None)
    flight = worker.end_step()
    assert flight is not None
    step = flight.take()
    return step.rows["all"].tolist(), "all" in step.missing


@many
@given(
    layout=st.sampled_from(BatchLayout),
    tp=st.sampled_from([1, 2, 4]),
    tokens=st.lists(st.integers(1, 9), min_size=RANKS, max_size=RANKS),
    known=st.booleans(),
)
@example(layout=SHARD, tp=4, tokens=[1] * 4, known=False)
@example(layout=SHARD, tp=4, tokens=[5] * 4, known=False)
@example(layout=SHARD, tp=2, tokens=[1, 9, 1, 1], known=False)
@example(layout=GATHERED, tp=2, tokens=[5, 2, 1, 1], known=False)
@example(layout=GATHERED, tp=1, tokens=[3, 1, 4, 1], known=True)
@example(layout=CONCATENATED, tp=1, tokens=[3, 1, 4, 1], known=False)
def test_every_rank_captures_the_tokens_of_its_replica(
    ranks: Ranks, layout: BatchLayout, tp: int, tokens: list[int], known: bool
) -> None:
    counts = tuple(tokens[: RANKS // tp])
    answers = ranks.run(capture_on_rank, tp, counts, layout, known)
    for rank, answer in enumerate(answers):
        assert not isinstance(answer, Exception), answer
        rows, missing = answer
        assert not missing
        replica = rank // tp
        expected = torch.stack(
            [routing(replica, layer, counts[replica]) for layer in range(SHAPE.layers)], dim=1
        )
        assert rows == expected.tolist(), (rank, layout)


def test_shards_may_come_without_their_padding(ranks: Ranks) -> None:
    for answer, expected in zip(
        ranks.run(short_shard_on_rank), [routing(0, 0, 5).tolist()] * RANKS, strict=True
    ):
        assert answer == expected


def short_shard_on_rank(rank: int) -> list[list[int]]:
    batch = BatchRows((5,), 0, RANKS, rank, sequence_parallel=True)
    ids = routing(0, 0, 5)[sequence_chunk(5, RANKS, rank)]
    gather = groups_of(Layout(RANKS, True)).tensor.gather
    found: list[list[int]] = own_rows(ids, batch, SHARD, gather).tolist()
    return found


@pytest.mark.parametrize(
    ("rows", "batch", "layout"),
    [
        (9, BatchRows((4, 5)), CONCATENATED),
        (4, BatchRows((4, 5)), OWN),
        (5, BatchRows((4, 5)), None),
        (2, BatchRows((4, 5), tp=2), None),
        (2, BatchRows((4, 5), tp=2, sequence_parallel=True), SHARD),
        (4, BatchRows((4, 5), tp=2, sequence_parallel=True), None),
        (10, BatchRows((4, 5), 0, 2, 0, True, (2, 2, 3, 3)), GATHERED),
        # One token of two ranks: the second rank has padding, not a token of its own.
        (1, BatchRows((1,), 0, 2, 1, sequence_parallel=True), SHARD),
        (1, BatchRows((1,), 0, 2, 1), OWN),
    ],
)
def test_a_layout_is_known_by_its_rows(
    rows: int, batch: BatchRows, layout: BatchLayout | None
) -> None:
    assert recognise(rows, batch) is layout


@given(
    tokens=st.lists(st.integers(0, 12), min_size=1, max_size=4),
    tp=st.integers(1, 4),
    sequence_parallel=st.booleans(),
    rows=st.integers(0, 60),
)
def test_all_ranks_of_a_replica_agree(
    tokens: list[int], tp: int, sequence_parallel: bool, rows: int
) -> None:
    shards = tuple(-(-count // tp) for count in tokens for _ in range(tp))
    for dp_rank in range(len(tokens)):
        answers = {
            recognise(rows, BatchRows(tuple(tokens), dp_rank, tp, own, sequence_parallel, shards))
            for own in range(tp)
        }
        assert len(answers) == 1


def test_a_step_that_nobody_wants_posts_no_collective() -> None:
    buffer = CaptureBuffer(SHAPE, TOKENS)
    batch = BatchRows((4,), 0, 2, 0, sequence_parallel=True)
    calls: list[torch.Tensor] = []

    def gather(rows: torch.Tensor) -> torch.Tensor:
        calls.append(rows)
        return torch.cat([rows, rows])

    capture_own(buffer.layer(0), routing(0, 0, 2), batch, gather)
    assert calls == []
    buffer.begin()
    capture_own(buffer.layer(0), routing(0, 0, 2), batch, gather)
    assert len(calls) == 1
    assert (buffer.ids[0, :, 0] < 0).tolist() == [False] * 4 + [True] * (TOKENS - 4)


def test_rows_of_no_known_layout_are_missing() -> None:
    buffer = CaptureBuffer(SHAPE, TOKENS)
    buffer.begin()
    capture_own(buffer.layer(0), routing(0, 0, 3), BatchRows((4, 5)))
    assert (buffer.ids < 0).all()


def test_what_does_not_go_together_is_refused() -> None:
    ids = routing(0, 0, 6)
    with pytest.raises(UsageError, match="6 rows where own rows are 4"):
        own_rows(ids, BatchRows((4, 5)), OWN)
    with pytest.raises(UsageError, match="6 rows where concatenated rows are 9"):
        own_rows(ids, BatchRows((4, 5)), CONCATENATED)
    with pytest.raises(UsageError, match="6 rows where gathered shards rows are 10"):
        own_rows(ids, BatchRows((4, 5), 0, 2, 0, True, (2, 2, 3, 3)), GATHERED)
    with pytest.raises(UsageError, match=r"shards of \[1, 1\] rows do not hold 4 tokens"):
        own_rows(ids, BatchRows((4, 4), 0, 2, 0, True, (1, 1, 2, 2)), GATHERED)
    with pytest.raises(UsageError, match="without a collective"):
        own_rows(ids, BatchRows((6,), 0, 2, 0, True), SHARD)
    with pytest.raises(UsageError, match="6 rows where sequence shard rows are 2"):
        own_rows(ids, BatchRows((4,), 0, 2, 0, True), SHARD, lambda rows: rows)
    for wrong in (
        lambda: BatchRows((4,), 1),
        lambda: BatchRows((4,), 0, 2, 2),
        lambda: BatchRows((4, -1)),
        lambda: BatchRows((4,), 0, 2, 0, True, (2,)),
    ):
        with pytest.raises(UsageError):
            wrong()
