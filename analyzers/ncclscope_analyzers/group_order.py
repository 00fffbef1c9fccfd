"""Another order inside one NCCL group."""

from __future__ import annotations

from collections.abc import Iterable

from ncclscope.engine.case import Case
from ncclscope.model import Blame, Finding
from ncclscope.wording.names import plural
from ncclscope.wording.skips import Skip


class GroupOrder:
    """Ranks posted the calls of one NCCL group in different orders, which NCCL tolerates."""

    name = "group_order"

    def analyze(self, case: Case) -> Iterable[Finding]:
        """Yield a latent finding for each NCCL group with the same calls in another order."""
        for swap in case.group_swaps:
            odd, peers = swap.odd_call, swap.peer_call
            yield Finding(
                kind=self.name,
                summary=Skip.IN_GROUP.of(
                    ranks=swap.odd or swap.ranks, count=plural(swap.length, "call"), swap=swap
                ),
                comm=swap.comm,
                seq=swap.seq,
                blame=Blame.on(swap.odd, "certain") if swap.odd else Blame.among(swap.ranks),
                odd=odd,
                peers=peers,
                role="latent",
                evidence=(Skip.ONE_GROUP.of(swap),),
                extent=swap.length,
            )
