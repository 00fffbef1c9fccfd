"""Routed experts in vLLM's own requests and encoder."""

from __future__ import annotations

import pytest

pytest.importorskip("vllm")

import numpy as np

from ncclscope_patches.routed_experts import (
    RoutedExperts,
    RoutingRequest,
    choice_fields,
    decode_choice,
    encode_array,
)
from tests.routed.rows import rows

pytestmark = pytest.mark.vllm


@pytest.mark.parametrize("value", [True, False, 1, 0, "true", "false"])
def test_the_opt_in_reaches_the_sampling_parameters(value: object) -> None:
    from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
    from vllm.entrypoints.openai.completion.protocol import CompletionRequest

    xargs = {"return_routed_experts": value, "routed_experts_encoding": "compact"}
    requests = [
        CompletionRequest(model="m", prompt="p", vllm_xargs=xargs),
        ChatCompletionRequest(
            model="m", messages=[{"role": "user", "content": "p"}], vllm_xargs=xargs
        ),
    ]
    for request in requests:
        parameters = request.to_sampling_params(max_tokens=4, default_sampling_params={})
        parsed = RoutingRequest.parse(parameters.extra_args)
        assert parsed == RoutingRequest(str(value).lower() in ("true", "1"), "compact")


def test_nothing_is_asked_for_by_default() -> None:
    from vllm import SamplingParams

    assert not RoutingRequest.parse(SamplingParams().extra_args).wanted


def test_arrays_are_encoded_as_vllm_encodes_them() -> None:
    from vllm.utils.serial_utils import numpy2base64

    for ids in (rows(0, 40), rows(0, 40).astype(np.uint16), rows(0, 0)):
        assert encode_array(ids) == numpy2base64(ids)


def test_the_field_is_that_of_vllms_choices() -> None:
    from vllm.entrypoints.openai.chat_completion.protocol import (
        ChatCompletionResponseChoice,
        ChatMessage,
    )
    from vllm.entrypoints.openai.completion.protocol import CompletionResponseChoice

    fields = choice_fields(RoutedExperts(rows(0, 9), np.arange(9) == 2, 5))
    message = ChatMessage(role="assistant", content="")
    choices = [
        CompletionResponseChoice(index=0, text="", **fields),
        ChatCompletionResponseChoice(index=0, message=message, **fields),
    ]
    for choice in choices:
        assert choice.routed_experts == fields["routed_experts"]
        again = decode_choice(choice.model_dump())
        assert again is not None
        assert np.array_equal(again.ids, rows(0, 9))
        assert again.missing_runs == ((2, 1),)
