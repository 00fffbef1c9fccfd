"""A mixture-of-experts dispatcher in the manner of expert parallelism, over torch.distributed.

Each rank holds some tokens and some experts. A step sends every token to the rank of its
expert, has it worked on there, and brings it back.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.distributed as dist

HIDDEN = 4


class Dispatcher:
    """Sends tokens to their experts and back.

    Args:
        experts: How many there are, over all ranks.
        skip_when_idle: The bug. A rank whose experts get nothing leaves out the bulk exchange:
            there is nothing to do, so why take part? Because the others wait for it.
    """

    def __init__(self, experts: int, *, skip_when_idle: bool = False) -> None:
        self.ranks = dist.get_world_size()
        self.share = experts // self.ranks
        self.skip_when_idle = skip_when_idle

    def step(self, tokens: torch.Tensor, experts: Sequence[int]) -> torch.Tensor:
        """Return the experts' output for this rank's tokens, in the tokens' order.

        Args:
            tokens: One row each.
            experts: The expert of each.
        """
        chosen = torch.tensor(experts, dtype=torch.int64)
        order = torch.argsort(chosen, stable=True)
        sends = torch.bincount(chosen // self.share, minlength=self.ranks)
        receives = torch.empty_like(sends)
        dist.all_to_all_single(receives, sends)
        if self.skip_when_idle and not receives.sum():
            return torch.zeros_like(tokens)
        arrived = tokens.new_empty(int(receives.sum()), HIDDEN)
        dist.all_to_all_single(arrived, tokens[order], receives.tolist(), sends.tolist())
        worked = arrived * 2
        returned = torch.empty_like(tokens)
        dist.all_to_all_single(returned, worked, sends.tolist(), receives.tolist())
        result = torch.empty_like(returned)
        result[order] = returned
        return result
