"""Another order inside one NCCL group."""

from __future__ import annotations

from collections.abc import Iterable

from ncclscope.engine.case import Case
from ncclscope.model import Finding
from ncclscope.wording.names import call_text, comm_text, plural, ranks_text, sentence


class GroupOrder:
    """Ranks posted the calls of one NCCL group in different orders, which NCCL tolerates."""

    name = "group_order"

    def analyze(self, case: Case) -> Iterable[Finding]:
        """Yield a latent finding for each NCCL group with the same calls in another order."""
        for swap in case.group_swaps:
            odd, peers = swap.odd_call, swap.peer_call
            who = swap.odd or swap.ranks
            yield Finding(
                kind=self.name,
                summary=(
                    f"{sentence(ranks_text(who))} posted the {plural(swap.length, 'call')} of a "
                    f"group on {comm_text(swap.comm)} in another order: call {swap.seq} is "
                    f"{call_text(odd)} there and {call_text(peers)} on the others. NCCL sorts the "
                    f"calls of a group, so nothing hangs; other libraries, or the same calls "
                    f"outside of a group, would hang."
                ),
                comm=swap.comm,
                seq=swap.seq,
                diverging_ranks=swap.odd,
                candidate_ranks=() if swap.odd else swap.ranks,
                odd=odd,
                peers=peers,
                confidence="certain" if swap.odd else "ambiguous",
                role="latent",
                analyzer=self.name,
                evidence=(
                    f"calls {swap.seq} to {swap.end} on {comm_text(swap.comm)} form one NCCL group "
                    f"and differ between ranks only in their order",
                ),
                extent=swap.length,
            )
