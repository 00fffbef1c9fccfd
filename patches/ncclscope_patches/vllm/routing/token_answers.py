"""Add fields to answers of ``/inference/v1/generate``, which takes and returns token ids.

Its requests bring sampling parameters, so they ask in ``sampling_params.extra_args``. Its answers
are models without room for further fields, so these are added when an answer becomes a document.
"""

from __future__ import annotations

from typing import Any

from ncclscope_patches.routed_experts.requests import RoutingRequest
from ncclscope_patches.routed_experts.serving import choice_fields
from ncclscope_patches.vllm.routing.http_answers import Pending, noting, with_fields
from ncclscope_patches.vllm.routing.wrapping import wrap

__all__ = ["extend_tokens"]

_FIELDS = "_ncclscope_routing_fields"


def extend_tokens(module: Any) -> None:
    """Add the fields, whole or streamed."""
    wrap(module.ServingTokens, "serve_tokens_full_generator", _whole)
    wrap(module.ServingTokens, "serve_tokens_stream_generator", _stream)


def _asked(request: Any) -> RoutingRequest:
    return RoutingRequest.parse(getattr(request.sampling_params, "extra_args", None))


async def _whole(
    usual: Any, self: Any, request: Any, result_generator: Any, *args: Any, **kwargs: Any
) -> Any:
    pending = Pending()
    noted = noting(result_generator, lambda result: pending.replace(result.outputs))
    response = await usual(self, request, noted, *args, **kwargs)
    if pending and hasattr(response, "choices"):
        encoding = _asked(request).encoding
        fields = {
            choice.index: choice_fields(pending.take(choice.index), encoding)
            for choice in response.choices
        }
        response.__class__ = _with_room(type(response))
        object.__setattr__(response, _FIELDS, fields)
    return response


def _stream(
    usual: Any, self: Any, request: Any, result_generator: Any, *args: Any, **kwargs: Any
) -> Any:
    if not _asked(request).wanted:
        return usual(self, request, result_generator, *args, **kwargs)
    pending = Pending()
    noted = noting(result_generator, lambda result: pending.note(result.outputs))
    chunks = usual(self, request, noted, *args, **kwargs)
    return with_fields(chunks, pending, lambda: _asked(request).encoding)


_classes: dict[type[Any], type[Any]] = {}


def _with_room(kind: type[Any]) -> type[Any]:
    """Return a class of answers whose documents have the fields; one for each of vLLM's."""
    if kind not in _classes:
        _classes[kind] = _extended(kind)
    return _classes[kind]


def _extended(kind: type[Any]) -> type[Any]:
    class Answer(kind):  # type: ignore[misc]
        def model_dump(self, *args: Any, **kwargs: Any) -> Any:
            document = super().model_dump(*args, **kwargs)
            for choice in document["choices"]:
                choice.update(self.__dict__[_FIELDS].get(choice["index"], {}))
            return document

    Answer.__name__ = kind.__name__
    return Answer
