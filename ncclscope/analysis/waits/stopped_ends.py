"""Transfers whose other end is a process that a signal has stopped, or that has no heartbeat."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ncclscope.analysis.waits.transfers import StuckTransfer, is_stopped
from ncclscope.analysis.wording import call_text, comm_text, rank_text, ranks_text, sentence, verb
from ncclscope.model import Finding

if TYPE_CHECKING:
    from ncclscope.analysis.case import Case


def stopped_end(case: Case, found: Sequence[StuckTransfer], analyzer: str) -> Finding | None:
    """Return a finding on the ranks that cannot post their half; None if all processes run.

    Args:
        case: The case.
        found: The stuck transfers.
        analyzer: Name of the analyzer that reports it.
    """
    own = [one for one in found if is_stopped(case, case.run.by_rank[one.peer])]
    ranks = tuple(sorted({one.peer for one in own}))
    if not own or len(ranks) > len({one.rank for one in found} - {*ranks}):
        return None
    known = all(case.run.by_rank[number].details.get("stopped") for number in ranks)
    who = rank_text(case.run, ranks[0]) if len(ranks) == 1 else ranks_text(ranks)
    be = "is" if len(ranks) == 1 else "are"
    state = "stopped by a signal" if known else "dead, gone or stopped (no heartbeat for seconds)"
    waiting = tuple(sorted({one.rank for one in own}))
    comm = own[0].pair.comm
    return Finding(
        kind="not_joined" if known else "dead_rank",
        summary=(
            f"{sentence(who)} {be} {state}; {ranks_text(waiting)} {verb(waiting, 'wait')} for "
            f"{'its' if len(ranks) == 1 else 'their'} half of transfers on {comm_text(comm)}."
        ),
        comm=comm,
        seq=None,  # transfers are not collectives, and are numbered separately
        diverging_ranks=ranks,
        odd=case.run.by_rank[ranks[0]].last_call(transfers=True),
        peers=own[0].call,
        confidence="likely",
        analyzer=analyzer,
        evidence=tuple(
            f"rank {one.rank} is in {call_text(one.call)}, transfer {one.number} between it and "
            f"rank {one.peer}, which has posted no other half"
            for one in own
        ),
        inferred=("ranks that wait for a rank which waits itself are held up by this one",),
    )
