"""Errors of the capture stay out of vLLM's model runner: `make test-vllm`."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("vllm")

from ncclscope_patches.routed_experts.capture import CaptureBuffer
from ncclscope_patches.routed_experts.worker import RoutedExpertsWorker
from ncclscope_patches.vllm.routing import runner, wrapping
from tests.routed.rows import SHAPE, forward

pytestmark = pytest.mark.vllm

TOKENS = 4


@pytest.fixture
def routing() -> runner.RunnerRouting:
    """The capture of a runner whose model has been loaded, and one request that opted in."""
    made = runner.RunnerRouting.__new__(runner.RunnerRouting)
    made.worker = RoutedExpertsWorker(CaptureBuffer(SHAPE, TOKENS))
    made._opted, made._scheduled, made._flight = {"a"}, None, None
    return made


def own(routing: runner.RunnerRouting) -> Any:
    made = SimpleNamespace(input_batch=SimpleNamespace(req_ids=["a"]))
    setattr(made, runner._ROUTING, routing)
    return made


def schedule(routing: runner.RunnerRouting, tokens: int) -> None:
    routing._scheduled = SimpleNamespace(num_scheduled_tokens={"a": tokens})


def test_scheduling_that_cannot_be_read_is_no_error(routing: runner.RunnerRouting) -> None:
    assert runner._execute_model(lambda *_: "executed", own(routing), object()) == "executed"
    assert not routing.rows(["a"])


def test_a_batch_that_is_too_large_is_no_error(routing: runner.RunnerRouting) -> None:
    schedule(routing, TOKENS + 1)

    assert runner._model_forward(lambda *_: "forwarded", own(routing)) == "forwarded"
    assert routing.take() is None

    schedule(routing, TOKENS)  # the next step is captured again

    runner._model_forward(lambda *_: forward(routing.worker.capture, 0, TOKENS), own(routing))
    flight = routing.take()
    assert flight is not None
    assert not flight.take().missing


def test_a_model_that_fails_says_so_itself(routing: runner.RunnerRouting) -> None:
    schedule(routing, TOKENS)

    def fail(*_: Any) -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        runner._model_forward(fail, own(routing))
    assert not routing.worker.wanted


def test_rows_that_cannot_be_taken_leave_the_output_alone(routing: runner.RunnerRouting) -> None:
    for sampled in (True, False):
        schedule(routing, 2)
        runner._model_forward(lambda *_: None, own(routing))
        assert routing._flight is not None
        routing._flight.take()  # which can be done once
        output = SimpleNamespace(sampled_token_ids=[[1]])
        if sampled:
            assert runner.sample_tokens(lambda *_, made=output: made, own(routing)) is output
        else:
            pending = SimpleNamespace(get_output=None)
            runner.sample_tokens(lambda *_, made=pending: made, own(routing))
            assert runner.get_output(lambda *_, made=output: made, pending) is output
        assert getattr(output, runner.DELTA) is None


def test_a_failure_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    def fail() -> None:
        raise RuntimeError("broken")

    for _ in range(3):
        assert wrapping.attempt("nothing of a kind was done", fail) is None

    (printed,) = [text for text in caplog.messages if "nothing of a kind was done" in text]
    assert "broken" in printed
