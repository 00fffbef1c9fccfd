"""Routing and what is missing of it as one array, for a field of vLLM's that holds an array.

Behind the layers of each token comes one more, whose first number is 1 where the token is missing.
Parts can be put together, and cut off at the end, by whoever knows nothing of it.
"""

from __future__ import annotations

import numpy as np

from ncclscope_patches.routed_experts.result import RoutedExperts
from ncclscope_patches.routed_experts.shape import Ids

__all__ = ["pack", "unpack"]


def pack(part: RoutedExperts) -> Ids:
    """Return ``[tokens, layers + 1, top_k]``, of the type of the routing."""
    tokens, layers, top_k = part.ids.shape
    packed = np.zeros((tokens, layers + 1, top_k), part.ids.dtype)
    packed[:, :layers] = part.ids
    packed[:, layers, 0] = part.missing
    return packed


def unpack(packed: Ids, prompt_tokens: int, first: int = 0) -> RoutedExperts:
    """Read what :func:`pack` has written, in as many parts as there were."""
    missing = packed[:, -1, 0] != 0
    return RoutedExperts(np.ascontiguousarray(packed[:, :-1]), missing, prompt_tokens, first)
