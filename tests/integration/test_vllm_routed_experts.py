"""Routed experts out of a real vLLM server on the CPU: `make test-vllm`.

What is returned is compared with Hugging Face's forward pass over the same tokens, number by
number. The cache holds so few blocks that requests lose theirs; servers of several workers are
asked in test_vllm_moe.py.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import urllib.request
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pytest

from ncclscope_patches.routed_experts import RoutedExperts, StreamReader, decode_choice
from tests.integration.routing_reference import reference_routing
from tests.integration.second_runner import RUNNERS, environment_of
from tests.integration.vllm_server import VllmServer

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(600)]

BLOCK = 32
BLOCKS = 14
VARIABLE = {"NCCLSCOPE_VLLM_ROUTED_EXPERTS": "1"}
ASKED = {"return_routed_experts": True, "routed_experts_encoding": "compact"}
TOKENS = 8


@pytest.fixture(scope="module", params=RUNNERS)
def server(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[VllmServer]:
    chosen = environment_of(request.param)
    if chosen is None:
        pytest.skip(f"no {request.param} model runner for the CPU")
    directory = tmp_path_factory.mktemp("routed")
    with VllmServer(
        directory,
        tensor_parallel_size=1,
        checkpoint=True,
        tokenizer=True,
        environment=VARIABLE | chosen,
        arguments=[
            *("--block-size", str(BLOCK), "--num-gpu-blocks-override", str(BLOCKS)),
            *("--max-num-batched-tokens", "64"),
            "--enable-scale-out",  # /inference/v1/generate
        ],
    ) as running:
        yield running


def prompt_of(seed: int, tokens: int) -> list[int]:
    """Return a prompt that shares no block with another seed's."""
    return np.random.default_rng(seed).integers(3, 500, tokens).tolist()


def assert_true(
    server: VllmServer, prompt: Sequence[int], generated: Sequence[int], found: RoutedExperts
) -> None:
    """Check each token that is not missing, and that what is missing says nothing."""
    truth = reference_routing(server.model, [*prompt, *generated])[:-1]
    assert (found.first, found.prompt_tokens) == (0, len(prompt))
    assert (found.ids.shape, found.ids.dtype) == (truth.shape, truth.dtype)
    assert np.array_equal(found.ids[~found.missing], truth[~found.missing])
    assert not found.ids[found.missing].any()


def ask(server: VllmServer, prompt: list[int], tokens: int = TOKENS, **more: Any) -> RoutedExperts:
    choice = server.choice(prompt, tokens, vllm_xargs=ASKED, **more)
    found = decode_choice(choice)
    assert found is not None
    assert_true(server, prompt, choice["token_ids"], found)
    return found


def metric(server: VllmServer, name: str) -> float:
    with urllib.request.urlopen(f"{server.url}/metrics", timeout=10) as response:
        lines = response.read().decode().splitlines()
    return sum(float(line.split()[-1]) for line in lines if line.startswith(f"{name}{{"))


def test_a_request_that_does_not_ask_gets_nothing(server: VllmServer) -> None:
    choice = server.choice(prompt_of(0, 40), TOKENS)

    assert choice["routed_experts"] is None
    assert "routed_experts_info" not in choice


def test_all_tokens_are_captured_and_true(server: VllmServer) -> None:
    prompt = prompt_of(1, 150)  # in three pieces

    assert ask(server, prompt).missing_count == 0


def test_a_prefix_hit_finds_what_the_earlier_request_left(server: VllmServer) -> None:
    prompt = prompt_of(2, 100)
    ask(server, prompt)
    hits = metric(server, "vllm:prefix_cache_hits_total")

    assert ask(server, prompt).missing_count == 0
    assert metric(server, "vllm:prefix_cache_hits_total") - hits == 96


def test_a_prefix_that_nobody_asked_for_is_missing_and_nothing_else(server: VllmServer) -> None:
    prompt = prompt_of(3, 100)
    server.choice(prompt, TOKENS)

    found = ask(server, prompt)

    assert found.missing_runs == ((0, 96),)


def test_preempted_requests_keep_their_routing(server: VllmServer) -> None:
    before = metric(server, "vllm:num_preemptions_total")
    prompts = [prompt_of(10 + number, 40) for number in range(6)]

    # In one request, so that all of them are there at once.
    choices = server.answer(prompts, 90, vllm_xargs=ASKED)["choices"]

    assert metric(server, "vllm:num_preemptions_total") > before
    assert len(choices) == len(prompts)
    for prompt, choice in zip(prompts, choices, strict=True):
        found = decode_choice(choice)
        assert found is not None
        assert (found.tokens, found.missing_count) == (40 + 90 - 1, 0)
        assert_true(server, prompt, choice["token_ids"], found)


def test_a_stream_brings_each_token_once(server: VllmServer) -> None:
    prompt = prompt_of(4, 70)
    reader, generated = StreamReader(), list[int]()

    for choice in server.stream(prompt, TOKENS, vllm_xargs=ASKED):
        part = reader.add(choice)
        assert part is None or (part.first == 0) == (not generated)
        generated += choice["token_ids"]

    found = reader.result()
    assert found is not None
    assert found.missing_count == 0
    assert_true(server, prompt, generated, found)


