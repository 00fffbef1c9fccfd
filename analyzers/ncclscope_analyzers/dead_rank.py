"""A rank whose process ended, or that left no record."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from ncclscope.engine.case import DEAD_SECONDS, Case
from ncclscope.engine.lost_together import as_one, wait_text
from ncclscope.engine.missed import missed_by_engines, missed_by_launchers
from ncclscope.engine.waits.endings import (
    failed,
    failed_inside,
    given_up,
    have_gone_on,
    lost_store,
    store_host,
    timed_out,
    without_note,
)
from ncclscope.engine.waits.minority import take_sides
from ncclscope.engine.waits.waits import PendingCall
from ncclscope.model import Communicator, Fact, Finding, Rank
from ncclscope.wording.ends import End, Ending
from ncclscope.wording.names import (
    call_text,
    comm_text,
    made_text,
    rank_text,
    ranks_text,
    sentence,
    verb,
)

_SILENT = (
    "a process that is stopped by a signal, or stuck in C code that keeps Python's lock, has no "
    "heartbeat either"
)
_SHOWN = 4


def _was_in_difference(case: Case, rank: Rank) -> bool:
    """Return whether a rank had posted a call in which members differ before it ended.

    Libraries abort the processes that wait in such a call, on both sides of the difference.
    """
    return any(
        (log := rank.logs.get(difference.comm.key)) is not None and log.calls >= difference.seq
        for difference in case.differences
    )


def _failed_first(rank: Rank | None) -> bool:
    """Return whether a process failed before any call, as where it cannot connect to its peers."""
    if rank is None or rank.last_call(transfers=True) is not None:
        return False
    return bool(rank.details.get("ended_with")) and (failed(rank) or timed_out(rank))


def _without_store(case: Case, rank: Rank, finding: Finding, posted: Sequence[int]) -> Finding:
    """Name the rank that took the store of a dead rank with it; where none did, nobody."""
    (number,) = finding.diverging_ranks
    lost = f"{rank_text(case.run, number)} ended, as it lost its connection to its store"
    waiting = wait_text(finding, posted, f"rank {number}")
    if (host := store_host(case, case.waits, rank)) is None:
        return replace(
            finding.undecided(
                one.rank for one in case.run.ranks if one is rank or not (one.exited or one.alive)
            ),
            summary=f"{sentence(lost)}, which no rank is known to have served; {waiting}.",
            inferred=(*finding.inferred, "the process that served the store ended before"),
        )
    how = case.how_it_ended(host) or without_note(host)
    return replace(
        finding.naming((host.rank,)),
        summary=(
            f"{sentence(rank_text(case.run, host.rank))}, which served the store, is dead or gone "
            f"({how}): {lost}, and {waiting}."
        ),
        odd=host.last_call(),
        evidence=(*finding.evidence, Fact.of_end(host.rank, how)),
        inferred=(*finding.inferred, f"rank {host.rank} ended before rank {number} lost the store"),
    )


def _no_record(case: Case) -> Ending:
    """Return what a rank left no trace of: a ring outlives its process, a dump is written."""
    formats = {rank.details.get("format") for rank in case.run.ranks}
    return Ending(End.NO_DUMP if formats == {"flight_recorder"} else End.NO_RECORD)


class DeadRank:
    """Ranks wait for a process that has ended, or that left no record."""

    name = "dead_rank"

    def analyze(self, case: Case) -> Iterable[Finding]:
        """Yield a finding for each dead rank that others wait for, or that an engine missed."""
        awaited = as_one(case, [*self._awaited(case)])
        yield from awaited
        if not (awaited or case.differences or case.stalled):
            yield from missed_by_engines(case, self.name)
            yield from missed_by_launchers(case, self.name)

    def _awaited(self, case: Case) -> Iterable[Finding]:
        """Yield a finding for each dead rank that a chain of waiting ends at."""
        diverging = {rank for difference in case.differences for rank in difference.odd}
        silent = []
        if not case.differences:
            silent = [
                *self._silent_in_calls(case),
                *failed_inside(case, self.name),
                *self._ended_past(case),
            ]
        yield from silent
        # Ranks that wait for such a rank in other calls wait for the same reason.
        diverging.update(rank for finding in silent for rank in finding.diverging_ranks)
        # The pending call of a rank without a record is unknown; that of a recorded rank is known.
        late = any(
            rank is not None and case.how_it_ended(rank) is None
            for rank in map(case.run.by_rank.get, case.waits.ends)
        )
        unknown = False
        # A launcher ends the others when one has failed: those did not end by themselves.
        failing = {n for n in case.waits.ends if _failed_first(case.run.by_rank.get(n))}
        for number, waiting in case.waits.ends.items():
            rank = case.run.by_rank.get(number)
            if failing and rank is not None and not rank.exited and number not in failing:
                continue
            if rank is None:
                # One finding covers all ranks without a record.
                if case.may_be_over or (late and number in case.run.unrecorded):
                    continue  # it may have come, or it came: its record is damaged, or has no room
                if not unknown and self._missed_by_all(case, number, waiting):
                    led = late or not {*waiting}.isdisjoint(case.waits.cycle)
                    yield self._finding(case, number, waiting, _no_record(case), consequence=led)
                    unknown = True
                continue
            how = case.how_it_ended(rank)
            if how is None or not (case.stalled or rank.exited or case.lost_by_peers(rank)):
                continue
            led = number in diverging or _was_in_difference(case, rank)
            finding = self._finding(case, number, waiting, how, consequence=led)
            if lost_store(rank):
                _, posted = self._missed_call(case, number, waiting)
                yield _without_store(case, rank, finding, posted)
                continue
            if have_gone_on(case, rank, finding, waiting):
                yield given_up(finding, waiting)
                continue
            if rank.exited and finding.role == "cause" and number not in failing:
                yield from self._left_early(case, finding, waiting)
            else:
                yield finding

    def _left_early(
        self, case: Case, finding: Finding, waiting: tuple[int, ...]
    ) -> Iterable[Finding]:
        """Yield which side is the minority where a rank has exited: it, or its waiters."""
        pending = case.waits.where_most_wait(waiting)
        sides = take_sides(case, pending, [n for n in pending.absent if n in case.waits.ends])
        ended = [case.run.by_rank.get(number) for number in finding.diverging_ranks]
        tie = not sides.diverging
        if sides.diverging == "absent" or (tie and all(one and failed(one) for one in ended)):
            yield finding
        elif tie:
            yield replace(
                finding.undecided(sides.candidates),
                inferred=(
                    f"as many ranks wait as have exited: {ranks_text(sides.waiting)} may have "
                    f"posted an extra call, or {ranks_text(finding.diverging_ranks)} exited too "
                    f"early",
                ),
            )

    def _silent_in_calls(self, case: Case) -> Iterable[Finding]:
        """Yield ranks whose heartbeat ends in a call that all have posted."""
        heads = case.waits.heads
        for key, comm in case.run.communicators.items():
            # Most ranks of a large job may have no records; the first of them decides.
            if not all(number in heads for number in comm.ranks):
                continue
            if {heads[number].comm for number in comm.ranks} != {key}:
                continue
            # Members that completed it wait in a later call, as after a gather around a ring.
            lowest = min(heads[number].seq for number in comm.ranks)
            inside = [number for number in comm.ranks if heads[number].seq == lowest]
            quiet = {n: case.quiet_seconds(case.run.by_rank[n]) for n in comm.ranks}
            living = [n for n in comm.ranks if case.longest_common_quiet([n]) is not None]
            lived = min((seconds for n in living if (seconds := quiet[n]) is not None), default=0.0)
            for number in inside:
                seconds = quiet[number]
                if number in living or seconds is None or case.run.by_rank[number].exited:
                    continue
                if lived - seconds < DEAD_SECONDS:
                    continue
                if not case.may_have_ended_before(case.run.by_rank[number], living):
                    continue
                yield self._silent(case, comm, number, inside, living, lived - seconds)

    def _ended_past(self, case: Case) -> Iterable[Finding]:
        """Yield ranks that failed after a call in which most of its members still wait.

        An unrecorded call of those members may have matched it.
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
            failures = "; ".join(f"rank {number}: {how}" for number, how in hows.items())
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
                role="cause",
                analyzer=self.name,
                evidence=(
                    Fact.of_call(
                        f"{ranks_text(comm.ranks)} posted call {call.seq} on {comm_text(comm)}, "
                        f"{call_text(call)}; only {ranks_text(past)} completed it",
                        comm.ranks,
                        past,
                    ),
                    Fact(failures, past[0]),
                ),
                inferred=("its peers wait for it: they have not completed the call that it has",),
            )

    def _how_it_failed(self, case: Case, number: int, key: str, seq: int) -> Ending | None:
        rank = case.run.by_rank.get(number)
        if rank is None or key not in rank.logs or rank.logs[key].calls != seq:
            return None
        return case.how_it_ended(rank) if rank.details.get("ended_with") else None

    def _silent(
        self,
        case: Case,
        comm: Communicator,
        number: int,
        inside: Sequence[int],
        living: Sequence[int],
        seconds: float,
    ) -> Finding:
        rank, call = case.run.by_rank[number], case.waits.heads[number]
        past = [one for one in comm.ranks if one not in inside]
        done = f"only {ranks_text(past)} completed" if past else "none has completed"
        how = Ending(End.HEARTBEAT, seconds)
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
                f"and {done}."
            ),
            comm=comm,
            seq=call.seq,
            diverging_ranks=(number,),
            odd=call,
            peers=case.waits.heads[living[0]],
            confidence="likely",
            role="cause",
            analyzer=self.name,
            evidence=(
                Fact.of_call(
                    f"{ranks_text(comm.ranks)} posted call {call.seq} on {comm_text(comm)}, "
                    f"{call_text(call)}; "
                    f"{f'only {ranks_text(past)}' if past else 'none'} completed it",
                    comm.ranks,
                    past,
                ),
                Fact.of_end(number, how),
            ),
            inferred=("the process is stuck, not the call: none of its threads has run since",),
        )

    def _missed_by_all(self, case: Case, number: int, waiting: tuple[int, ...]) -> bool:
        """Return whether all members that can wait for a rank without a record do."""
        if case.stalled:
            return True
        if not case.timeless:
            return False  # heartbeats are recorded, and show that no rank has waited for long
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
        how: Ending,
        *,
        consequence: bool = False,
    ) -> Finding:
        rank = case.run.by_rank.get(number)
        pending, waiting = self._missed_call(case, number, waiting)
        posted = (
            f"{ranks_text(waiting)} posted call {pending.call.seq} on {comm_text(pending.comm)}, "
            f"{call_text(pending.call)}"
        )
        evidence: list[str] = [
            Fact.of_call(posted, waiting)
            if rank is None
            else Fact.of_call(f"{posted}, and rank {number} did not", waiting, [number])
        ]
        last, at_once = None, False
        if rank is None:
            evidence.append(Fact.of_call(f"no record of rank {number} was found", (), [number]))
            evidence.append(
                "its ring may lie on another host, or was not copied"
                if how.code is End.NO_RECORD
                else "a live process may have written no dump either"
            )
        else:
            evidence.append(Fact.of_end(number, how))
            if at_once := case.lost_by_peers(rank):
                ends = ((n, case.run.by_rank[n].details.get("ended_with")) for n in waiting)
                evidence += [
                    Fact.of_rank(n, f"rank {n} ended with {error}") for n, error in ends if error
                ][:_SHOWN]
            last = rank.last_call()
            if last is not None:
                evidence.append(
                    f"it made {made_text([rank])}, the last "
                    f"{call_text(last)} on {case.run.communicators[last.comm].label}"
                )
        undumped, silent = how.code is End.NO_DUMP, how.code is End.HEARTBEAT
        state = "dead, gone or stuck" if undumped or silent else "dead or gone"
        who, whom = f"{sentence(rank_text(case.run, number))} is {state} ({how})", "it"
        if how.code is End.EXITED:  # nothing failed: its program came to its end
            who = f"{sentence(rank_text(case.run, number))} ended without this call ({how})"
        elif how.code is End.NO_RECORD:
            who = f"Rank {number} left no record: it is dead, or was not traced"
        # With several ranks missing, nothing shows which of them the others wait for.
        lost = [n for n in range(case.run.expected) if n not in case.run.by_rank]
        alone = rank is not None or len(lost) == 1
        if not alone:
            what = "dumps" if undumped else "record"
            who, whom = f"{sentence(ranks_text(lost))} left no {what}", f"rank {number}"
        likely = rank is None or silent or at_once
        inferred = [_SILENT] if silent else []
        candidates = set(lost)
        if len(lost) > len(case.run.by_rank):
            candidates.update(waiting)
            inferred.append(
                f"most records are missing: {ranks_text(waiting)} may have posted another call "
                f"than the others"
            )
        return Finding(
            kind=self.name,
            summary=(
                f"{who}; {ranks_text(waiting)} {verb(waiting, 'wait')} for {whom} in call "
                f"{pending.call.seq} on {comm_text(pending.comm)}, {call_text(pending.call)}."
            ),
            comm=pending.comm,
            seq=pending.call.seq,
            diverging_ranks=(number,) if alone else (),
            candidate_ranks=() if alone else tuple(sorted(candidates)),
            odd=last,
            peers=pending.call,
            confidence="ambiguous" if not alone else "likely" if likely else "certain",
            role="consequence" if consequence else "cause",
            analyzer=self.name,
            evidence=tuple(evidence),
            inferred=tuple(inferred),
        )

    def _missed_call(
        self, case: Case, number: int, waiting: tuple[int, ...]
    ) -> tuple[PendingCall, tuple[int, ...]]:
        """Return the call in which ranks wait for a dead one, and those that have posted it."""
        # Devices wait in the first call that not all have posted, however far their hosts are.
        pending = (
            self._last_call_awaited(case, waiting)
            if number not in case.run.by_rank
            else case.waits.where_most_wait(waiting, number)
        )
        # Others may wait for it in other calls.
        return pending, tuple(own for own in waiting if self._has_posted(case, own, pending))

    def _has_posted(self, case: Case, number: int, pending: PendingCall) -> bool:
        """Return whether a rank waits on a pending call's communicator and has posted that call."""
        if case.waits.pending_calls[number].comm.key != pending.comm.key:
            return False
        return case.run.by_rank[number].logs[pending.comm.key].calls >= pending.call.seq

    def _last_call_awaited(self, case: Case, waiting: tuple[int, ...]) -> PendingCall:
        """Return the pending call of the ranks that wait for a rank without a record.

        Where completion is not recorded, that is their last call.
        """
        pending_calls = [case.waits.pending_calls[rank] for rank in waiting]
        pending = max(pending_calls, key=lambda pending: pending.call.seq)
        log = case.run.by_rank[pending.rank].logs[pending.comm.key]
        if pending.comm.backend == "nccl" or pending.call.seq < log.first:
            pending = PendingCall(
                pending.rank, log.call(log.calls), pending.comm, pending.absent, pending.queued
            )
        return pending
