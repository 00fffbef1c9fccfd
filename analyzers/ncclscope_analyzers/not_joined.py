"""A rank that never arrived."""

from __future__ import annotations

from collections.abc import Iterable

from ncclscope.analysis.case import Case
from ncclscope.analysis.wording import call_text, comm_text, rank_text, ranks_text, sentence
from ncclscope.model import Finding

__all__ = ["NotJoined"]


class NotJoined:
    """Ranks wait in a call that another rank never posted, while it is elsewhere."""

    name = "not_joined"

    def analyze(self, case: Case) -> Iterable[Finding]:
        """Yields a finding for each living rank that a chain of waiting ends at."""
        differing = {difference.comm.key for difference in case.differences}
        if not case.stalled and not differing:
            return
        for number, waiting in case.waits.ends.items():
            rank = case.run.by_rank.get(number)
            if rank is None or case.how_it_ended(rank) is not None:
                continue  # dead_rank's
            stand = case.waits.stands[waiting[0]]
            if stand.comm.key in differing:
                continue  # after the first difference, equal numbers are no equal calls
            last = rank.last_call()
            was = f"its last call is {call_text(last)}" if last else "it has posted nothing"
            quiet = case.quiet_seconds(rank)
            evidence = [
                f"{ranks_text(waiting)} posted call {stand.call.seq} on {comm_text(stand.comm)}, "
                f"{call_text(stand.call)}, and stand in it",
                f"rank {number} posted {rank.logs[stand.comm.key].calls} calls there"
                if stand.comm.key in rank.logs
                else f"rank {number} posted no call there",
            ]
            if last is not None:
                where = case.run.communicators[last.comm]
                evidence.append(
                    f"the last call of rank {number} is #{last.seq} on {where.label}, "
                    f"{call_text(last)}, {last.state.word}"
                )
            inferred = []
            if quiet is not None:
                evidence.append(f"rank {number} showed life for {quiet:.0f} s after its last call")
                inferred.append(f"rank {number} is busy or stuck outside of any recorded call")
            yield Finding(
                kind=self.name,
                summary=(
                    f"{sentence(rank_text(case.run, number))} never joined call "
                    f"{stand.call.seq} on {comm_text(stand.comm)}, {call_text(stand.call)}, in "
                    f"which {ranks_text(waiting)} wait; {was}."
                ),
                comm=stand.comm,
                seq=stand.call.seq,
                diverging_ranks=(number,),
                odd=last,
                peers=stand.call,
                confidence="likely" if rank.alive else "certain",
                role="consequence" if differing else "cause",
                analyzer=self.name,
                evidence=tuple(evidence),
                inferred=tuple(inferred),
            )
