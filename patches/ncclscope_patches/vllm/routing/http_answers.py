"""Add fields to HTTP answers, whole or streamed; see :mod:`..routed_experts.serving`."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable, Iterable
from typing import Any

from ncclscope_patches.routed_experts.requests import RoutingRequest
from ncclscope_patches.routed_experts.result import RoutedExperts
from ncclscope_patches.routed_experts.serving import choice_fields
from ncclscope_patches.vllm.routing import configuration
from ncclscope_patches.vllm.routing.outputs import RESULT, joined
from ncclscope_patches.vllm.routing.wrapping import wrap

_DATA = "data: "


def extend_completions(module: Any) -> None:
    """Add the fields to answers of ``/v1/completions``."""
    serving = module.OpenAIServingCompletion
    wrap(serving, "request_output_to_completion_response", _completion_response)
    wrap(serving, "completion_stream_generator", _completion_stream)


def extend_chat(module: Any) -> None:
    """Add the fields to answers of ``/v1/chat/completions``."""
    serving = module.OpenAIServingChat
    wrap(serving, "chat_completion_full_generator", _chat_response)
    wrap(serving, "chat_completion_stream_generator", streaming(_may_ask, _encoding))


class Pending:
    """Parts that have not been written yet, by index of their choice."""

    def __init__(self) -> None:
        self._parts: dict[int, RoutedExperts] = {}

    def __bool__(self) -> bool:
        return bool(self._parts)

    def note(self, outputs: Iterable[Any], first_choice: int = 0) -> None:
        """Add the parts of some outputs, and remove vLLM's own field from them."""
        for output in outputs:
            part = getattr(output, RESULT, None)
            if part is not None:
                setattr(output, RESULT, None)
                output.routed_experts = None
                number = first_choice + output.index
                whole = joined(self._parts.get(number), part)
                assert whole is not None
                self._parts[number] = whole

    def replace(self, outputs: Iterable[Any]) -> None:
        """Replace all earlier parts by those of cumulative outputs."""
        self._parts.clear()
        self.note(outputs)

    def take(self, choice: int) -> RoutedExperts | None:
        """Return and remove a choice's part; None if there is none."""
        return self._parts.pop(choice, None)

    def choices(self) -> list[int]:
        """Return the choices that have a part."""
        return sorted(self._parts)


def _may_ask(request: Any) -> bool:
    """Return whether a request may have opted in; other streams pass unchanged."""
    return bool(getattr(request, "vllm_xargs", None))


def _answers_all(serving: Any) -> bool:
    config = getattr(getattr(serving, "engine_client", None), "vllm_config", None)
    return configuration.answers_every_request(config)


def _encoding(request: Any) -> str:
    # Only answered requests get here, whose arguments have been validated before.
    return RoutingRequest.parse(getattr(request, "vllm_xargs", None)).encoding


def _fill(response: Any, pending: Pending, encoding: str) -> Any:
    for choice in getattr(response, "choices", ()):
        for name, value in choice_fields(pending.take(choice.index), encoding).items():
            setattr(choice, name, value)
    return response


def _completion_response(
    usual: Any, self: Any, final_res_batch: Any, request: Any, *args: Any, **kwargs: Any
) -> Any:
    pending, first = Pending(), 0
    for result in final_res_batch:
        for place, output in enumerate(result.outputs):
            # Choices are numbered in order, whatever the outputs' own indices are.
            pending.note([output], first + place - output.index)
        first += len(result.outputs)
    response = usual(self, final_res_batch, request, *args, **kwargs)
    return _fill(response, pending, _encoding(request)) if pending else response


async def _chat_response(
    usual: Any, self: Any, request: Any, result_generator: Any, *args: Any, **kwargs: Any
) -> Any:
    if not _may_ask(request) and not _answers_all(self):
        return await usual(self, request, result_generator, *args, **kwargs)
    pending = Pending()
    noted = noting(result_generator, lambda result: pending.replace(result.outputs))
    response = await usual(self, request, noted, *args, **kwargs)
    return _fill(response, pending, _encoding(request)) if pending else response


def _completion_stream(
    usual: Any, self: Any, request: Any, inputs: Any, results: Any, *args: Any, **kwargs: Any
) -> Any:
    if not _may_ask(request):
        return usual(self, request, inputs, results, *args, **kwargs)
    pending, choices = Pending(), request.n or 1
    noted = noting(results, lambda pair: pending.note(pair[1].outputs, pair[0] * choices))
    chunks = usual(self, request, inputs, noted, *args, **kwargs)
    return with_fields(chunks, pending, lambda: _encoding(request))


def streaming(
    wanted: Callable[[Any], bool], encoding: Callable[[Any], str]
) -> Callable[..., AsyncIterator[str]]:
    """Return a wrapper of the method that streams the answer to a request.

    Args:
        wanted: Whether a request may get fields; the streams of others pass unchanged.
        encoding: Return the encoding that a request asked for.
    """

    def stream(
        usual: Any, self: Any, request: Any, result_generator: Any, *args: Any, **kwargs: Any
    ) -> Any:
        if not wanted(request):
            return usual(self, request, result_generator, *args, **kwargs)
        pending = Pending()
        noted = noting(result_generator, lambda result: pending.note(result.outputs))
        chunks = usual(self, request, noted, *args, **kwargs)
        return with_fields(chunks, pending, lambda: encoding(request))

    return stream


async def noting(results: Any, note: Callable[[Any], None]) -> AsyncIterator[Any]:
    """Yield the engine's outputs, and note each of them before the server reads it."""
    async for result in results:
        note(result)
        yield result


async def with_fields(
    chunks: Any, pending: Pending, encoding: Callable[[], str]
) -> AsyncIterator[str]:
    """Yield the chunks of a stream, with pending parts in the next chunk of their choice.

    Args:
        chunks: The server's chunks, as lines of server-sent events.
        pending: Parts that no chunk contains yet.
        encoding: Return the encoding that the request asked for.
    """
    pattern = ""
    async for text in chunks:
        event = text.startswith(_DATA + "{")
        pattern = pattern or (text if event else "")
        if pending and event:
            chunk = json.loads(text[len(_DATA) :])
            for choice in chunk.get("choices", ()):
                choice.update(choice_fields(pending.take(choice["index"]), encoding()))
            text = _written(chunk)
        elif pending and pattern and text.startswith(_DATA + "[DONE]"):
            for rest in _remaining(json.loads(pattern[len(_DATA) :]), pending, encoding()):
                yield rest
        yield text


def _remaining(pattern: dict[str, Any], pending: Pending, encoding: str) -> Iterable[str]:
    """Return extra chunks for parts whose output had no other content.

    Args:
        pattern: The first chunk, which has a choice.
        pending: The parts.
        encoding: Encoding of the parts.
    """
    empty: dict[str, Any] = {"text": ""} if "text" in pattern["choices"][0] else {"delta": {}}
    for number in pending.choices():
        fields = choice_fields(pending.take(number), encoding)
        yield _written({**pattern, "choices": [{"index": number, **empty, **fields}]})


def _written(chunk: dict[str, Any]) -> str:
    return f"{_DATA}{json.dumps(chunk, ensure_ascii=False, separators=(',', ':'))}\n\n"
