"""The capture in vLLM's second model runner, without a model: `make test-vllm`.

Its classes and the batch are vLLM's; only the steps are played here. The whole runner serves
requests in test_vllm_flagged.py and test_vllm_routed_experts.py.
"""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

pytest.importorskip("vllm")

import vllm.v1.worker.gpu as package
from vllm.v1.worker.gpu.async_utils import AsyncOutput
from vllm.v1.worker.gpu.input_batch import InputBatch

from ncclscope.errors import UsageError
from ncclscope_patches.routed_experts.capture import CaptureBuffer
from ncclscope_patches.routed_experts.deltas import RequestRows
from ncclscope_patches.routed_experts.worker import RoutedExpertsWorker
from ncclscope_patches.vllm.routing import runner, runner_parts, second_runner
from tests.routed.rows import SHAPE, forward, rows

pytestmark = pytest.mark.vllm

TOKENS = 16


@pytest.fixture
def routing() -> runner.RunnerRouting:
    """The capture of a runner whose model has been loaded."""
    made = runner.RunnerRouting.__new__(runner.RunnerRouting)
    made.worker = RoutedExpertsWorker(CaptureBuffer(SHAPE, TOKENS))
    made._opted, made._scheduled, made._flight = set(), None, None
    return made


def scheduled(tokens: dict[str, int], asked: tuple[str, ...] = ()) -> Any:
    """Return the scheduling of new requests, some of which opt in."""
    extra = {"return_routed_experts": True}
    new = [
        SimpleNamespace(req_id=name, sampling_params=SimpleNamespace(extra_args=extra))
        for name in asked
    ]
    return SimpleNamespace(
        finished_req_ids=set(), scheduled_new_reqs=new, num_scheduled_tokens=tokens
    )


def batch_of(tokens: dict[str, int], padding: int = 0) -> Any:
    """Return vLLM's batch of a step, padded as for a CUDA graph."""
    starts = np.cumsum([0, *tokens.values(), *[0] * padding]).astype(np.int32)
    made = InputBatch.__new__(InputBatch)
    made.req_ids, made.query_start_loc_np = list(tokens), starts
    return made


class Runner:
    """A model runner with the methods that vLLM's has, and steps that fail when they are told to.

    Args:
        routing: Its capture.
        order: Requests in the order of the batch.
    """

    def __init__(self, routing: runner.RunnerRouting, order: tuple[str, ...] = ()) -> None:
        setattr(self, runner._ROUTING, routing)
        self.routing, self.order = routing, order
        self.fails = False

    def execute_model(self, output: Any, dummy_run: bool = False) -> None:
        if not dummy_run:
            counts = output.num_scheduled_tokens
            tokens = {name: counts[name] for name in self.order or counts}
            second_runner._prepare_inputs(lambda *_: batch_of(tokens, padding=2), self)
        if self.fails:
            raise ZeroDivisionError
        forward(self.routing.worker.capture, 0, TOKENS)

    def step(self, output: Any, **more: Any) -> Any:
        return second_runner._execute_model(Runner.execute_model, self, output, **more)


def test_rows_are_in_the_order_of_the_batch(routing: runner.RunnerRouting) -> None:
    own = Runner(routing, ("c", "a", "b"))

    own.step(scheduled({"a": 3, "b": 4, "c": 1}, ("a", "c")))

    flight = routing.take()
    assert flight is not None
    delta = flight.take()
    assert sorted(delta.rows) == ["a", "c"]
    assert np.array_equal(delta.rows["c"], rows(0, 1))
    assert np.array_equal(delta.rows["a"], rows(1, 3))
    assert not delta.missing


def test_rows_go_along_with_the_asynchronous_output(routing: runner.RunnerRouting) -> None:
    own = Runner(routing)
    own.step(scheduled({"a": 3}, ("a",)))
    pending = AsyncOutput.__new__(AsyncOutput)
    output = SimpleNamespace()

    assert runner.sample_tokens(lambda *_: pending, own) is pending
    assert runner.get_output(lambda *_: output, pending) is output

    assert np.array_equal(getattr(output, runner.DELTA).rows["a"], rows(0, 3))
    assert routing.take() is None


def test_a_step_that_nobody_asked_for_captures_nothing(routing: runner.RunnerRouting) -> None:
    own = Runner(routing)
    before = routing.worker.capture.ids.clone()

    own.step(scheduled({"a": 3}))
    own.step(scheduled({"_dummy_req_0": 3}), dummy_run=True)

    assert routing.take() is None
    assert routing.worker.capture.ids.equal(before)


def test_a_dummy_step_between_two_others_captures_nothing(routing: runner.RunnerRouting) -> None:
    own = Runner(routing)
    own.step(scheduled({"a": 3}, ("a",)))
    flight = routing.take()

    own.step(scheduled({"_dummy_req_0": 8}), dummy_run=True)

    assert flight is not None
    assert routing.take() is None
    assert not routing.worker.wanted


def test_a_model_that_fails_says_so_itself(routing: runner.RunnerRouting) -> None:
    own = Runner(routing)
    own.fails = True
    with pytest.raises(ZeroDivisionError):
        own.step(scheduled({"a": 3}, ("a",)))
    assert not routing.worker.wanted
    assert not routing.worker.capture.writes

    own.fails = False  # the next step is captured again
    own.step(scheduled({"a": 1}))
    assert routing.take() is not None


def test_a_batch_of_other_rows_than_scheduled_is_not_captured(
    routing: runner.RunnerRouting, caplog: pytest.LogCaptureFixture
) -> None:
    routing.begin(scheduled({"a": 3}, ("a",)))
    assert second_runner.batch_rows(routing, batch_of({"a": 3})) == [RequestRows("a", 0, 3)]
    with pytest.raises(UsageError, match="'a' has 2 rows where 3 tokens were scheduled"):
        second_runner.batch_rows(routing, batch_of({"a": 2}))

    batch = batch_of({"a": 2})
    own = Runner(routing)

    assert second_runner._prepare_inputs(lambda *_: batch, own) is batch
    assert not routing.worker.wanted


def sources() -> dict[str, str]:
    """Return the source of the second runner that is installed."""
    folder = Path(package.__file__).parent
    names = ("model_runner", "async_utils", "input_batch")
    return {name: (folder / f"{name}.py").read_text() for name in names}


def test_the_installed_runner_has_all_parts() -> None:
    assert not runner_parts.missing()
    assert not runner_parts.missing_in(sources())


@pytest.mark.parametrize(
    ("module", "old", "new", "text"),
    [
        ("input_batch", "    req_ids:", "    names:", "InputBatch has no req_ids"),
        ("async_utils", "def get_output", "def output", "AsyncOutput has no get_output"),
        ("async_utils", "class AsyncOutput(", "class Output(", "AsyncOutput has no get_output"),
        (
            "model_runner",
            "self.prepare_inputs(",
            "self.inputs(",
            "GPUModelRunner.execute_model does not call prepare_inputs",
        ),
        ("model_runner", "class GPUModelRunner", "class (", "its source cannot be read"),
    ],
)
def test_a_part_that_is_missing_is_named(module: str, old: str, new: str, text: str) -> None:
    changed = sources()
    assert old in changed[module]
    changed[module] = changed[module].replace(old, new)

    found = runner_parts.missing_in(changed)

    assert found
    assert text in found[0]
