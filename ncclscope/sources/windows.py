"""Input that holds only the last so many calls of each rank.

A bounded buffer in the program counts what it holds, not what was called: where a rank
made one more call on one communicator, it must have one less on another. Seed 003's table
is such a one: every row adds up to 10,000. Counts of that kind prove nothing, so input of
that kind must be known for what it is.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ncclscope.model import Rank
from ncclscope.sources.memory import ListLog

__all__ = ["infer_windows"]


def infer_windows(ranks: Sequence[Rank]) -> list[Rank]:
    """Marks ranks as windows where their calls are unnumbered and their rows all add up alike.

    Equal totals alone are no proof: a rank that made 17 calls on the wrong communicator has
    the same total too. But a full trace begins with the same calls on all ranks, and windows
    of programs in different positions do not.
    """
    plain = [
        rank
        for rank in ranks
        if rank.details.get("format") == "jsonl" and not rank.details.get("numbered")
    ]
    if len(plain) < 2 or any(rank.window for rank in plain):
        return list(ranks)
    totals = {rank.records for rank in plain}
    if len(totals) != 1 or not _begin_apart(plain):
        return list(ranks)
    return [_as_window(rank) if rank in plain else rank for rank in ranks]


def _begin_apart(ranks: Sequence[Rank]) -> bool:
    """Whether members of one communicator begin with different calls, and count differently."""
    first: dict[str, int] = {}
    counts: dict[str, int] = {}
    apart = uneven = False
    for rank in ranks:
        for key, log in rank.logs.items():
            if log.calls < log.first:
                continue
            signature = log.call(log.first).signature
            apart = apart or first.setdefault(key, signature) != signature
            uneven = uneven or counts.setdefault(key, log.calls) != log.calls
    return apart and uneven


def _as_window(rank: Rank) -> Rank:
    logs = {
        key: ListLog(log.communicator, log.span(log.first, log.calls + 1), anchored=False)
        for key, log in rank.logs.items()
    }
    return replace(rank, logs=logs, window=True)
