"""The buffer that layers write to, and who numbers those."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("torch")

import torch
from torch import nn

from ncclscope.errors import UsageError
from ncclscope_patches.routed_experts import RequestRows, RoutingShape, StepDelta
from ncclscope_patches.routed_experts.capture import CaptureBuffer
from ncclscope_patches.routed_experts.layers import RoutedLayers
from ncclscope_patches.routed_experts.worker import RoutedExpertsWorker
from tests.routed.rows import SHAPE, forward, rows

TOKENS = 16


def captured(buffer: CaptureBuffer, count: int) -> StepDelta:
    """Return a worker's output for a step that has been written."""
    worker = RoutedExpertsWorker(buffer)
    worker._rows = (RequestRows("a", 0, count),)
    flight = worker.end_step()
    assert flight is not None
    return flight.take()


@pytest.mark.parametrize("experts", [8, 256, 257, 40_000, 65_536, 70_000, 1 << 31])
@pytest.mark.parametrize(
    "dtype", [torch.int32, torch.int64, torch.uint32, torch.uint16, torch.int16, torch.uint8]
)
def test_all_experts_come_back(experts: int, dtype: torch.dtype) -> None:
    shape = RoutingShape(1, 2, experts)
    buffer = CaptureBuffer(shape, TOKENS)
    most = min(experts - 1, torch.iinfo(dtype).max)
    ids = torch.tensor([[0, most], [most, most // 2]]).to(dtype)
    buffer.begin()
    buffer.layer(0)(ids)
    step = captured(buffer, 2)
    assert step.rows["a"].dtype == shape.dtype
    assert step.rows["a"].tolist() == [[[0, most]], [[most, most // 2]]]
    assert not step.missing


@given(ids=st.lists(st.integers(-(1 << 40), 1 << 40), min_size=4, max_size=4))
def test_no_number_is_cut_to_size(ids: list[int]) -> None:
    for experts in (200, 256, 300, 65_536, 70_000):
        buffer = CaptureBuffer(RoutingShape(1, 2, experts), TOKENS)
        buffer.begin()
        buffer.layer(0)(torch.tensor(ids).reshape(2, 2))
        step = captured(buffer, 2)
        missing = step.missing.get("a", np.zeros(2, bool))
        for number in range(2):
            pair = ids[2 * number : 2 * number + 2]
            fits = all(0 <= one < experts for one in pair)
            assert missing[number] == (not fits)
            if fits:
                assert step.rows["a"][number].tolist() == [pair]


def test_a_token_of_which_one_layer_is_unknown_is_missing() -> None:
    buffer = CaptureBuffer(SHAPE, TOKENS)
    ids = torch.from_numpy(rows(0, 3).astype(np.int64))
    for step in range(2):
        buffer.begin()
        for layer in range(SHAPE.layers):
            if step == 0 or layer != 1:
                buffer.layer(layer)(ids[: 3 if layer else 2, layer])
        missing = captured(buffer, 3).missing["a"].tolist()
        # Of the first step's rows nothing is left in the second one.
        assert missing == [[False, False, True], [True, True, True]][step]


def test_nobody_writes_outside_a_step_that_is_wanted() -> None:
    buffer = CaptureBuffer(SHAPE, TOKENS)
    forward(buffer, 0, 4)
    assert (buffer.ids < 0).all()
    buffer.begin()
    forward(buffer, 0, 4)
    assert (buffer.ids[:, :4] >= 0).all()
    buffer.end()
    before = buffer.ids.clone()
    forward(buffer, 50, 4)
    assert torch.equal(buffer.ids, before)


def test_micro_batches_write_one_after_the_other() -> None:
    buffer = CaptureBuffer(SHAPE, TOKENS)
    ids = torch.from_numpy(rows(0, 6).astype(np.int32))
    buffer.begin()
    for first, last in ((0, 4), (4, 6)):
        for layer in range(SHAPE.layers):
            buffer.layer(layer)(ids[first:last, layer], first)
    step = captured(buffer, 6)
    assert np.array_equal(step.rows["a"], rows(0, 6))
    assert not step.missing


def test_what_does_not_fit_is_refused() -> None:
    buffer = CaptureBuffer(SHAPE, TOKENS)
    buffer.begin()
    write = buffer.layer(0)
    with pytest.raises(UsageError, match="17 tokens from row 0 on, in 16 rows"):
        write(torch.zeros(17, 2, dtype=torch.int64))
    with pytest.raises(UsageError, match="3 tokens from row 14 on"):
        write(torch.zeros(3, 2, dtype=torch.int64), 14)
    with pytest.raises(UsageError, match=r"\[3, 4\] is not the top 2"):
        write(torch.zeros(3, 4, dtype=torch.int64))
    for number in (-1, 3):
        with pytest.raises(UsageError, match="no layer"):
            buffer.layer(number)
    with pytest.raises(UsageError):
        CaptureBuffer(SHAPE, 0)


def test_a_step_leaves_in_the_narrowest_type() -> None:
    sizes = []
    for experts in (256, 300, 70_000):
        worker = RoutedExpertsWorker(CaptureBuffer(RoutingShape(4, 2, experts), 10))
        assert worker.transfer is not None
        place = worker.transfer._free[0]
        sizes.append(sum(part.nbytes for part in place.pinned))
    assert sizes == [10 * (4 * 2 * width + 1) for width in (1, 2, 4)]


class Router(nn.Module):
    pass


def model(layers: int) -> nn.Module:
    """Return a model whose every second layer routes tokens."""
    blocks = [
        nn.ModuleDict({"mlp": nn.Identity() if own % 2 else Router()}) for own in range(layers)
    ]
    return nn.ModuleDict({"layers": nn.ModuleList(blocks)})


def routes(module: nn.Module) -> bool:
    return isinstance(module, Router)


def test_each_model_of_a_process_begins_at_zero() -> None:
    first = RoutedLayers.of(model(24), routes)
    second = RoutedLayers.of(model(6), routes, "draft")
    assert (len(first), len(second)) == (12, 3)
    assert first.number("layers.22.mlp") == 11
    assert second.number("layers.0.mlp") == 0
    assert second.number("layers.4.mlp") == 2
    buffer = second.buffer(top_k=2, experts=128, max_tokens=TOKENS)
    assert buffer.ids.shape == (3, TOKENS, 2)
    with pytest.raises(UsageError, match=r"layers\.22\.mlp routes no tokens in the draft model"):
        second.number("layers.22.mlp")
    with pytest.raises(UsageError, match="no layer of the draft model routes tokens"):
        RoutedLayers.of(nn.Identity(), routes, "draft")
    with pytest.raises(UsageError, match="two layers of the target model have one name"):
        RoutedLayers(["a", "a"])


def test_target_and_draft_stay_apart() -> None:
    shapes = {"target": SHAPE, "draft": RoutingShape(1, 2, 128)}
    buffers = {name: CaptureBuffer(shape, TOKENS) for name, shape in shapes.items()}
    workers = {name: RoutedExpertsWorker(own, model=name) for name, own in buffers.items()}
    for number, (name, worker) in enumerate(workers.items()):
        worker.begin_step([RequestRows("a", 0, 2)])
        forward(buffers[name], 50 * number, 2)
    for number, (name, worker) in enumerate(workers.items()):
        flight = worker.end_step()
        assert flight is not None
        step = flight.take()
        assert step.model == name
        assert np.array_equal(step.rows["a"], rows(50 * number, 2, shapes[name]))
