"""Pack routing and its missing mask into one array, for a vLLM field that holds an array.

Each token gets one extra layer, whose first number is 1 if the token is missing. Code that does not
know this format can still concatenate and truncate such arrays.
"""

from __future__ import annotations

import numpy as np

from ncclscope_patches.routed_experts.result import RoutedExperts
from ncclscope_patches.routed_experts.shape import Ids


def pack(part: RoutedExperts) -> Ids:
    """Return ``[tokens, layers + 1, top_k]``, of the type of the routing."""
    tokens, layers, top_k = part.ids.shape
    packed = np.zeros((tokens, layers + 1, top_k), part.ids.dtype)
    packed[:, :layers] = part.ids
    packed[:, layers, 0] = part.missing
    return packed


def unpack(packed: Ids, prompt_tokens: int, first: int = 0) -> RoutedExperts:
    """Return the routing of an array from :func:`pack`, or of several concatenated ones.

    Args:
        packed: ``[tokens, layers + 1, top_k]``.
        prompt_tokens: Number of tokens of the prompt.
        first: Position in the request of the first token.
    """
    missing = packed[:, -1, 0] != 0
    return RoutedExperts(np.ascontiguousarray(packed[:, :-1]), missing, prompt_tokens, first)
