"""Ranks that no peer waits for, and that the program which started them saw end."""

from __future__ import annotations

from collections.abc import Iterable

from ncclscope.engine.case import Case
from ncclscope.engine.waits.endings import status_of
from ncclscope.engine.waits.engine_steps import dead_workers
from ncclscope.model import Finding
from ncclscope.wording import ends as wording

_KIND = "dead_rank"
_SHOWN = 4


def missed_by_launchers(case: Case, analyzer: str) -> Iterable[Finding]:
    """Yield the ranks that recorded no end, where a launcher saw them end by themselves."""
    ranks = case.run.ranks
    found = {rank.rank: status for rank in ranks if (status := status_of(rank))}
    if not found or len(found) == len(ranks):
        return  # all of them: the job was killed as a whole
    numbers = [*found]
    yield Finding(
        kind=_KIND,
        summary=wording.seen_by_launcher(case.run, found),
        diverging_ranks=tuple(numbers),
        odd=case.run.by_rank[numbers[0]].last_call(),
        confidence="certain",
        role="cause",
        analyzer=analyzer,
        evidence=tuple(
            wording.ended_by_launcher(number, status)
            for number, status in [*found.items()][:_SHOWN]
        ),
    )


def missed_by_engines(case: Case, analyzer: str) -> Iterable[Finding]:
    """Yield workers whose engine saw them end, and ended the others before they waited."""
    for rank, seen in dead_workers(case):
        yield Finding(
            kind=_KIND,
            summary=wording.seen_by_engine(case.run, rank.rank),
            diverging_ranks=(rank.rank,),
            odd=rank.last_call(),
            confidence="certain",
            role="cause",
            analyzer=analyzer,
            evidence=(seen,),
        )