def test_a_stop_string_ends_the_routing_with_the_answer(server: VllmServer) -> None:
    prompt = prompt_of(5, 40)
    tokens = server.choice(prompt, 12)["token_ids"]
    end = next(place for place in range(3, 12) if tokens[place] not in tokens[:place])

    choice = server.choice(
        prompt, 12, vllm_xargs=ASKED, stop=[f"w{tokens[end]} "], include_stop_str_in_output=True
    )

    found = decode_choice(choice)
    assert choice["finish_reason"] == "stop"
    assert found is not None
    assert found.tokens == len(prompt) + len(choice["token_ids"]) - 1
    assert_true(server, prompt, choice["token_ids"], found)


def test_each_of_several_samples_has_its_own(server: VllmServer) -> None:
    prompt = prompt_of(6, 40)
    more = {"vllm_xargs": ASKED, "n": 3, "temperature": 1.0, "seed": 7}

    choices = server.answer(prompt, TOKENS, **more)["choices"]

    assert len({tuple(choice["token_ids"]) for choice in choices}) == 3
    for choice in choices:
        found = decode_choice(choice)
        assert found is not None
        assert found.missing_count == 0
        assert_true(server, prompt, choice["token_ids"], found)


def test_a_client_that_goes_away_takes_nothing_along(server: VllmServer) -> None:
    stream = server.stream(prompt_of(7, 40), 150, vllm_xargs=ASKED)
    assert decode_choice(next(stream)) is not None
    stream.close()  # the connection, too

    assert ask(server, prompt_of(8, 100)).missing_count == 0


@pytest.mark.parametrize("streamed", [False, True])
def test_chat_answers_have_it_too(server: VllmServer, streamed: bool) -> None:
    body = {
        "messages": [{"role": "user", "content": " ".join(f"w{n}" for n in prompt_of(9, 30))}],
        "vllm_xargs": ASKED,
        "stream": streamed,
    }
    reader, generated, prompt = StreamReader(), list[int](), list[int]()

    for answer in server.chat(body, TOKENS):
        prompt = answer.get("prompt_token_ids") or prompt
        for choice in answer["choices"]:
            reader.add(choice)
            generated += choice.get("token_ids") or []

    found = reader.result()
    assert found is not None
    assert len(prompt) >= 30
    assert len(generated) == TOKENS
    assert_true(server, prompt, generated, found)


def generate(server: VllmServer, prompt: list[int], **more: Any) -> Iterator[dict[str, Any]]:
    """Asks for tokens with tokens; yields the choices of the answer, or of its chunks."""
    parameters = {"max_tokens": TOKENS, "temperature": 0.0, "ignore_eos": True}
    body = {
        "model": "tiny-moe",
        "token_ids": prompt,
        "sampling_params": {**parameters, "extra_args": ASKED},
        **more,
    }
    request = urllib.request.Request(
        f"{server.url}/inference/v1/generate",
        data=json.dumps(body).encode(),
        headers={"Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=60) as response:
        if not more.get("stream"):
            yield from json.load(response)["choices"]
            return
        for line in response:
            if line.startswith(b"data: {"):
                yield from json.loads(line[len(b"data: ") :])["choices"]


@pytest.mark.parametrize("stream", [False, True])
def test_answers_in_tokens_have_it_too(server: VllmServer, stream: bool) -> None:
    prompt = prompt_of(20 + stream, 40)
    reader, generated = StreamReader(), list[int]()

    for choice in generate(server, prompt, stream=stream):
        reader.add(choice)
        generated += choice["token_ids"] or []

    found = reader.result()
    assert found is not None
    assert found.missing_count == 0
    assert_true(server, prompt, generated, found)


def test_words_that_mean_nothing_are_refused(server: VllmServer) -> None:
    with pytest.raises(RuntimeError, match=r"answered 400: .*return_routed_experts is 'perhaps'"):
        server.choice([5, 6], 2, vllm_xargs={"return_routed_experts": "perhaps"})
    with pytest.raises(RuntimeError, match=r"answered 400: .*return_routed_experts is 'perhaps'"):
        list(server.stream([5, 6], 2, vllm_xargs={"return_routed_experts": "perhaps"}))


def test_a_deployment_that_cannot_return_experts_is_refused_at_startup(server: VllmServer) -> None:
    program = (
        "import sys; from vllm.engine.arg_utils import EngineArgs\n"
        "EngineArgs(model=sys.argv[1], dtype='float32', pipeline_parallel_size=2,"
        " distributed_executor_backend='mp').create_engine_config()"
    )

    done = subprocess.run(
        [sys.executable, "-c", program, str(server.model)],
        capture_output=True,
        text=True,
        env={**os.environ, **VARIABLE},
    )

    assert done.returncode == 1
    (line,) = done.stderr.strip().splitlines()[-1:]
    assert "routed experts cannot be returned: with 2 pipeline stages" in line
