"""How ranks ended, as the launchers that started them recorded it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from ncclscope.model import Rank
from ncclscope.model.metadata import ENDS, LAUNCHER
from ncclscope.model.text import status_text

_SHOWN = 4


def with_ends(ranks: Sequence[Rank], others: Sequence[Rank]) -> list[Rank]:
    """Return ranks with the exit status that a launcher on the same host saw, if one did."""
    statuses = {
        (*_namespace(other), pid): status
        for other in others
        for pid, status in other.details.get(ENDS, {}).items()
    }
    return [_ended(rank, statuses.get((*_namespace(rank), str(rank.pid)))) for rank in ranks]


def restarts(ranks: Sequence[Rank], others: Sequence[Rank]) -> Iterator[str]:
    """Yield remarks on processes that ended before the ranks that were read were started."""
    pids = {(rank.host, str(rank.pid)) for rank in ranks}
    for other in others:
        launcher, ends = other.details.get("launcher"), other.details.get(ENDS, {})
        if launcher == LAUNCHER or any((other.host, pid) in pids for pid in ends):
            continue
        for pid, status in [*ends.items()][:_SHOWN]:
            how = status_text(status)
            yield f"{launcher} started the ranks again after pid {pid} ended with {how}"


def _namespace(process: Rank) -> tuple[str, str, str]:
    """Return what a pid is unique in."""
    return (
        process.host,
        str(process.details.get("boot_id")),
        str(process.details.get("pid_namespace")),
    )


def _ended(rank: Rank, status: int | None) -> Rank:
    if not status or rank.alive:
        return rank
    details = {**rank.details, "exit_status": status}
    if rank.exited:  # in order, or so it began: a library may crash while the process ends
        details.setdefault("ended_with", status_text(status))
    return replace(rank, details=details)
