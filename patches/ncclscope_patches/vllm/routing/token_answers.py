"""Add fields to answers of ``/inference/v1/generate``, which takes and returns token ids.

Its requests bring sampling parameters, so they ask in ``sampling_params.extra_args``. Its answers
are models without room for further fields, so these are added when an answer becomes a document.
"""

from __future__ import annotations

import functools
from typing import Any

from ncclscope_patches.routed_experts.requests import RoutingRequest
from ncclscope_patches.routed_experts.serving import choice_fields
from ncclscope_patches.vllm.routing.http_answers import Pending, noting, streaming
from ncclscope_patches.vllm.routing.wrapping import wrap

_FIELDS = "_ncclscope_routing_fields"


def extend_tokens(module: Any) -> None:
    """Add the fields, whole or streamed."""
    wrap(module.ServingTokens, "serve_tokens_full_generator", _whole)
    stream = streaming(
        lambda request: _asked(request).wanted, lambda request: _asked(request).encoding
    )
    wrap(module.ServingTokens, "serve_tokens_stream_generator", stream)


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
        response.__class__ = _with_room(response.__class__)
        object.__setattr__(response, _FIELDS, fields)
    return response


@functools.cache
def _with_room(kind: Any) -> Any:
    """Return a class of answers whose documents have the fields; one for each of vLLM's."""

    class Answer(kind):  # type: ignore[misc]
        def model_dump(self, *args: Any, **kwargs: Any) -> Any:
            document = super().model_dump(*args, **kwargs)
            for choice in document["choices"]:
                choice.update(self.__dict__[_FIELDS].get(choice["index"], {}))
            return document

    Answer.__name__ = kind.__name__
    return Answer
