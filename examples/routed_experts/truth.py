"""The toy model's routing and its tokens, which anybody can compute.

Both follow from a token, its position and the layer alone. So every row of every answer can be
held against what it has to be.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

__all__ = ["VOCABULARY", "continuation", "next_token", "routing"]

VOCABULARY = 50_000
_WORD = 0xFFFFFFFF
_STRIDE = 37
"""Between a token's experts: they differ as long as it shares no factor with their number."""

Numbers = NDArray[np.int64]


def routing(tokens: Numbers, positions: Numbers, layers: int, top_k: int, experts: int) -> Numbers:
    """Return the experts of some tokens, ``[tokens, layers, top_k]``."""
    mixed = (tokens * 2_654_435_761 + positions * 2_246_822_519) & _WORD
    by_layer = (mixed[:, None] + np.arange(layers) * 3_266_489_917) & _WORD
    first = ((by_layer * 668_265_263) & _WORD) >> 13
    stride = _STRIDE if experts % _STRIDE else 1
    ids: Numbers = (first[:, :, None] + np.arange(top_k) * stride) % experts
    return ids


def next_token(token: int, position: int) -> int:
    """Return what the model generates after a token."""
    return (token * 7919 + position * 104_729 + 12_345) % VOCABULARY


def continuation(prompt: Sequence[int], count: int) -> list[int]:
    """Return what it generates after a prompt."""
    tokens = list(prompt)
    for _ in range(count):
        tokens.append(next_token(tokens[-1], len(tokens) - 1))
    return tokens[len(prompt) :]
