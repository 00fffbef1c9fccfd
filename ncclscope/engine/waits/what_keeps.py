"""What keeps a rank from a call in which others wait for it, as far as any data source shows."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ncclscope.engine.processes.asleep import wakes_of
from ncclscope.engine.processes.motion import is_seen_at_work
from ncclscope.engine.records import DEAD_SECONDS
from ncclscope.engine.waits.engine_steps import is_idle
from ncclscope.engine.waits.noted import doing, raised
from ncclscope.engine.waits.waits import is_in_transfer
from ncclscope.model import Rank
from ncclscope.wording.waits import Keeps

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ncclscope.engine.case import Case


def what_keeps(case: Case, rank: Rank) -> Keeps | None:
    """Return what keeps a rank from a call; None where no data source shows it."""
    if rank.details.get("stopped"):
        return Keeps.STOPPED
    if case.waits.is_outside(rank.rank):
        return Keeps.DEVICE
    if rank.rank in case.waits.pending_calls:
        return Keeps.OTHERS
    if is_idle(rank):
        return Keeps.IDLE
    if doing(rank) is not None or raised(case, rank) is not None:
        return Keeps.KEPT if rank.alive is False else Keeps.NOTED
    if wakes_of(case, [rank.rank]):
        return Keeps.ASLEEP
    if is_in_transfer(rank):
        return Keeps.TRANSFER
    return Keeps.LATE if is_seen_at_work(case.run, rank.rank) else None


def is_silent(case: Case, rank: Rank, waiting: Sequence[int]) -> bool:
    """Return whether the heartbeat of a living process has ended: it is stopped, or in C code.

    Args:
        case: The case.
        rank: The process.
        waiting: Ranks whose heartbeats it is compared with.
    """
    if rank.details.get("stopped"):
        return True
    times = [case.quiet_seconds(case.run.by_rank[number]) for number in waiting]
    others = max((one for one in times if one is not None), default=0.0)
    is_behind = (case.quiet_seconds(rank) or 0.0) + DEAD_SECONDS < others
    return rank.alive is True and is_behind and case.may_have_ended_before(rank, waiting)


def may_come(rank: Rank) -> bool:
    """Return whether a rank might still come, or might have come had the job not been killed."""
    now = doing(rank)
    return bool(rank.alive) or is_in_transfer(rank) or (now is not None and now.is_work)
