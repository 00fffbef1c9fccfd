"""A mixture-of-experts layer in one process: all tokens, all experts, nothing dispatched."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
from torch.nn.functional import silu

EXPERTS = 8
HIDDEN = 16
INNER = 6
SHARED = 8
"""Inner width of the shared expert; divisible by the ranks of a replica."""


@dataclass(frozen=True)
class Layer:
    """Weights, the same in every process that makes them."""

    dtype: torch.dtype

    @cached_property
    def weights(self) -> tuple[torch.Tensor, ...]:
        """Up and down of each expert, then up and down of the shared one."""
        dice = torch.Generator().manual_seed(17)
        shapes = (EXPERTS, HIDDEN, INNER), (EXPERTS, INNER, HIDDEN), (HIDDEN, SHARED)
        shapes += ((SHARED, HIDDEN),)
        return tuple((torch.randn(shape, generator=dice) / 3).to(self.dtype) for shape in shapes)

    def expert(self, number: int, hidden: torch.Tensor, extra: tuple[torch.Tensor, ...]) -> object:
        """Return what one expert makes of rows, in float32: for ranks."""
        up, down = (weight[number].float().to(hidden.device) for weight in self.weights[:2])
        for tensor in extra:
            hidden = hidden * tensor.float().reshape(-1, 1)
        return silu(hidden.float() @ up) @ down

    def shared(self, hidden: torch.Tensor, part: int = 0, parts: int = 1) -> torch.Tensor:
        """Return what a part of the shared expert contributes: for ranks."""
        width = SHARED // parts
        up, down = (weight.float().to(hidden.device) for weight in self.weights[2:])
        inner = silu(hidden.float() @ up[:, part * width : (part + 1) * width])
        return (inner @ down[part * width : (part + 1) * width]).to(self.dtype)

    def dense(
        self,
        hidden: torch.Tensor,
        weights: torch.Tensor,
        ids: torch.Tensor,
        extra: tuple[torch.Tensor, ...],
        *,
        shared: bool,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Compute all tokens at once, in float64.

        Returns:
            The result, and the sum of the absolute values of all that was added up for it:
            what rounding errors are measured by.
        """
        up, down, shared_up, shared_down = (weight.double() for weight in self.weights)
        scaled = hidden.double()
        for tensor in extra:
            scaled = scaled * tensor.double().reshape(-1, 1)
        routing = torch.zeros(len(hidden), EXPERTS, dtype=torch.float64)
        routing.scatter_add_(1, ids.long(), weights.double())
        inner = silu(torch.einsum("th,ehi->tei", scaled, up))
        result = torch.einsum("tei,eih,te->th", inner, down, routing)
        size = torch.einsum("tei,eih,te->th", inner.abs(), down.abs(), routing.abs())
        if shared:
            inner = silu(hidden.double() @ shared_up)
            result = result + inner @ shared_down
            size = size + inner.abs() @ shared_down.abs()
        return result, size
