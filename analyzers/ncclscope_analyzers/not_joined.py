"""A rank that never arrived."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from ncclscope.analysis.case import Case
from ncclscope.analysis.waits import Stand
from ncclscope.analysis.wording import call_text, comm_text, rank_text, ranks_text, sentence
from ncclscope.model import Finding

__all__ = ["NotJoined"]


class NotJoined:
    """Ranks wait in a call that another rank never posted, while it is elsewhere."""

    name = "not_joined"

    def analyze(self, case: Case) -> Iterable[Finding]:
        """Yields a finding for each living rank that a chain of waiting ends at."""
        if case.differences:
            yield from self._consequences(case)
            return
        if not case.stalled:
            return
        yield from self._strayed(case)
        for number, waiting in case.waits.ends.items():
            rank = case.run.by_rank.get(number)
            if rank is not None and case.how_it_ended(rank) is None:
                yield self._absent(case, number, _where_most_wait(case, waiting))

    def _strayed(self, case: Case) -> Iterable[Finding]:
        """In a circle of waiting ranks: one that is in a call which nobody else ever makes."""
        cycle = case.waits.cycle
        strays = [rank for rank in cycle if not case.is_usual(case.waits.stands[rank])]
        if len(strays) == 1:
            (number,) = strays
            waiting = tuple(
                rank
                for rank, stand in case.waits.stands.items()
                if number in stand.awaited and rank != number
            )
            yield self._absent(case, number, _where_most_wait(case, waiting))

    def _absent(self, case: Case, number: int, stand: Stand) -> Finding:
        rank = case.run.by_rank[number]
        waiting = _waiting(case, stand)
        last = rank.last_call()
        posted = rank.logs[stand.comm.key].calls if stand.comm.key in rank.logs else 0
        evidence = [
            f"{ranks_text(waiting)} posted call {stand.call.seq} on {comm_text(stand.comm)}, "
            f"{call_text(stand.call)}, and stand in it; rank {number} posted {posted} calls there"
        ]
        was = "it has posted nothing"
        if last is not None:
            where = case.run.communicators[last.comm]
            was = f"its last call, {call_text(last)} on {where.label}, is {last.state.word}"
            evidence.append(
                f"the last call of rank {number} is #{last.seq} on {comm_text(where)}, "
                f"{call_text(last)}, {last.state.word}"
                + (f", posted at {last.site}" if last.site else "")
            )
        inferred = []
        quiet = case.quiet_seconds(rank)
        if quiet is not None:
            evidence.append(f"rank {number} showed life for {quiet:.0f} s after that")
            inferred.append(f"rank {number} is busy or stuck outside of any recorded call")
        return Finding(
            kind=self.name,
            summary=(
                f"{sentence(rank_text(case.run, number))} never joined call {stand.call.seq} on "
                f"{comm_text(stand.comm)}, {call_text(stand.call)}, in which "
                f"{ranks_text(waiting)} wait; {was}."
            ),
            comm=stand.comm,
            seq=stand.call.seq,
            diverging_ranks=(number,),
            odd=last,
            peers=stand.call,
            confidence="likely" if rank.alive else "certain",
            analyzer=self.name,
            evidence=tuple(evidence),
            inferred=tuple(inferred),
        )

    def _consequences(self, case: Case) -> Iterable[Finding]:
        """Where sequences differ: who waits elsewhere for the ranks that differ."""
        differing = {difference.comm.key for difference in case.differences}
        seen = set()
        for stand in case.waits.stands.values():
            # After a first difference equal numbers are no equal calls, so that who waits for
            # whom on that communicator cannot be told from them.
            if stand.comm.key in differing or stand.comm.key in seen or not stand.absent:
                continue
            seen.add(stand.comm.key)
            waiting = _waiting(case, stand)
            yield Finding(
                kind=self.name,
                summary=(
                    f"{sentence(ranks_text(waiting))} posted call {stand.call.seq} on "
                    f"{comm_text(stand.comm)}, {call_text(stand.call)}, which "
                    f"{ranks_text(stand.absent)} never joined."
                ),
                comm=stand.comm,
                seq=stand.call.seq,
                diverging_ranks=stand.absent,
                peers=stand.call,
                role="consequence",
                analyzer=self.name,
            )


def _where_most_wait(case: Case, waiting: tuple[int, ...]) -> Stand:
    """The call in which most of the ranks stand that wait for somebody."""
    stands = [case.waits.stands[number] for number in waiting]
    crowd = Counter((stand.comm.key, stand.call.seq) for stand in stands)
    return max(stands, key=lambda stand: (crowd[stand.comm.key, stand.call.seq], -stand.rank))


def _waiting(case: Case, stand: Stand) -> tuple[int, ...]:
    """The ranks that stand in the same call."""
    return tuple(
        number
        for number, other in sorted(case.waits.stands.items())
        if (other.comm.key, other.call.seq) == (stand.comm.key, stand.call.seq)
    )
