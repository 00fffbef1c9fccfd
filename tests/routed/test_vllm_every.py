"""vLLM's own ``enable_return_routed_experts``, answered by the plugin: `make test-vllm`."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

pytest.importorskip("vllm")

import vllm.v1.engine.output_processor as processor
from vllm.engine.arg_utils import EngineArgs
from vllm.sampling_params import RequestOutputKind, SamplingParams
from vllm.v1.engine import FinishReason
from vllm.v1.engine.detokenizer import IncrementalDetokenizer

from ncclscope.errors import UsageError
from ncclscope_patches.routed_experts import RoutedExperts
from ncclscope_patches.routed_experts.requests import EVERY
from ncclscope_patches.vllm import routing as vllm_routing
from ncclscope_patches.vllm.routing import configuration, runner_parts, scheduling, wrapping
from ncclscope_patches.vllm.routing import runner as runner_module
from ncclscope_patches.vllm.routing.every import VllmArrays, marked
from ncclscope_patches.vllm.routing.outputs import RESULT, _expect
from ncclscope_patches.vllm.routing.packing import pack
from tests.integration.tiny_moe import write_checkpoint
from tests.integration.vllm_server import TINY_QWEN3_MOE
from tests.routed.rows import rows

pytestmark = pytest.mark.vllm

PROMPT = 5
FLAG = "enable_return_routed_experts"


@pytest.fixture(autouse=True)
def installed() -> None:
    vllm_routing.install()


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("model")
    write_checkpoint(directory, TINY_QWEN3_MOE)
    return directory


@pytest.fixture
def said(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The lines that were printed."""
    lines: list[str] = []
    monkeypatch.setattr(configuration.session, "warn_once", lambda _, text: lines.append(text))
    return lines


def arguments(model: Path, **more: Any) -> EngineArgs:
    return EngineArgs(
        model=str(model), skip_tokenizer_init=True, dtype="float32", max_model_len=64, **more
    )


def test_the_flag_is_accepted_and_vllms_own_way_is_off(model: Path, said: list[str]) -> None:
    asked = arguments(model, enable_return_routed_experts=True)

    config = asked.create_engine_config()

    assert configuration.answers_every_request(config)
    assert not configuration.is_served_by_vllm(config)
    assert getattr(asked, FLAG), "the arguments are the user's"
    assert not said


def test_without_the_flag_requests_ask_for_themselves(model: Path, said: list[str]) -> None:
    config = arguments(model).create_engine_config()

    assert not configuration.answers_every_request(config)
    assert not said


def test_a_deployment_that_only_vllm_may_serve_is_left_to_it(model: Path, said: list[str]) -> None:
    asked = arguments(
        model,
        enable_return_routed_experts=True,
        pipeline_parallel_size=2,
        distributed_executor_backend="mp",
    )

    with pytest.raises(ValueError, match=r"Model Runner V2|pipeline") as refusal:
        asked.create_engine_config()

    assert not isinstance(refusal.value, UsageError), "vLLM itself refuses"
    (line,) = said
    assert "vLLM's own enable_return_routed_experts serves, not ncclscope: with 2 pipeline" in line


def test_a_mark_comes_from_the_operator_alone() -> None:
    every = SimpleNamespace(additional_config={configuration._EVERY: 1})
    nobody = SimpleNamespace(additional_config={})
    asked = SamplingParams(extra_args={"other": 1})

    assert marked(every, asked).extra_args == {"other": 1, EVERY: True}
    assert asked.extra_args == {"other": 1}, "the parameters are the user's"
    forged = SamplingParams(extra_args={EVERY: True, "other": 1})
    assert marked(nobody, forged).extra_args == {"other": 1}
    assert marked(nobody, asked) is asked


def test_arrays_have_all_layers_of_the_model() -> None:
    part = RoutedExperts(rows(0, 6), np.arange(6) == 1, PROMPT)
    layers = part.ids.shape[1]

    found = VllmArrays(tuple(range(2, 2 + layers)), layers + 3).of(part, 4)

    assert (found.first, found.ids.shape[:2]) == (4, (2, layers + 3))
    assert np.array_equal(found.ids[:, 2:-1], rows(4, 2))
    assert not found.ids[:, [0, 1, -1]].any()
    with pytest.raises(UsageError, match="are not among 2"):
        VllmArrays((0, 2), 2)


def state(kind: RequestOutputKind, start: int = 0) -> Any:
    """Return vLLM's own state of a request that is answered because of the flag."""
    made = processor.RequestState.__new__(processor.RequestState)
    made.__dict__.update(
        request_index=0,
        output_kind=kind,
        prompt_len=PROMPT,
        routed_experts_chunks=[],
        detokenizer=IncrementalDetokenizer(),
        logprobs_processor=SimpleNamespace(logprobs=None, cumulative_logprob=None),
        sampling_mask_chunks=[],
        weight_version_starts=[],
        spec_decode_metrics=None,
    )
    asked = SamplingParams(extra_args={EVERY: True}, routed_experts_prompt_start=start)
    request = SimpleNamespace(request_id="r", sampling_params=asked)
    _expect(SimpleNamespace(request_states={"r": made}), request)
    return made


