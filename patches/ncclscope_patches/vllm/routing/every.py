"""Answer all requests as vLLM's own ``enable_return_routed_experts`` does.

Frameworks for reinforcement learning set that engine argument and read ``routed_experts`` of each
output. They get an array of vLLM's shape and type, whatever was captured: rows of missing tokens
are zeros, and ``routed_experts_result.missing`` says which they are.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Any

import numpy as np

from ncclscope.errors import UsageError
from ncclscope_patches.routed_experts.requests import EVERY, RoutingRequest
from ncclscope_patches.routed_experts.result import RoutedExperts
from ncclscope_patches.vllm.routing import configuration


@dataclass(frozen=True)
class VllmArrays:
    """The shape of vLLM's own arrays.

    Attributes:
        places: Numbers of the layers that route tokens, among all of the model's.
        layers: Number of all of the model's layers.

    Raises:
        UsageError: A layer has no place.
    """

    places: tuple[int, ...]
    layers: int

    def __post_init__(self) -> None:
        if not self.places or max(self.places) >= self.layers:
            raise UsageError(f"layers {list(self.places)} are not among {self.layers}")

    def of(self, part: RoutedExperts, start: int) -> RoutedExperts:
        """Return a part in vLLM's shape.

        Args:
            part: The part, with the layers that route tokens.
            start: Position of the first token that the request wants.
        """
        part = part.part(min(max(start - part.first, 0), part.tokens), part.tokens)
        if len(self.places) == self.layers:
            return part
        ids = np.zeros((part.tokens, self.layers, part.ids.shape[2]), part.ids.dtype)
        ids[:, list(self.places)] = part.ids
        return RoutedExperts(ids, part.missing, part.prompt_tokens, part.first)


def asks_for_all(sampling_params: Any) -> bool:
    """Return whether a request is answered because of vLLM's own flag."""
    return bool(RoutingRequest.parse(getattr(sampling_params, "extra_args", None)).every)


def first_token(sampling_params: Any, prompt_tokens: int) -> int:
    """Return the position from which on a request wants its routing."""
    start = getattr(sampling_params, "routed_experts_prompt_start", 0) or 0
    return min(int(start), prompt_tokens)


def marked(config: Any, sampling_params: Any) -> Any:
    """Return a request's parameters, which ask where the server's operator asked for all.

    Args:
        config: The ``VllmConfig``.
        sampling_params: Parameters of any kind. They are copied where they change; a client cannot
            set the mark.
    """
    extra = getattr(sampling_params, "extra_args", None) or {}
    every = configuration.answers_every_request(config)
    if not hasattr(sampling_params, "extra_args") or (EVERY in extra) == every:
        return sampling_params
    sampling_params = copy.copy(sampling_params)
    rest = {name: value for name, value in extra.items() if name != EVERY}
    sampling_params.extra_args = {**rest, EVERY: True} if every else rest
    return sampling_params
