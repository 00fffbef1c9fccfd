"""The exchange of tokens between the ranks of a group."""

from __future__ import annotations

from datetime import timedelta
from itertools import count
from typing import Any

import torch
import torch.distributed as dist

_numbers = count()
_TIMEOUT = timedelta(seconds=300)


class Exchange:
    """Sends tokens to ranks, and back.

    Args:
        group: The process group; its store is the meeting point of an own backend.
    """

    def __init__(self, group: Any) -> None:
        self.rank, self.size = group.rank(), group.size()
        store = dist.PrefixStore(f"experts {next(_numbers)}", group.get_group_store())
        self._gloo = dist.ProcessGroupGloo(store, self.rank, self.size, _TIMEOUT)

    def dispatch(self, tokens: Any, chosen: Any) -> tuple[Any, Any]:
        """Send tokens `[tokens, hidden]` to the ranks in `chosen`, `[tokens, ranks]`.

        Returns:
            The received tokens, and the number of them from each rank.
        """
        self._meet(1)
        sent = chosen.sum(0)
        received = torch.empty_like(sent)
        self._all_to_all(received, sent, [], [])
        rows = torch.cat([tokens[chosen[:, rank]] for rank in range(self.size)])
        output = tokens.new_empty((int(received.sum()), tokens.shape[1]))
        self._all_to_all(output, rows, received.tolist(), sent.tolist())
        return output, received

    def combine(self, tokens: Any, chosen: Any, received: Any) -> Any:
        """Send tokens back, and return their sums at their first ranks, `[tokens, hidden]`."""
        self._meet(2)
        rows = tokens.new_empty((int(chosen.sum()), tokens.shape[1]))
        self._all_to_all(rows, tokens, chosen.sum(0).tolist(), received.tolist())
        sums = tokens.new_zeros((chosen.shape[0], tokens.shape[1]))
        places = torch.cat([chosen[:, rank].nonzero()[:, 0] for rank in range(self.size)])
        return sums.index_add_(0, places, rows)

    def _meet(self, tag: int) -> None:
        """Wait until all members are in this kind of call: each has its own tag."""
        peers = [rank for rank in range(self.size) if rank != self.rank]
        works = [self._gloo.send([torch.ones(1)], rank, tag) for rank in peers]
        works += [self._gloo.recv([torch.ones(1)], rank, tag) for rank in peers]
        for work in works:
            work.wait()

    def _all_to_all(self, output: Any, given: Any, out: list[int], own: list[int]) -> None:
        self._gloo.alltoall_base(output, given, out, own, dist.AllToAllOptions()).wait()


def ranks_of(topk_idx: Any, experts: int, size: int) -> Any:
    """Return which ranks hold an expert of each token, `[tokens, ranks]`."""
    if experts % size:
        raise ValueError(f"{experts} experts for {size} ranks")
    holder = topk_idx // (experts // size)
    return torch.nn.functional.one_hot(holder, size).any(1)
