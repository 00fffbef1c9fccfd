"""Run the experts of one rank one after another: correct on every device, but slow."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from ncclscope_patches.moe_dispatch.strategies import Dispatched


@dataclass(eq=False)
class LocalExperts:
    """Applies this rank's experts to the rows routed to them.

    It accumulates in float32 and rounds once. A server uses a fused kernel instead.

    Args:
        owned: The rank's experts.
        compute: Return an expert's output for some rows. It gets the expert's id, the rows'
            hidden states, and their rows of the extra tensors.
    """

    owned: range
    compute: Callable[[int, torch.Tensor, tuple[torch.Tensor, ...]], torch.Tensor]

    def __call__(self, sent: Dispatched) -> torch.Tensor:
        """Return the output, ``[rows, hidden]``, with the dtype of the hidden states."""
        total = torch.zeros_like(sent.hidden, dtype=torch.float32)
        for expert in self.owned:
            rows, places = torch.nonzero(sent.ids == expert, as_tuple=True)
            if not len(rows):
                continue
            extra = tuple(tensor[rows] for tensor in sent.extra)
            made = self.compute(expert, sent.hidden[rows], extra).float()
            total.index_add_(0, rows, made * sent.weights[rows, places].float().unsqueeze(1))
        return total.to(sent.hidden.dtype)
