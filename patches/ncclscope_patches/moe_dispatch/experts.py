"""The experts of one rank, one after the other: right on every device, and slow."""

from __future__ import annotations

from collections.abc import Callable

import torch

from ncclscope_patches.moe_dispatch.strategies import Dispatched

__all__ = ["LocalExperts"]


class LocalExperts:
    """Has each row worked on by those of its experts that this rank has.

    A fused kernel takes its place in a server. It adds up in float32, and rounds once.

    Args:
        owned: The rank's experts.
        compute: Returns what an expert makes of some rows. It is given the expert's number, the
            rows' hidden states, and their part of what was sent along.
    """

    def __init__(
        self,
        owned: range,
        compute: Callable[[int, torch.Tensor, tuple[torch.Tensor, ...]], torch.Tensor],
    ) -> None:
        self.owned = owned
        self.compute = compute

    def __call__(self, sent: Dispatched) -> torch.Tensor:
        """Return ``[rows, hidden]``, in the type of the hidden states."""
        total = torch.zeros_like(sent.hidden, dtype=torch.float32)
        for expert in self.owned:
            rows, places = torch.nonzero(sent.ids == expert, as_tuple=True)
            if not len(rows):
                continue
            extra = tuple(tensor[rows] for tensor in sent.extra)
            made = self.compute(expert, sent.hidden[rows], extra).float()
            total.index_add_(0, rows, made * sent.weights[rows, places].float().unsqueeze(1))
        return total.to(sent.hidden.dtype)
