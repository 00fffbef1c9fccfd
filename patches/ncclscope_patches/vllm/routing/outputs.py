"""The API server's part: validate requests, and add the routing to their outputs.

A ``CompletionOutput`` of a request that opted in has ``routed_experts_result``, a
:class:`RoutedExperts`. It covers the whole request at its end or, in a stream of deltas, the new
tokens. vLLM's own field ``routed_experts`` is set at the end if no token is missing, since it
cannot mark missing ones. Where vLLM's own flag asked for the routing of all requests, it is always
set at the end (:mod:`.every`).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ncclscope.errors import UsageError
from ncclscope.tracing import session
from ncclscope_patches.routed_experts.requests import RoutingRequest, misspelt
from ncclscope_patches.routed_experts.result import RoutedExperts, routed_tokens
from ncclscope_patches.vllm.routing.every import asks_for_all, first_token, marked
from ncclscope_patches.vllm.routing.packing import unpack
from ncclscope_patches.vllm.routing.wrapping import attempt, wrap

RESULT = "routed_experts_result"
"""Attribute of a ``CompletionOutput``."""
_SENT = "_ncclscope_routing_sent"
_WHOLE = "_ncclscope_routing_whole"


def extend_inputs(module: Any) -> None:
    """Reject requests with invalid arguments about routed experts."""
    wrap(module.InputProcessor, "process_inputs", _process_inputs)


def extend_processor(module: Any) -> None:
    """Add the parts that the engine sent to the outputs."""
    wrap(module.RequestState, "_new_completion_output", _new_completion_output)
    wrap(module.OutputProcessor, "add_request", _add_request)


def extend_outputs(module: Any) -> None:
    """Join the parts correctly when vLLM merges outputs of a stream."""
    wrap(module.RequestOutput, "add", _add)


def joined(earlier: RoutedExperts | None, later: RoutedExperts | None) -> RoutedExperts | None:
    """Join two consecutive parts of a request."""
    if earlier is None or later is None:
        return later if earlier is None else earlier
    return RoutedExperts(
        np.concatenate([earlier.ids, later.ids]),
        np.concatenate([earlier.missing, later.missing]),
        earlier.prompt_tokens,
        earlier.first,
    )


def _process_inputs(
    usual: Any, self: Any, request_id: Any, prompt: Any, params: Any, *args: Any, **kwargs: Any
) -> Any:
    asked = getattr(params, "extra_args", None)
    for key in asked or ():
        if known := misspelt(key):
            session.warn_once(known, f"the key {key} of a request has no effect; is it {known}?")
    try:
        RoutingRequest.parse(asked)
    except UsageError as error:
        raise _clients_mistake(str(error)) from None
    params = marked(self.vllm_config, params)
    return usual(self, request_id, prompt, params, *args, **kwargs)


def _clients_mistake(message: str) -> Exception:
    """Return an exception that vLLM's server answers with status 400."""
    from vllm import exceptions

    kind: type[Exception] = getattr(exceptions, "VLLMValidationError", ValueError)
    return kind(message)


def _add_request(usual: Any, self: Any, request: Any, *args: Any, **kwargs: Any) -> Any:
    result = usual(self, request, *args, **kwargs)
    attempt("an answer has no routing", lambda: _expect(self, request))
    return result


def _expect(processor: Any, request: Any) -> None:
    """Note what vLLM's own way would return for a request."""
    asked = request.sampling_params
    state = processor.request_states.get(request.request_id)
    if asked is not None and state is not None and asks_for_all(asked):
        setattr(state, _SENT, first_token(asked, state.prompt_len))
        setattr(state, _WHOLE, [])


def _new_completion_output(
    usual: Any, self: Any, token_ids: Any, finish_reason: Any, *args: Any, **kwargs: Any
) -> Any:
    chunks = self.routed_experts_chunks
    if not chunks:
        return usual(self, token_ids, finish_reason, *args, **kwargs)
    self.routed_experts_chunks = []
    output = usual(self, token_ids, finish_reason, *args, **kwargs)
    attempt("an answer has no routing", lambda: _put_result(self, output, chunks, finish_reason))
    return output


def _put_result(state: Any, output: Any, chunks: list[Any], finish_reason: Any) -> None:
    delta = state.output_kind.name == "DELTA"
    if not delta and finish_reason is None:
        state.routed_experts_chunks = chunks
        return
    first = getattr(state, _SENT, 0)
    packed = np.concatenate(chunks) if len(chunks) > 1 else chunks[0]
    # A stop string may end the answer before the engine stops.
    end = routed_tokens(state.prompt_len, state.detokenizer.num_output_tokens())
    result = unpack(packed[: max(end - first, 0)], state.prompt_len, first)
    setattr(state, _SENT, first + result.tokens)
    setattr(output, RESULT, result)
    whole = getattr(state, _WHOLE, None)
    if whole is not None:
        whole.append(result.ids)
        output.routed_experts = None if finish_reason is None else np.concatenate(whole)
    elif not delta and not result.missing_count:
        output.routed_experts = result.ids


def _add(usual: Any, self: Any, next_output: Any, aggregate: bool) -> Any:
    if not aggregate:
        return usual(self, next_output, aggregate)
    later = {output.index: getattr(output, RESULT, None) for output in next_output.outputs}
    result = usual(self, next_output, aggregate)
    if any(part is not None for part in later.values()):
        attempt("a part of a stream has no routing", lambda: _join(self, next_output, later))
    return result


def _join(merged: Any, next_output: Any, later: dict[int, RoutedExperts | None]) -> None:
    mine = {id(output) for output in next_output.outputs}
    for output in merged.outputs:
        part = later.get(output.index)
        if part is not None and id(output) not in mine:
            setattr(output, RESULT, joined(getattr(output, RESULT, None), part))
