"""Ranks that no peer waits for, and that the program which started them saw end."""

from __future__ import annotations

from collections.abc import Iterable

from ncclscope.engine.case import Case
from ncclscope.engine.waits.endings import status_of
from ncclscope.engine.waits.engine_steps import dead_workers
from ncclscope.model import Finding
from ncclscope.wording.ends import Ends
from ncclscope.wording.names import rank_text, who_text

_KIND = "dead_rank"
_SHOWN = 4


def missed_by_launchers(case: Case, analyzer: str) -> Iterable[Finding]:
    """Yield the ranks that recorded no end, where a launcher saw them end by themselves."""
    ranks = case.run.ranks
    found = {rank.rank: status for rank in ranks if (status := status_of(rank))}
    if not found or len(found) == len(ranks):
        return  # all of them: the job was killed as a whole
    who, how = who_text(case.run, [*found]), " and ".join(dict.fromkeys(found.values()))
    yield Finding(
        kind=_KIND,
        summary=Ends.SEEN_BY_LAUNCHER.of(who=who, how=how, ranks=found),
        diverging_ranks=tuple(found),
        odd=case.run.by_rank[next(iter(found))].last_call(),
        confidence="certain",
        role="cause",
        analyzer=analyzer,
        evidence=tuple(
            Ends.BY_LAUNCHER.of(number, status) for number, status in [*found.items()][:_SHOWN]
        ),
    )


def missed_by_engines(case: Case, analyzer: str) -> Iterable[Finding]:
    """Yield workers whose engine saw them end, and ended the others before they waited."""
    for rank, seen in dead_workers(case):
        yield Finding(
            kind=_KIND,
            summary=Ends.SEEN_BY_ENGINE.of(rank_text(case.run, rank.rank)),
            diverging_ranks=(rank.rank,),
            odd=rank.last_call(),
            confidence="certain",
            role="cause",
            analyzer=analyzer,
            evidence=(seen,),
        )
