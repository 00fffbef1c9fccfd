"""Calls that went to another communicator."""

from __future__ import annotations

from collections.abc import Iterable

from ncclscope.engine.case import Case
from ncclscope.engine.mismatch import PARAMETERS
from ncclscope.engine.sequences.swaps import Swap
from ncclscope.model import Blame, Finding
from ncclscope.wording.differences import Differ
from ncclscope.wording.names import plural, rank_text, site_text
from ncclscope.wording.skips import Elsewhere


class CommSwap:
    """One rank posted calls on one communicator that its peers posted on another."""

    name = "comm_swap"
    refines = ("extra_call", "missing_call", "capture_mismatch", *PARAMETERS)

    def analyze(self, case: Case) -> Iterable[Finding]:
        """Yield a finding where one communicator has as many extra calls as another lacks."""
        for swap in case.swaps:
            source = swap.source
            certain = source is not None and source.certain
            reason = None if source is None else source.reason
            missed = swap.other or swap.missed
            yield Finding(
                kind=self.name,
                summary=Elsewhere.SWAP.of(
                    who=rank_text(case.run, swap.rank),
                    count=plural(swap.count, "call"),
                    calls=range(swap.count),
                    swap=swap,
                    name=swap.comm.label or "it",
                    theirs=_theirs(swap),
                ),
                comm=swap.comm,
                seq=swap.seq,
                blame=Blame.on(
                    (swap.rank,), swap.confidence or ("certain" if certain else "likely")
                ),
                odd=swap.odd_call,
                peers=swap.peer_call,
                role="cause",
                hangs=True if source is None else None,
                evidence=tuple(self._evidence(swap)),
                inferred=() if reason is None else (reason,),
                extent=swap.count,
                accounts_for=((swap.fewer.key, missed.seq),) if missed else (),
                aligned=swap.difference.aligned if swap.difference is not None else (),
            )

    def _evidence(self, swap: Swap) -> Iterable[str]:
        yield Differ.AGREE.of(swap.comm, swap.seq)
        site = site_text(swap.peer_call) if swap.peer_call is not None else ""
        yield Elsewhere.POSTED.of(swap.seq, swap.rank, swap.odd_call, _theirs(swap), site)
        if swap.exchanged and swap.other is not None:
            name = swap.comm.label or Elsewhere.THE_OTHER
            yield Elsewhere.EXCHANGED.of(other=swap.other, rank=swap.rank, name=name)
        else:
            missed = Elsewhere.INSTEAD.of(swap.missed) if swap.missed else ""
            more = plural(swap.count, "call")
            yield Elsewhere.MORE.of(more, swap.comm, swap.count, swap.fewer, missed)


def _theirs(swap: Swap) -> str:
    if swap.peer_call is None:
        return Elsewhere.NOT_REACHED.of(swap.peers)
    return Elsewhere.OF_PEERS.of(swap.peer_call, swap.peers)
