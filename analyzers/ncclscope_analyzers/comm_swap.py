"""Calls that went to another communicator."""

from __future__ import annotations

from collections.abc import Iterable

from ncclscope.engine.case import Case
from ncclscope.engine.mismatch import PARAMETERS
from ncclscope.engine.sequences.swaps import Swap
from ncclscope.model import Finding
from ncclscope.wording.names import (
    call_text,
    comm_text,
    plural,
    rank_text,
    ranks_text,
    sentence,
    site_text,
    verb,
)


class CommSwap:
    """One rank posted calls on one communicator that its peers posted on another."""

    name = "comm_swap"
    refines = ("extra_call", "missing_call", "capture_mismatch", *PARAMETERS)

    def analyze(self, case: Case) -> Iterable[Finding]:
        """Yield a finding where one communicator has as many extra calls as another lacks."""
        for swap in case.swaps:
            here, there = comm_text(swap.comm), comm_text(swap.fewer)
            name = swap.comm.label or "it"
            source = swap.source
            certain = source is not None and source.certain
            reason = None if source is None else source.reason
            missed = swap.other or swap.missed
            yield Finding(
                kind=self.name,
                summary=(
                    f"{sentence(rank_text(case.run, swap.rank))} made {plural(swap.count, 'call')} "
                    f"on {here} that {verb(range(swap.count), 'belong')} on {there}: "
                    f"call {swap.seq} on {name} is {call_text(swap.odd_call)} there, "
                    f"{_peers_text(swap)}."
                ),
                comm=swap.comm,
                seq=swap.seq,
                diverging_ranks=(swap.rank,),
                odd=swap.odd_call,
                peers=swap.peer_call,
                confidence=swap.confidence or ("certain" if certain else "likely"),
                role="cause",
                analyzer=self.name,
                hangs=True if source is None else None,
                evidence=tuple(self._evidence(swap)),
                inferred=() if reason is None else (reason,),
                extent=swap.count,
                accounts_for=((swap.fewer.key, missed.seq),) if missed else (),
                aligned=swap.difference.aligned if swap.difference is not None else (),
            )

    def _evidence(self, swap: Swap) -> Iterable[str]:
        here, there = comm_text(swap.comm), comm_text(swap.fewer)
        yield f"{here}: all calls before #{swap.seq} agree"
        yield (
            f"#{swap.seq}: rank {swap.rank} posted {call_text(swap.odd_call)}"
            f"{site_text(swap.odd_call)}, {_peers_text(swap)}"
            + (site_text(swap.peer_call) if swap.peer_call is not None else "")
        )
        if swap.exchanged and swap.other is not None:
            yield (
                f"#{swap.other.seq} on {there}: rank {swap.rank} posted "
                f"{call_text(swap.other.odd_call)}{site_text(swap.other.odd_call)}, "
                f"{call_text(swap.other.peer_call)} on {ranks_text(swap.other.peers)}: exactly "
                f"what its peers posted on {swap.comm.label or 'the other communicator'}"
            )
            return
        missed = f" instead of {call_text(swap.missed)}" if swap.missed else ""
        yield (
            f"{plural(swap.count, 'call')} more on {here}, {swap.count} fewer on {there}{missed}, "
            f"counted in sequence order"
        )


def _peers_text(swap: Swap) -> str:
    if swap.peer_call is None:
        have = "has" if len(swap.peers) == 1 else "have"
        return f"which {ranks_text(swap.peers)} {have} not reached"
    return f"{call_text(swap.peer_call)} on {ranks_text(swap.peers)}"
