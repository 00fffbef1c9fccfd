"""A rank whose process ended, or that left no record."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from ncclscope.engine.case import Case
from ncclscope.engine.missed import missed_by_engines, missed_by_launchers, missed_by_peers
from ncclscope.engine.precedence import as_one
from ncclscope.engine.records import DEAD_SECONDS
from ncclscope.engine.waits.graph import take_sides
from ncclscope.engine.waits.waits import (
    PendingCall,
    failed,
    failed_inside,
    given_up,
    have_gone_on,
    lost_store,
    store_host,
    timed_out,
    without_note,
)
from ncclscope.model import Blame, Call, Communicator, Fact, Finding, Rank
from ncclscope.wording.ends import Dead, End, Ending
from ncclscope.wording.names import call_on, made_text, rank_text
from ncclscope.wording.not_joined import Join
from ncclscope.wording.waits import Wait

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


def _without_store(
    case: Case, rank: Rank, finding: Finding, waiting: Sequence[int], pending: PendingCall
) -> Finding:
    """Name the rank that took the store of a dead rank with it; where none did, nobody."""
    (number,) = finding.diverging_ranks
    host = store_host(case, case.waits, rank)
    how = None if host is None else case.how_it_ended(host) or without_note(host)
    who, where = rank_text(case.run, number), call_on(pending.comm, pending.call)
    wait = Wait.FOR.of(waiting=waiting, whom=f"rank {number}", where=where)
    if host is None:
        return replace(
            finding.undecided(
                one.rank for one in case.run.ranks if one is rank or not (one.exited or one.alive)
            ),
            summary=Dead.NO_SERVER.of(who=who, wait=wait),
            inferred=(*finding.inferred, Dead.SERVER_ENDED.of()),
        )
    return replace(
        finding.naming((host.rank,)),
        summary=Dead.SERVER.of(host=rank_text(case.run, host.rank), how=how, who=who, wait=wait),
        odd=host.last_call(),
        evidence=(*finding.evidence, Fact.of_end(host.rank, how)),
        inferred=(*finding.inferred, Dead.ENDED_BEFORE.of(host.rank, number)),
    )


def _posted_by_all(comm: Communicator, call: Call, past: Sequence[int]) -> Fact:
    """Return that all members posted a call, and which of them completed it."""
    where = call_on(comm, call)
    posted = Join.POSTED_NONE.of(comm.ranks, where)
    if past:
        posted = Join.POSTED_ONLY.of(comm.ranks, where, past)
    return Fact.of_call(posted, comm.ranks, past)


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
            missed = [*missed_by_engines(case, self.name), *missed_by_launchers(case, self.name)]
            yield from missed or missed_by_peers(case, self.name)

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
                if all(case.run.by_rank[own].exited for own in waiting):
                    continue  # they came to their ends in order, and wait for nobody
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
                pending, missing = self._missed_call(case, number, waiting)
                yield _without_store(case, rank, finding, missing, pending)
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
                inferred=(Dead.TOO_EARLY.of(sides.waiting, finding.diverging_ranks),),
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
            yield Finding(
                kind=self.name,
                summary=Dead.FAILED_PAST.of(
                    past=past, where=call_on(comm, call), inside=inside, seconds=seconds
                ),
                comm=comm,
                seq=call.seq,
                blame=Blame.on(past),
                odd=case.run.by_rank[past[0]].last_call(),
                peers=call,
                role="cause",
                evidence=(
                    _posted_by_all(comm, call, past),
                    Fact("; ".join(f"rank {n}: {how}" for n, how in hows.items()), past[0]),
                ),
                inferred=(Dead.NOT_COMPLETED.of(),),
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
        how = Ending(End.HEARTBEAT, seconds)
        state = Dead.MAY_BE_STUCK if rank.alive else Dead.MAY_BE_STOPPED
        if rank.details.get("stopped"):
            state = Dead.BY_SIGNAL
        return Finding(
            kind="stalled" if rank.alive else self.name,
            summary=Dead.SILENT.of(
                who=rank_text(case.run, number),
                state=state,
                how=how,
                where=call_on(comm, call),
                done=Dead.ONLY_DONE.of(past) if past else Dead.NONE_DONE,
            ),
            comm=comm,
            seq=call.seq,
            blame=Blame.on((number,)),
            odd=call,
            peers=case.waits.heads[living[0]],
            role="cause",
            evidence=(_posted_by_all(comm, call, past), Fact.of_end(number, how)),
            inferred=(Dead.STUCK_PROCESS.of(),),
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
        where, who = call_on(pending.comm, pending.call), rank_text(case.run, number)
        posted = Wait.POSTED.of(posted=waiting, where=where, absent=[number])
        evidence: list[str] = [
            Fact.of_call(Join.POSTED.of(waiting, where), waiting)
            if rank is None
            else Fact.of_call(posted, waiting, [number])
        ]
        last, at_once = None, False
        if rank is None:
            evidence.append(Fact.of_call(Join.NO_RECORD.of(number), (), [number]))
            no_ring = how.code is End.NO_RECORD
            evidence.append((Dead.RING_ELSEWHERE if no_ring else Dead.NO_DUMP_YET).of())
        else:
            evidence.append(Fact.of_end(number, how))
            if at_once := case.lost_by_peers(rank):
                ends = ((n, case.run.by_rank[n].details.get("ended_with")) for n in waiting)
                evidence += [Fact.of_rank(n, Dead.WITH.of(n, error)) for n, error in ends if error][
                    :_SHOWN
                ]
            last = rank.last_call()
            if last is not None:
                label = case.run.communicators[last.comm].label
                evidence.append(Dead.MADE.of(made_text([rank]), last, label))
        undumped, silent = how.code is End.NO_DUMP, how.code is End.HEARTBEAT
        code = Dead.STUCK if undumped or silent else Dead.GONE
        code = {End.EXITED: Dead.EXITED, End.NO_RECORD: Dead.NO_RECORD}.get(how.code, code)
        # With several ranks missing, nothing shows which of them the others wait for.
        lost = [n for n in range(case.run.expected) if n not in case.run.by_rank]
        alone = rank is not None or len(lost) == 1
        whom = "it" if alone else f"rank {number}"
        wait = Wait.FOR.of(waiting=waiting, whom=whom, where=where)
        likely = rank is None or silent or at_once
        inferred = [Dead.NO_HEARTBEAT.of()] if silent else []
        candidates = set(lost)
        if len(lost) > len(case.run.by_rank):
            candidates.update(waiting)
            inferred.append(Dead.FEW_RECORDS.of(waiting))
        return Finding(
            kind=self.name,
            summary=code.of(who=who, number=number, how=how, wait=wait)
            if alone
            else (Dead.NO_DUMPS if undumped else Dead.NO_RECORDS).of(lost, wait),
            comm=pending.comm,
            seq=pending.call.seq,
            blame=Blame.on((number,), "likely" if likely else "certain")
            if alone
            else Blame.among(sorted(candidates)),
            odd=last,
            peers=pending.call,
            role="consequence" if consequence else "cause",
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
