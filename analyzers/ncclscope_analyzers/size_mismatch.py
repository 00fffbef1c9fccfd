"""Same call, different size."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from math import prod

from ncclscope.engine.case import Case, may_hold
from ncclscope.engine.mismatch import ParameterMismatch
from ncclscope.model import Blame, Call, Communicator, Finding
from ncclscope.model.log import CallLog
from ncclscope.wording.mismatches import Unlike
from ncclscope.wording.names import shape_text, site_text, who_text

FRONT = 8
"""Calls checked in rings, counted back from the end or from the first divergence."""


class SizeMismatch(ParameterMismatch):
    """One rank posted the call with another size, or with an output that does not fit its input."""

    name = "size_mismatch"
    parameter = "size"

    def analyze(self, case: Case) -> Iterable[Finding]:
        """Yield differences in size, then calls whose output does not fit their own input."""
        yield from super().analyze(case)
        diverged = {divergence.comm.key: divergence.seq for divergence in case.divergences}
        whole = any(rank.details.get("splits") for rank in case.run.ranks)
        for key, comm in case.run.communicators.items():
            if len(comm.ranks) < 2 or comm.is_partial:
                continue
            unfit: dict[int, dict[int, Call]] = {}
            for number, log in case.logs(key).items():
                for call in _unfit(log, len(comm.ranks), diverged.get(key), whole=whole):
                    unfit.setdefault(call.seq, {})[number] = call
            seq = min(unfit, default=0)
            if seq and seq != diverged.get(key):
                yield self._unfit(case, comm, seq, unfit[seq])

    def _unfit(
        self, case: Case, comm: Communicator, seq: int, calls: Mapping[int, Call]
    ) -> Finding:
        ranks = tuple(sorted(calls))
        call = calls[ranks[0]]
        due, shape = _due(call, len(comm.ranks)), shape_text(call.out_shape)
        logs = case.logs(comm.key)
        peers = (
            log.call(seq)
            for rank, log in sorted(logs.items())
            if rank not in calls and log.first <= seq <= log.calls
        )
        return Finding(
            kind=self.name,
            summary=Unlike.OUTPUT.of(
                who=who_text(case.run, ranks),
                call=call,
                comm=comm,
                shape=shape,
                size=len(comm.ranks),
                due=due,
            ),
            comm=comm,
            seq=seq,
            blame=Blame.on(ranks, "certain"),
            odd=call,
            peers=next(peers, None),
            role="cause",
            evidence=(Unlike.PASSED.of(ranks=ranks, call=call, shape=shape, site=site_text(call)),),
            extent=1,
        )


def _unfit(log: CallLog, size: int, end: int | None, *, whole: bool) -> Iterator[Call]:
    """Yield calls whose output does not fit their input in a communicator of ``size`` members."""
    if not may_hold(log, "all_gather", "reduce_scatter"):
        return
    stop = min(log.calls, end or log.calls) + 1
    start = log.first if whole else max(log.first, stop - FRONT)
    for call in log.span(start, stop):
        due = _due(call, size)
        if due is not None and call.shape and call.out_shape is not None:
            # A list of tensors is recorded as its first, which is as large as the input.
            held = prod(call.out_shape)
            if held not in (due, prod(call.shape)):
                yield call


def _due(call: Call, size: int) -> int | None:
    """Return the elements that the output of a call must have; None where that is unknown."""
    if call.shape is None:
        return None
    count = prod(call.shape)
    if call.op == "all_gather":
        return count * size
    if call.op == "reduce_scatter":
        return count // size
    return None
