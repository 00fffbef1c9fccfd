"""Calls that went to another communicator."""

from __future__ import annotations

from collections.abc import Iterable

from ncclscope.engine.case import Case
from ncclscope.engine.mismatch import PARAMETERS
from ncclscope.engine.sequences.swaps import Swap
from ncclscope.model import Finding
from ncclscope.wording import skips as say
from ncclscope.wording.names import site_text


class CommSwap:
    """One rank posted calls on one communicator that its peers posted on another."""

    name = "comm_swap"
    refines = ("extra_call", "missing_call", "capture_mismatch", *PARAMETERS)

    def analyze(self, case: Case) -> Iterable[Finding]:
        """Yield a finding where one communicator has as many extra calls as another lacks."""
        for swap in case.swaps:
            theirs = say.of_peers(swap.peer_call, swap.peers)
            comms, odd = (swap.comm, swap.fewer), swap.odd_call
            source = swap.source
            certain = source is not None and source.certain
            reason = None if source is None else source.reason
            missed = swap.other or swap.missed
            yield Finding(
                kind=self.name,
                summary=say.swapped(case.run, swap.rank, comms, odd, theirs, swap.count),
                comm=swap.comm,
                seq=swap.seq,
                diverging_ranks=(swap.rank,),
                odd=odd,
                peers=swap.peer_call,
                confidence=swap.confidence or ("certain" if certain else "likely"),
                hangs=True if source is None else None,
                evidence=tuple(self._evidence(swap)),
                inferred=() if reason is None else (reason,),
                extent=swap.count,
                accounts_for=((swap.fewer.key, missed.seq),) if missed else (),
                aligned=swap.difference.aligned if swap.difference is not None else (),
            )

    def _evidence(self, swap: Swap) -> Iterable[str]:
        yield say.agree_until(swap.comm, swap.seq)
        theirs = say.of_peers(swap.peer_call, swap.peers)
        site = site_text(swap.peer_call) if swap.peer_call is not None else ""
        yield say.posted_there(swap.rank, swap.odd_call, theirs, site)
        if swap.exchanged and swap.other is not None:
            yield say.exchanged(swap.rank, swap.other, swap.comm.label)
        else:
            yield say.more_and_fewer((swap.comm, swap.fewer), swap.count, swap.missed)
