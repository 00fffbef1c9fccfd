"""A rank that never arrived."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from ncclscope.analysis.case import Case
from ncclscope.analysis.engine_steps import is_idle
from ncclscope.analysis.transfers import stuck_transfers
from ncclscope.analysis.waits import Stand
from ncclscope.analysis.wording import (
    call_text,
    comm_text,
    rank_text,
    ranks_text,
    sentence,
    verb,
)
from ncclscope.model import Finding, Rank

__all__ = ["NotJoined"]


class NotJoined:
    """Ranks wait in a call that another rank never posted, while it is elsewhere."""

    name = "not_joined"

    def analyze(self, case: Case) -> Iterable[Finding]:
        """Yields a finding for each living rank that a chain of waiting ends at."""
        if case.differences:
            yield from self._missing_beside(case)
            yield from self._consequences(case)
            return
        if not case.stalled:
            return
        yield from self._strayed(case)
        missed: dict[tuple[str, int], tuple[Stand, list[int]]] = {}
        for number, waiting in case.waits.ends.items():
            rank = case.run.by_rank.get(number)
            if rank is None or rank.details.get("probe_failed"):
                continue  # what it did after its probe ended is not known
            is_late = case.waits.overtaken(number) or case.waits.is_outside(number)
            if number in case.waits.heads and not is_late:
                continue  # it is in a call itself, which all its members have joined
            if case.how_it_ended(rank) is None:
                stand = case.waits.where_most_wait(waiting)
                call = stand.comm.key, stand.call.seq
                missed.setdefault(call, (stand, []))[1].append(number)
        held_up = {transfer.rank for transfer in stuck_transfers(case)}
        for stand, numbers in missed.values():
            finding = self._absent(case, numbers, stand)
            # Who waits for the other side of a transfer cannot join anything.
            yield replace(finding, role="consequence") if held_up >= set(numbers) else finding
        yield from self._elsewhere(case, set(missed))

    def _strayed(self, case: Case) -> Iterable[Finding]:
        """In a circle of waiting ranks: one that is in a call which nobody else ever makes."""
        cycle = () if case.waits.cycle_creates else case.waits.cycle
        strays = [rank for rank in cycle if not case.is_usual(case.waits.stands[rank])]
        if len(strays) == 1:
            (number,) = strays
            waiting = tuple(
                rank
                for rank, stand in case.waits.stands.items()
                if number in stand.awaited and rank != number
            )
            yield self._absent(case, [number], case.waits.where_most_wait(waiting))

    def _absent(self, case: Case, numbers: Sequence[int], stand: Stand) -> Finding:
        ranks = [case.run.by_rank[number] for number in numbers]
        waiting = _waiting(case, stand)
        one = len(ranks) == 1
        evidence = [
            f"{ranks_text(waiting)} posted call {stand.call.seq} on {comm_text(stand.comm)}, "
            f"{call_text(stand.call)}, and {verb(waiting, 'stand')} in it"
        ]
        inferred = []
        for rank in ranks:
            evidence += self._whereabouts(case, rank, stand)
            quiet = case.quiet_seconds(rank)
            if quiet is not None:
                evidence.append(f"rank {rank.rank} showed life for {quiet:.0f} s after that")
                what = (
                    "stands on its device behind something that is no recorded call"
                    if case.waits.is_outside(rank.rank)
                    else "waits to be asked for something: see its engine"
                    if is_idle(rank)
                    else "is busy or stuck outside of any recorded call"
                )
                inferred.append(f"rank {rank.rank} {what}")
        if case.timeless:
            inferred.append("that nothing moves: the input does not say how long anybody waits")
        was = ""
        last = ranks[0].last_call()
        if all(is_idle(rank) for rank in ranks):
            was = f"; {'it is' if one else 'they are'} idle, in dequeue"
        elif one and last is not None:
            label = case.run.communicators[last.comm].label
            was = f"; its last call, {call_text(last)} on {label}, is {last.state.word}"
        elif one and not ranks[0].lost:
            was = "; it has posted nothing"
        late = [rank.rank for rank in ranks if _posted(rank, stand) >= stand.call.seq]
        joined = f"{'does' if one else 'do'} not get to" if late else "never joined"
        who = rank_text(case.run, numbers[0]) if one else ranks_text(numbers)
        return Finding(
            kind=self.name,
            summary=(
                f"{sentence(who)} {joined} call {stand.call.seq} on "
                f"{comm_text(stand.comm)}, {call_text(stand.call)}, in which "
                f"{ranks_text(waiting)} {verb(waiting, 'wait')}{was}."
            ),
            comm=stand.comm,
            seq=stand.call.seq,
            diverging_ranks=tuple(numbers),
            odd=last,
            peers=stand.call,
            confidence="likely" if case.timeless or any(r.alive for r in ranks) else "certain",
            analyzer=self.name,
            evidence=tuple(evidence),
            inferred=tuple(inferred),
        )

    def _missing_beside(self, case: Case) -> Iterable[Finding]:
        """Where sequences differ: ranks that never came to the very call, and wait for nobody."""
        if not case.stalled:
            return
        parted = {(parting.comm.key, parting.seq) for parting in case.partings}
        for key, seq in sorted(parted):
            stands = [
                stand
                for stand in case.waits.stands.values()
                if (stand.comm.key, stand.call.seq) == (key, seq)
            ]
            absent = [
                number
                for number in (stands[0].absent if stands else ())
                if number in case.waits.ends
                and number in case.run.by_rank
                and case.how_it_ended(case.run.by_rank[number]) is None
            ]
            if absent:
                yield self._absent(case, absent, stands[0])

    def _whereabouts(self, case: Case, rank: Rank, stand: Stand) -> Iterable[str]:
        """Says what a rank did instead of joining a call."""
        number, posted = rank.rank, _posted(rank, stand)
        head = case.waits.heads.get(number)
        if case.waits.is_outside(number) and head is not None:
            comm = case.run.communicators[head.comm]
            yield (
                f"rank {number} posted it, too, but its device has not come to call {head.seq} on "
                f"{comm_text(comm)}: its stream is behind other work"
            )
        elif posted >= stand.call.seq and head is not None:
            yield (
                f"rank {number} posted it, too, but of its calls none has completed since "
                f"#{head.seq} on {comm_text(case.run.communicators[head.comm])}, "
                f"{call_text(head)}, which waits for nobody"
            )
        else:
            yield f"rank {number} posted {posted} calls there"
        last = rank.last_call()
        if last is not None:
            yield (
                f"the last call of rank {number} is #{last.seq} on "
                f"{comm_text(case.run.communicators[last.comm])}, {call_text(last)}, "
                f"{last.state.word}" + (f", posted at {last.site}" if last.site else "")
            )
        elif rank.lost:
            yield f"rank {number} has no call under way"

    def _elsewhere(self, case: Case, missed: set[tuple[str, int]]) -> Iterable[Finding]:
        """Who waits in other calls, because somebody there waits or never arrived."""
        for finding in self._consequences(case):
            if finding.comm is not None and (finding.comm.key, finding.seq) not in missed:
                yield finding

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


def _posted(rank: Rank, stand: Stand) -> int:
    """How many calls a rank posted on the communicator that another one stands in."""
    log = rank.logs.get(stand.comm.key)
    return 0 if log is None else log.calls


def _waiting(case: Case, stand: Stand) -> tuple[int, ...]:
    """The ranks that stand in the same call."""
    return tuple(
        number
        for number, other in sorted(case.waits.stands.items())
        if (other.comm.key, other.call.seq) == (stand.comm.key, stand.call.seq)
    )
