"""A rank whose process ended, or that left no record."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from ncclscope.analysis.case import DEAD_SECONDS, Case
from ncclscope.analysis.waits.minority import take_sides
from ncclscope.analysis.waits.waits import PendingCall
from ncclscope.analysis.wording import (
    call_text,
    comm_text,
    made_text,
    rank_text,
    ranks_text,
    sentence,
    verb,
)
from ncclscope.model import Call, Communicator, Finding, Rank

__all__ = ["DeadRank"]

NO_RECORD = "it left no record"


def _was_in_difference(case: Case, rank: Rank) -> bool:
    """Whether a rank had posted a call in which members differ before it ended.

    Libraries abort the processes of those who wait in such a call, on whichever side they are.
    """
    return any(
        (log := rank.logs.get(difference.comm.key)) is not None and log.calls >= difference.seq
        for difference in case.differences
    )


def _no_record(case: Case) -> str:
    """Says what is missing of a rank: a ring outlives its process, a dump has to be written."""
    formats = {rank.details.get("format") for rank in case.run.ranks}
    return "it left no dump" if formats == {"flight_recorder"} else NO_RECORD


class DeadRank:
    """Ranks wait for a process that has ended, or that left no record."""

    name = "dead_rank"

    def analyze(self, case: Case) -> Iterable[Finding]:
        """Yields a finding for each dead rank that a chain of waiting ends at."""
        odd = {rank for difference in case.differences for rank in difference.odd}
        silent = []
        if not case.differences:
            silent = [*self._silent_in_calls(case), *self._ended_past(case)]
        yield from silent
        # Who waits for such a rank elsewhere waits for the same reason.
        odd.update(rank for finding in silent for rank in finding.diverging_ranks)
        # Of a rank without a record it is not known where it stands; of one that has some, it is.
        late = any(
            rank is not None and case.how_it_ended(rank) is None
            for rank in map(case.run.by_rank.get, case.waits.ends)
        )
        unknown = False
        for number, waiting in case.waits.ends.items():
            rank = case.run.by_rank.get(number)
            if rank is None:
                # Of several without a record one finding is enough: it is about all of them.
                if not unknown and self._missed_by_all(case, number, waiting):
                    yield self._finding(case, number, waiting, _no_record(case), consequence=late)
                    unknown = True
                continue
            how = case.how_it_ended(rank)
            if how is None or not (case.stalled or rank.exited):
                continue
            led = number in odd or _was_in_difference(case, rank)
            finding = self._finding(case, number, waiting, how, consequence=led)
            if rank.exited and finding.role == "cause":
                yield from self._left_early(case, finding, waiting)
            else:
                yield finding

    def _left_early(
        self, case: Case, finding: Finding, waiting: tuple[int, ...]
    ) -> Iterable[Finding]:
        """Tells who is alone where a rank ended in order: it, or those who wait for it."""
        pending = case.waits.where_most_wait(waiting)
        sides = take_sides(case, pending, [n for n in pending.absent if n in case.waits.ends])
        if sides.diverging == "absent":
            yield finding
        elif not sides.diverging:
            yield replace(
                finding,
                diverging_ranks=(),
                candidate_ranks=sides.candidates,
                confidence="ambiguous",
                inferred=(
                    f"as many wait as have ended: {ranks_text(sides.waiting)} may have posted a "
                    f"call too many, or {ranks_text(finding.diverging_ranks)} ended too early",
                ),
            )

    def _silent_in_calls(self, case: Case) -> Iterable[Finding]:
        """Yields ranks whose signs of life end in a call that all have posted."""
        heads = case.waits.heads
        for key, comm in case.run.communicators.items():
            own = [heads.get(number) for number in comm.ranks]
            posted = {(call.comm, call.seq) for call in own if call is not None}
            if None in own or len(posted) != 1 or next(iter(posted))[0] != key:
                continue
            quiet = {n: case.quiet_seconds(case.run.by_rank[n]) for n in comm.ranks}
            living = [n for n in comm.ranks if case.longest_common_quiet([n]) is not None]
            lived = min((seconds for n in living if (seconds := quiet[n]) is not None), default=0.0)
            for number in comm.ranks:
                seconds = quiet[number]
                if number in living or seconds is None:
                    continue
                if lived - seconds < DEAD_SECONDS:
                    continue
                yield self._silent(case, comm, number, heads[number], living, lived - seconds)

    def _ended_past(self, case: Case) -> Iterable[Finding]:
        """Yields ranks that failed after a call which most of its members are still in.

        That call may have met another one of theirs, which is not recorded.
        """
        heads = case.waits.heads
        for key, comm in case.run.communicators.items():
            inside = [n for n in comm.ranks if n in heads and heads[n].comm == key]
            past = [n for n in comm.ranks if n not in inside]
            if not past or len(inside) <= len(past) or len({heads[n].seq for n in inside}) != 1:
                continue
            call = heads[inside[0]]
            seconds = case.longest_common_quiet(inside)
            hows = {n: self._how_it_failed(case, n, key, call.seq) for n in past}
            if seconds is None or None in hows.values():
                continue
            told = "; ".join(f"rank {number}: {how}" for number, how in hows.items())
            yield Finding(
                kind=self.name,
                summary=(
                    f"{sentence(ranks_text(past))} completed call {call.seq} on "
                    f"{comm_text(comm)}, {call_text(call)}, and failed; {ranks_text(inside)} "
                    f"{verb(inside, 'wait')} in it for {seconds:.0f} s."
                ),
                comm=comm,
                seq=call.seq,
                diverging_ranks=tuple(past),
                odd=case.run.by_rank[past[0]].last_call(),
                peers=call,
                confidence="likely",
                analyzer=self.name,
                evidence=(
                    f"{ranks_text(comm.ranks)} posted call {call.seq} on {comm_text(comm)}, "
                    f"{call_text(call)}; it is completed on {ranks_text(past)} alone",
                    told,
                ),
                inferred=("that its peers wait for it: they have not completed what it has",),
            )

    def _how_it_failed(self, case: Case, number: int, key: str, seq: int) -> str | None:
        rank = case.run.by_rank.get(number)
        if rank is None or key not in rank.logs or rank.logs[key].calls != seq:
            return None
        return case.how_it_ended(rank) if rank.details.get("ended_with") else None

    def _silent(
        self,
        case: Case,
        comm: Communicator,
        number: int,
        call: Call,
        living: Sequence[int],
        seconds: float,
    ) -> Finding:
        rank = case.run.by_rank[number]
        how = f"its signs of life end {seconds:.0f} s before its peers'"
        kind, state = self.name, "dead, gone or stopped"
        if rank.alive:
            kind, state = "stalled", "stopped or stuck"
        if rank.details.get("stopped"):
            state = "stopped by a signal"
        return Finding(
            kind=kind,
            summary=(
                f"{sentence(rank_text(case.run, number))} is {state} ({how}), in "
                f"call {call.seq} on {comm_text(comm)}, {call_text(call)}, which all have posted "
                f"and none has completed."
            ),
            comm=comm,
            seq=call.seq,
            diverging_ranks=(number,),
            odd=call,
            peers=case.waits.heads[living[0]],
            confidence="likely",
            analyzer=self.name,
            evidence=(
                f"{ranks_text(comm.ranks)} posted call {call.seq} on {comm_text(comm)}, "
                f"{call_text(call)}; on none it is completed",
                f"rank {number}: {how}",
            ),
            inferred=(
                "that the process and not the call stands still: nothing in it has run since",
            ),
        )

    def _missed_by_all(self, case: Case, number: int, waiting: tuple[int, ...]) -> bool:
        """Whether all members that can wait for a rank without a record do."""
        if case.stalled:
            return True
        if not case.timeless:
            return False  # signs of life are recorded, and say that nobody waits for long
        if not all(rank.details.get("stated", True) for rank in case.run.ranks):
            return False  # nothing says that a call is still under way
        if not all(case.run.by_rank[own].details.get("dumped", True) for own in waiting):
            return False  # they posted it just before they were asked
        comm = case.waits.pending_calls[waiting[0]].comm
        last = {log.calls for log in case.logs(comm.key).values()}
        return len(last) == 1 and len(waiting) == len(comm.ranks) - 1

    def _finding(
        self,
        case: Case,
        number: int,
        waiting: tuple[int, ...],
        how: str,
        *,
        consequence: bool = False,
    ) -> Finding:
        rank = case.run.by_rank.get(number)
        # Devices stand in the first call that not all have posted, however far their hosts are.
        pending = (
            self._last_stand(case, waiting) if rank is None else case.waits.where_most_wait(waiting)
        )
        # Others may wait for it in other calls.
        waiting = tuple(own for own in waiting if self._has_posted(case, own, pending))
        evidence = [
            f"{ranks_text(waiting)} posted call {pending.call.seq} on {comm_text(pending.comm)}, "
            f"{call_text(pending.call)}, and rank {number} did not"
        ]
        last = None
        if rank is None:
            evidence.append(f"no record of rank {number} was found")
            if how != NO_RECORD:
                evidence.append("a process that lives may have written no dump, too")
        else:
            evidence.append(f"rank {number}: {how}")
            last = rank.last_call()
            if last is not None:
                evidence.append(
                    f"it made {made_text([rank])}, the last "
                    f"{call_text(last)} on {case.run.communicators[last.comm].label}"
                )
        undumped = rank is None and how != NO_RECORD
        state = "dead, gone or stuck" if undumped else "dead or gone"
        who, whom = f"{sentence(rank_text(case.run, number))} is {state} ({how})", "it"
        # Which of several somebody waits for depends on who else could not be asked.
        lost = [n for n in range(case.run.expected) if n not in case.run.by_rank]
        alone = rank is not None or len(lost) == 1
        if not alone:
            what = "dumps" if undumped else "record"
            who, whom = f"{sentence(ranks_text(lost))} left no {what}", f"rank {number}"
        likely = rank is None or "signs of life" in how
        return Finding(
            kind=self.name,
            summary=(
                f"{who}; {ranks_text(waiting)} {verb(waiting, 'wait')} for {whom} in call "
                f"{pending.call.seq} on {comm_text(pending.comm)}, {call_text(pending.call)}."
            ),
            comm=pending.comm,
            seq=pending.call.seq,
            diverging_ranks=(number,) if alone else (),
            candidate_ranks=() if alone else tuple(lost),
            odd=last,
            peers=pending.call,
            confidence="ambiguous" if not alone else "likely" if likely else "certain",
            role="consequence" if consequence else "cause",
            analyzer=self.name,
            evidence=tuple(evidence),
        )

    def _has_posted(self, case: Case, number: int, pending: PendingCall) -> bool:
        """Whether a rank that waits does so on a stand's communicator, and has come as far."""
        if case.waits.pending_calls[number].comm.key != pending.comm.key:
            return False
        return case.run.by_rank[number].logs[pending.comm.key].calls >= pending.call.seq

    def _last_stand(self, case: Case, waiting: tuple[int, ...]) -> PendingCall:
        """Where those stand who wait for a rank without a record, which tells no first call.

        That is their last call where nothing is recorded of completion.
        """
        pending_calls = [case.waits.pending_calls[rank] for rank in waiting]
        pending = max(pending_calls, key=lambda pending: pending.call.seq)
        log = case.run.by_rank[pending.rank].logs[pending.comm.key]
        if pending.comm.backend == "nccl" or pending.call.seq < log.first:
            pending = PendingCall(
                pending.rank, log.call(log.calls), pending.comm, pending.absent, pending.queued
            )
        return pending
