"""Ranks that ended though no peer is recorded to wait for them: others saw it, or came to rest."""

from __future__ import annotations

from collections.abc import Iterable

from ncclscope.engine.case import Case
from ncclscope.engine.records import DEAD_SECONDS
from ncclscope.engine.waits.engine_steps import dead_workers
from ncclscope.engine.waits.waits import status_of
from ncclscope.model import Blame, Finding, Rank
from ncclscope.wording.ends import End, Ending, Ends
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
        blame=Blame.on(tuple(found), "certain"),
        odd=case.run.by_rank[next(iter(found))].last_call(),
        role="cause",
        analyzer=analyzer,
        evidence=tuple(
            Ends.BY_LAUNCHER.of(number, status) for number, status in [*found.items()][:_SHOWN]
        ),
    )


def missed_by_peers(case: Case, analyzer: str) -> Iterable[Finding]:
    """Yield the ranks that are gone without a recorded end, since when no peer posted a call.

    The peers may wait for them in something that is not recorded, such as a file; or the ranks have
    left after their work. So nobody is known to hang, though for as long as a hang lasts.
    """
    ranks = case.run.ranks
    gone = [rank for rank in ranks if rank.alive is False and not _ended(rank)]
    left = [rank for rank in ranks if rank not in gone]
    if not gone or len(left) <= len(gone):
        return  # who kills a job may have ended most of its processes
    if any(rank.alive is not True or _ended(rank) for rank in left):
        return
    since = max(rank.last_seen_ns or 0 for rank in gone) + DEAD_SECONDS * 1e9
    quiet = [case.still_seconds(rank) for rank in left]
    calls = [rank.last_call(transfers=True) for rank in left]
    known = [seconds for seconds in quiet if seconds is not None]
    if len(known) < len(left) or min(known) < case.live_stall_seconds or not all(calls):
        return
    if any((call.time_ns or 0) > since for call in calls if call is not None):
        return
    who = who_text(case.run, [rank.rank for rank in gone])
    yield Finding(
        kind=_KIND,
        summary=Ends.SEEN_BY_NONE.of(
            who=who,
            gone=[rank.rank for rank in gone],
            left=[rank.rank for rank in left],
            seconds=min(known),
        ),
        blame=Blame.on(rank.rank for rank in gone),
        odd=gone[0].last_call(),
        role="latent",
        analyzer=analyzer,
        evidence=tuple(f"rank {rank.rank}: {Ending(End.GONE)}" for rank in gone[:_SHOWN]),
    )


def _ended(rank: Rank) -> bool:
    return rank.exited or bool(rank.details.get("ended_with"))


def missed_by_engines(case: Case, analyzer: str) -> Iterable[Finding]:
    """Yield workers whose engine saw them end, and ended the others before they waited."""
    for rank, seen in dead_workers(case):
        yield Finding(
            kind=_KIND,
            summary=Ends.SEEN_BY_ENGINE.of(rank_text(case.run, rank.rank)),
            blame=Blame.on((rank.rank,), "certain"),
            odd=rank.last_call(),
            role="cause",
            analyzer=analyzer,
            evidence=(seen,),
        )
