"""Parts of routing on their way through vLLM's outputs and streams: `make test-vllm`."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

pytest.importorskip("vllm")

import vllm.outputs
from vllm.outputs import CompletionOutput, RequestOutput

from ncclscope_patches.routed_experts import RoutedExperts, StreamReader
from ncclscope_patches.vllm import routing as vllm_routing
from ncclscope_patches.vllm.routing import http_answers, token_answers
from ncclscope_patches.vllm.routing.outputs import RESULT, extend_outputs
from ncclscope_patches.vllm.routing.packing import pack, unpack
from tests.routed.rows import rows

pytestmark = pytest.mark.vllm

PROMPT = 5


@pytest.fixture(autouse=True)
def installed() -> None:
    vllm_routing.install()
    extend_outputs(vllm.outputs)


def part(first: int, count: int, missing: int = 0) -> RoutedExperts:
    ids = rows(first, count)
    holes = np.arange(count) < missing
    ids[holes] = 0
    return RoutedExperts(ids, holes, PROMPT, first)


def output(index: int, tokens: list[int], found: RoutedExperts | None) -> CompletionOutput:
    one = CompletionOutput(index, "", tokens, None, None)
    if found is not None:
        setattr(one, RESULT, found)
    return one


def request(*outputs: CompletionOutput) -> RequestOutput:
    return RequestOutput("r", None, [1] * PROMPT, None, list(outputs), finished=False)


def test_packed_parts_can_be_joined_and_cut_off() -> None:
    packed = np.concatenate([pack(part(0, 6, missing=2)), pack(part(6, 3))])

    found = unpack(packed[:-1], PROMPT)

    assert found.missing_runs == ((0, 2),)
    assert np.array_equal(found.ids[2:], rows(2, 6))


def test_deltas_that_are_merged_keep_all_parts() -> None:
    earlier = request(output(0, [1], part(0, PROMPT)), output(1, [1], part(0, PROMPT)))
    earlier.add(request(output(1, [2, 3], part(PROMPT, 2))), aggregate=True)
    earlier.add(request(output(1, [4], None), output(2, [9], part(0, PROMPT))), aggregate=True)
    earlier.add(request(output(2, [8], part(PROMPT, 1))), aggregate=True)

    found = [getattr(one, RESULT) for one in earlier.outputs]

    assert [(one.first, one.tokens) for one in found] == [(0, 5), (0, 7), (0, 6)]
    assert np.array_equal(found[1].ids, rows(0, 7))


def test_cumulative_outputs_replace_each_other() -> None:
    earlier = request(output(0, [1], part(0, PROMPT)))
    earlier.add(request(output(0, [1, 2], part(0, PROMPT + 1))), aggregate=False)

    assert getattr(earlier.outputs[0], RESULT).tokens == PROMPT + 1


def stream(*events: Any) -> list[str]:
    """Play a server's stream: outputs come in, chunks go out."""
    pending = http_answers.Pending()

    async def chunks() -> AsyncIterator[str]:
        for event in events:
            if isinstance(event, str):
                yield event
            else:
                pending.note([event])

    async def collect() -> list[str]:
        return [text async for text in http_answers.with_fields(chunks(), pending, lambda: "npy")]

    return asyncio.run(collect())


def chunk(*choices: int) -> str:
    return f"data: {json.dumps({'id': 'c', 'choices': [{'index': own} for own in choices]})}\n\n"


def read(texts: list[str], choice: int) -> RoutedExperts | None:
    reader = StreamReader()
    for text in texts:
        if text.startswith("data: {"):
            for one in json.loads(text[len("data: ") :])["choices"]:
                if one["index"] == choice:
                    reader.add(one)
    return reader.result()


def test_each_chunk_gets_the_parts_of_its_choices() -> None:
    texts = stream(
        ": a comment\n\n",
        output(0, [1], part(0, 5)),
        output(1, [1], part(0, 6)),
        chunk(1),
        output(0, [2], part(5, 1)),
        chunk(0, 1),
        chunk(0),
        "data: [DONE]\n\n",
    )

    assert len(texts) == 5
    for choice in range(2):
        found = read(texts, choice)
        assert found is not None
        assert np.array_equal(found.ids, rows(0, 6))
    assert texts[0] == ": a comment\n\n"
    assert texts[3] == chunk(0), "it had nothing to be added"


def test_what_no_chunk_had_room_for_comes_before_the_end() -> None:
    texts = stream(chunk(0), output(0, [1], part(0, 5)), "data: [DONE]\n\n")

    assert [text[:7] for text in texts] == ["data: {", "data: {", "data: ["]
    found = read(texts, 0)
    assert found is not None
    assert found.tokens == 5


def test_a_stream_that_nobody_asked_for_passes_as_it_is() -> None:
    events = [chunk(0), output(0, [1], None), chunk(0), "data: [DONE]\n\n"]

    assert stream(*events) == [event for event in events if isinstance(event, str)]


def ask_for_tokens(parts: list[RoutedExperts | None], *, stream: bool) -> list[dict[str, Any]]:
    """Lets vLLM's server of `/inference/v1/generate` answer played outputs; returns its choices."""
    from vllm.entrypoints.scale_out.token_in_token_out import serving
    from vllm.entrypoints.scale_out.token_in_token_out.protocol import GenerateRequest

    token_answers.extend_tokens(serving)
    made = serving.ServingTokens.__new__(serving.ServingTokens)
    made.__dict__.update(
        enable_prompt_tokens_details=False, enable_log_outputs=False, request_logger=None
    )
    extra = {"return_routed_experts": True, "routed_experts_encoding": "compact"}
    asked = GenerateRequest(
        model="m", token_ids=[1] * PROMPT, sampling_params={"max_tokens": 2, "extra_args": extra}
    )

    async def results() -> AsyncIterator[RequestOutput]:
        for number, found in enumerate(parts):
            one = request(output(0, [number], found))
            one.outputs[0].finish_reason = "length" if number == len(parts) - 1 else None
            yield one

    async def answer() -> list[dict[str, Any]]:
        rest = ("r", "m", SimpleNamespace())
        if stream:
            chunks = made.serve_tokens_stream_generator(asked, results(), *rest)
            texts = [text async for text in chunks if text.startswith("data: {")]
            documents = [json.loads(text[len("data: ") :]) for text in texts]
        else:
            response = await made.serve_tokens_full_generator(asked, results(), *rest)
            documents = [json.loads(json.dumps(response.model_dump()))]
        return [choice for document in documents for choice in document["choices"]]

    return asyncio.run(answer())


@pytest.mark.parametrize("stream", [False, True])
def test_answers_in_tokens_say_what_is_missing(stream: bool) -> None:
    parts = [part(0, PROMPT, missing=2), part(PROMPT, 1)] if stream else [part(0, 6, missing=2)]
    reader = StreamReader()

    for choice in ask_for_tokens([*parts], stream=stream):
        assert choice["token_ids"]
        assert choice["routed_experts_info"]["encoding"] == "compact"
        reader.add(choice)

    found = reader.result()
    assert found is not None
    assert found.missing_runs == ((0, 2),)
    assert np.array_equal(found.ids[2:], rows(2, 4))


@pytest.mark.parametrize("stream", [False, True])
def test_answers_in_tokens_without_routing_are_vllms_own(stream: bool) -> None:
    (choice,) = ask_for_tokens([None], stream=stream)

    assert choice["routed_experts"] is None
    assert "routed_experts_info" not in choice