def step(made: Any, first: int, count: int, finish: FinishReason | None = None, **more: int) -> Any:
    """One more token, with the routing that came with it."""
    made.detokenizer.token_ids.append(7)
    holes = np.zeros(count, np.bool_)
    holes[: more.get("missing", 0)] = True
    ids = rows(first, count)
    ids[holes] = 0
    made.routed_experts_chunks.append(pack(RoutedExperts(ids, holes, PROMPT, first)))
    return made._new_completion_output([7], finish, None)


@pytest.mark.parametrize("kind", [RequestOutputKind.CUMULATIVE, RequestOutputKind.DELTA])
def test_the_end_has_all_whatever_is_missing(kind: RequestOutputKind) -> None:
    made = state(kind)

    first = step(made, 0, PROMPT, missing=2)
    last = step(made, PROMPT, 1, FinishReason.LENGTH)

    assert first.routed_experts is None
    truth = rows(0, PROMPT + 1)
    truth[:2] = 0
    assert np.array_equal(last.routed_experts, truth)
    masks = [getattr(one, RESULT, None) for one in (first, last)]
    runs = [one.missing_runs for one in masks if one is not None]
    assert runs[0] == ((0, 2),)


def test_an_abort_has_what_was_there() -> None:
    made = state(RequestOutputKind.CUMULATIVE, start=3)
    step(made, 3, 2)
    step(made, PROMPT, 1)

    last = made._new_completion_output([], FinishReason.ABORT, None)

    assert np.array_equal(last.routed_experts, rows(3, 3))
    assert getattr(last, RESULT).first == 3


@pytest.fixture
def second_runner(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let configurations choose the second model runner, which needs Triton, on this machine."""
    import vllm.config.vllm as config

    monkeypatch.setenv("VLLM_USE_V2_MODEL_RUNNER", "1")
    monkeypatch.setattr(config, "HAS_TRITON", True)


@pytest.fixture
def unknown_runner(monkeypatch: pytest.MonkeyPatch, second_runner: None) -> None:
    """A second model runner that lacks something."""
    monkeypatch.setattr(runner_parts, "missing", lambda: ("InputBatch has no req_ids",))


def test_the_second_model_runner_is_served_as_the_first(
    model: Path, said: list[str], second_runner: None
) -> None:
    plain = arguments(model).create_engine_config()
    flagged = arguments(model, enable_return_routed_experts=True).create_engine_config()

    assert plain.use_v2_model_runner
    assert [configuration.is_served_by_vllm(one) for one in (plain, flagged)] == [False, False]
    assert [configuration.answers_every_request(one) for one in (plain, flagged)] == [False, True]
    assert not said


def test_an_unknown_model_runner_is_left_as_it_is(
    model: Path, said: list[str], unknown_runner: None
) -> None:
    plain = arguments(model).create_engine_config()
    flagged = arguments(model, enable_return_routed_experts=True).create_engine_config()

    assert [configuration.is_served_by_vllm(one) for one in (plain, flagged)] == [True, True]
    assert [configuration.answers_every_request(one) for one in (plain, flagged)] == [False, False]
    assert len(said) == 2
    assert "InputBatch has no req_ids (VLLM_USE_V2_MODEL_RUNNER=0 chooses the first" in said[0]
    assert "vLLM's own enable_return_routed_experts serves" in said[1]


def test_an_engine_with_an_unknown_model_runner_asks_nothing_of_its_workers(
    model: Path, said: list[str], unknown_runner: None, capsys: pytest.CaptureFixture[str]
) -> None:
    config = arguments(model).create_engine_config()
    runner = SimpleNamespace(vllm_config=config)
    asked: list[str] = []
    engine = SimpleNamespace(model_executor=SimpleNamespace(collective_rpc=asked.append))
    said.clear()

    assert scheduling._initialize_kv_caches(lambda *_: "caches", engine, config) == "caches"
    runner_module.load_model(lambda *_: None, runner)

    assert not asked
    assert not said
    assert vars(runner) == {"vllm_config": config}
    assert runner_module._routing_shape(SimpleNamespace(model_runner=runner)) is None


def test_the_classes_of_both_model_runners_are_extended() -> None:
    import vllm.v1.worker.gpu.model_runner as second
    import vllm.v1.worker.gpu_model_runner as first

    names = ("load_model", "execute_model", "sample_tokens")

    def touched(owner: Any) -> list[bool]:
        return [hasattr(getattr(owner, name), wrapping._MARK) for name in names]

    assert touched(first.GPUModelRunner) == [True] * 3
    assert touched(second.GPUModelRunner) == [True] * 3
    assert hasattr(second.GPUModelRunner.prepare_inputs, wrapping._MARK)
    assert hasattr(second.AsyncOutput.get_output, wrapping._MARK)
