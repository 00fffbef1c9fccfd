"""The shape of one token's routing, and the narrowest type that holds it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ncclscope.errors import UsageError

Ids = NDArray[np.generic]
"""Expert ids, ``[tokens, layers, top_k]``, of the type in :class:`RoutingShape`."""
Mask = NDArray[np.bool_]
"""One boolean per token, ``[tokens]``."""


@dataclass(frozen=True)
class RoutingShape:
    """One model's routing.

    Attributes:
        layers: Number of layers that route tokens, without dense layers.
        top_k: Experts per token in each of them.
        experts: Number of experts; the router's ids go from 0 to `experts - 1`.

    Raises:
        UsageError: No model can have this shape.
    """

    layers: int
    top_k: int
    experts: int

    def __post_init__(self) -> None:
        if self.layers < 1 or not 1 <= self.top_k <= self.experts:
            raise UsageError(
                f"no model routes tokens to {self.top_k} of {self.experts} experts "
                f"in {self.layers} layers"
            )
        if self.experts > 1 << 31:
            raise UsageError(f"{self.experts} experts are more than 32 bits can number")

    @property
    def dtype(self) -> np.dtype[np.generic]:
        """The narrowest type for ids below ``experts``: uint8, uint16 or int32."""
        if self.experts <= 1 << 8:
            return np.dtype(np.uint8)
        return np.dtype(np.uint16 if self.experts <= 1 << 16 else np.int32)

    @property
    def token_bytes(self) -> int:
        """Size of one token's routing in bytes."""
        return self.layers * self.top_k * self.dtype.itemsize

    def empty(self, tokens: int) -> Ids:
        """Return zeros, ``[tokens, layers, top_k]``."""
        return np.zeros((tokens, self.layers, self.top_k), self.dtype)

    def check(self, ids: Ids) -> None:
        """Raise an error for an array of another shape or type.

        Raises:
            UsageError: The rows do not have this shape and type.
        """
        if ids.ndim != 3 or ids.shape[1:] != (self.layers, self.top_k) or ids.dtype != self.dtype:
            raise UsageError(
                f"{ids.dtype} {list(ids.shape)} is no routing of {self.layers} layers, "
                f"top {self.top_k}, {self.dtype}"
            )
