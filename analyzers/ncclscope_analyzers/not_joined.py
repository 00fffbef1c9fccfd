"""A rank that never arrived."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from ncclscope.engine.case import Case
from ncclscope.engine.processes.late import is_silent, may_come, what_keeps
from ncclscope.engine.processes.motion import seen_at
from ncclscope.engine.waits.engine_steps import held_by_engines, inside, is_idle
from ncclscope.engine.waits.graph import (
    Sides,
    describe_sides,
    describe_wait,
    is_stray,
    take_sides,
    waiting_in,
)
from ncclscope.engine.waits.meeting import disagreements
from ncclscope.engine.waits.noted import (
    doing,
    doing_in_common,
    key_awaited,
    key_of,
    last_key_line,
    note_lines,
    raised,
    thread_ended,
    timeout_lines,
    wait_for_keys,
)
from ncclscope.engine.waits.passed_by import came_past
from ncclscope.engine.waits.queues import unread_blocks
from ncclscope.engine.waits.transfers import open_transfers, stuck_transfers
from ncclscope.engine.waits.waits import PendingCall, timed_out_in_transfer
from ncclscope.model import Blame, Fact, Finding, Rank
from ncclscope.model.activities import INIT
from ncclscope.wording.names import call_on, sentence, site_text, who_text
from ncclscope.wording.not_joined import Join, Was, last_call
from ncclscope.wording.notes import method_text
from ncclscope.wording.waits import Keeps

_SHOWN = 4


class NotJoined:
    """Ranks wait in a call that another rank never posted, while it is elsewhere."""

    name = "not_joined"

    def analyze(self, case: Case) -> Iterable[Finding]:
        """Yield a finding for each live rank at which a chain of waiting ends."""
        yield from self._unread(case)
        if case.differences:
            yield from self._missing_beside(case)
            apart = list(self._missing_apart(case))
            yield from apart
            yield from self._elsewhere(
                case, {(one.comm.key, one.seq) for one in apart if one.comm and one.seq}
            )
            return
        if not case.stalled:
            return
        yield from self._strayed(case)
        missed: dict[tuple[str, int], tuple[PendingCall, list[int]]] = {}
        for number, waiting in case.waits.ends.items():
            rank = case.run.by_rank.get(number)
            if rank is None or rank.details.get("probe_failed"):
                continue  # its calls after the probe ended are unknown
            is_late = case.waits.overtaken(number) or case.waits.is_outside(number)
            pending = case.waits.where_most_wait(waiting, number)
            if case.waits.holding_up(pending, number) and not is_late:
                continue  # it is itself in a call that all members have joined
            if case.how_it_ended(rank) is None or rank.exited:
                if _is_hole(rank, pending):
                    continue  # it never records calls of this kind, and may be in this one
                call = pending.comm.key, pending.call.seq
                missed.setdefault(call, (pending, []))[1].append(number)
        held_up = {transfer.rank for transfer in stuck_transfers(case)}
        held_up |= {transfer.rank for transfer in open_transfers(case)}
        held_up |= {rank.rank for rank in case.run.ranks if timed_out_in_transfer(rank)}
        for pending, numbers in missed.values():
            for finding in self._missed(case, pending, numbers):
                # A rank that waits for the other side of a transfer cannot join a collective.
                follows = held_up >= set(numbers) or _waits_for_fewer(case, pending)
                yield (replace(finding, role="consequence") if follows else finding)
        # The analyzer order_cycle describes all calls of a cycle.
        cycle = map(case.waits.pending_calls.__getitem__, case.waits.cycle)
        known = {(pending.comm.key, pending.call.seq) for pending in cycle}
        yield from self._elsewhere(case, known | set(missed))

    def _unread(self, case: Case) -> Iterable[Finding]:
        """Yield the ranks that do not read a message queue, while no rank waits in a call."""
        if case.differences or case.waits.pending_calls:
            return
        found = [one for one in unread_blocks(case) if one.rank.rank >= 0]
        ranks = tuple(sorted({one.rank.rank for one in found}))
        if not found:
            return
        few = 2 * len(ranks) <= len(case.run.ranks)
        yield Finding(
            kind=self.name,
            summary=f"{sentence('; '.join(one.text for one in found[:_SHOWN]))}.",
            blame=Blame.on(ranks) if few else Blame.among(ranks),
            role="cause",
            evidence=tuple(one.text for one in found),
        )

    def _missed(
        self, case: Case, pending: PendingCall, numbers: Sequence[int]
    ) -> Iterable[Finding]:
        """Yield the diverging side where some ranks wait in a call and others never joined it."""
        living = [n for n in numbers if case.how_it_ended(case.run.by_rank[n]) is None]
        if any(_posted(case.run.by_rank[n], pending) >= pending.call.seq for n in numbers):
            yield self._absent(case, numbers, pending)  # posted, but the device never reached it
            return
        gone = [n for n in pending.absent if n in case.waits.ends and n not in case.run.by_rank]
        sides = take_sides(case, pending, [*numbers, *gone])
        wait = key_awaited(case.run, living) if living else None
        if sides.diverging != "absent" and wait is None and wait_for_keys(case.run, living):
            yield self._without_key(case, living, pending)
        elif sides.diverging == "waiting":
            yield self._alone(case, sides, pending)
        elif wait is not None:
            yield self._without_key(case, living, pending, key_of(wait.activity))
        elif living and sides.diverging:
            yield self._absent(case, living, pending, (sides.reason,) if sides.reason else ())
        elif living:
            yield replace(
                self._absent(case, living, pending).undecided(sides.candidates),
                inferred=(Join.HELD_UP.of(sides.waiting, living),),
            )

    def _without_key(
        self, case: Case, absent: Sequence[int], pending: PendingCall, key: str = ""
    ) -> Finding:
        """Describe ranks that wait at the store, while those that may set the key wait for them."""
        finding = self._absent(case, absent, pending)
        waiting = waiting_in(case, pending)
        lines = [line for n in waiting for line in last_key_line(case.run.by_rank[n])]
        return replace(
            finding.undecided(sorted({*waiting, *absent})),
            evidence=(*finding.evidence, *lines),
            awaited=key,
            inferred=(
                Join.KEY_NOT_SET.of(waiting, key, absent)
                if key
                else Join.KEYS_NOT_SET.of(waiting, absent),
            ),
        )

    def _alone(self, case: Case, sides: Sides, pending: PendingCall) -> Finding:
        """Describe a call in which few ranks wait and which most have not posted."""
        few, many = sides.waiting, sides.absent
        call = {"where": call_on(pending.comm, pending.call), "site": site_text(pending.call)}
        evidence: list[str] = [Fact.of_call(Join.WAIT.of(ranks=few, **call), few)]
        for number in many:
            rank = case.run.by_rank.get(number)
            if rank is None:
                evidence.append(Fact.of_call(Join.NO_RECORD.of(number), (), [number]))
                continue
            evidence += [
                Fact.of_rank(number, line) for line in self._whereabouts(case, rank, pending)
            ]
            evidence += note_lines(case, rank)
            if (how := case.how_it_ended(rank)) is not None:
                evidence.append(Fact.of_end(number, how))
        why = Join.MOST_DO_NOT.of()
        if (wait := doing_in_common(case.run, many)) is not None:
            code = Join.IT_WAITS if len(many) == 1 else Join.THEY_WAIT
            why = code.of(wait.text, wait.seconds)
            evidence += [line for n in few for line in last_key_line(case.run.by_rank[n])]
        # Whoever has come through the rendezvous is not what keeps the others in it.
        in_init = wait is not None and wait.name == INIT
        return Finding(
            kind="init_stalled" if in_init else "extra_call",
            summary=Join.ALONE.of(
                who=who_text(case.run, few), ranks=few, absent=many, why=why, **call
            ),
            comm=pending.comm,
            seq=pending.call.seq,
            blame=Blame.among(many) if in_init else Blame.on(few),
            odd=pending.call,
            role="cause",
            evidence=tuple(evidence),
            awaited=key_of(wait.activity) if wait is not None else "",
            inferred=(
                describe_sides(sides),
                Join.OUTSIDE.of(many),
            ),
            extent=1,
        )

    def _strayed(self, case: Case) -> Iterable[Finding]:
        """Yield the one rank of a deadlock cycle whose call no other rank ever makes."""
        cycle = () if case.waits.cycle_creates else case.waits.cycle
        strays = [rank for rank in cycle if not case.is_usual(case.waits.pending_calls[rank])]
        if len(strays) == 1 and is_stray(case, case.waits.pending_calls[strays[0]]):
            (number,) = strays
            waiting = tuple(
                pending.rank
                for pending in case.waits.all_pending
                if number in pending.awaited and pending.rank != number
            )
            yield self._absent(case, [number], case.waits.where_most_wait(waiting))

    def _absent(
        self, case: Case, numbers: Sequence[int], pending: PendingCall, reasons: Sequence[str] = ()
    ) -> Finding:
        ranks = [case.run.by_rank[number] for number in numbers]
        waiting = waiting_in(case, pending)
        one, where = len(ranks) == 1, call_on(pending.comm, pending.call)
        in_it, how = describe_wait(case, waiting)
        evidence: list[str] = [Fact.of_call(Join.POSTED_SO.of(waiting, where, how), waiting)]
        inferred = [*reasons]
        for rank in ranks:
            evidence += [
                Fact.of_rank(rank.rank, line) for line in self._whereabouts(case, rank, pending)
            ]
            quiet = case.quiet_seconds(rank)
            if quiet is not None:
                if round(quiet) and not is_silent(case, rank, waiting):
                    alive = Join.ALIVE.of(rank.rank, quiet)
                    evidence.append(Fact.of_rank(rank.rank, alive))
                inferred.append(f"rank {rank.rank} {what_keeps(case, rank) or Keeps.UNKNOWN}")
            evidence += note_lines(case, rank)
            evidence += [one.text for one in disagreements(case.run.ranks) if rank.rank in one.few]
        evidence += timeout_lines(case, pending)
        if case.timeless:
            inferred.append(Join.NO_TIMES.of())
        was = ""
        links = held_by_engines(case.run, ranks)
        last = ranks[0].last_call(transfers=True)
        if all(rank.details.get("stopped") for rank in ranks):
            was = (Was.STOPPED if one else Was.ALL_STOPPED).of()
        elif all(is_idle(rank) for rank in ranks):
            was = Was.IDLE.of(numbers, why=f": {'; '.join(links)}" if links else "")
        elif one and (what := thread_ended(ranks[0])):
            was = Was.THREAD.of(what)
        elif one and (error := raised(case, ranks[0])) is not None:
            was = Was.RAISED.of(error[0], error[1])
        elif one and (now := doing(ranks[0])) is not None:
            was = Was.NOW.of(now.clause)
        elif one and (seen := seen_at(case.run, numbers[0])):
            was = Was.IS.of(seen)
        elif links:
            was = Was.ENGINE.of("; ".join(links))
        elif one and (sent := inside(case.run, ranks[0])) is not None:
            was = Was.INSIDE.of(method_text(sent.activity), sent.seconds)
        elif one and last is not None:
            was = Was.LAST.of(call=last, comm=case.run.communicators[last.comm])
        elif one and not ranks[0].lost:
            was = Was.NOTHING.of()
        late = any(_posted(rank, pending) >= pending.call.seq for rank in ranks)
        return Finding(
            kind=self.name,
            summary=(Join.NOT_REACHED if late else Join.NEVER).of(
                who=who_text(case.run, numbers), ranks=numbers, where=where, waits=in_it, was=was
            ),
            comm=pending.comm,
            seq=pending.call.seq,
            blame=Blame.on(
                numbers,
                "likely" if case.timeless or reasons or any(map(may_come, ranks)) else "certain",
            ),
            odd=last,
            peers=pending.call,
            role="cause",
            evidence=tuple(evidence),
            inferred=tuple(inferred),
        )

    def _missing_beside(self, case: Case) -> Iterable[Finding]:
        """Yield, where sequences differ, ranks that never reached that call and wait for none."""
        if not case.stalled:
            return
        diverged = {(divergence.comm.key, divergence.seq) for divergence in case.divergences}
        for key, seq in sorted(diverged):
            pending_calls = [
                pending
                for pending in case.waits.all_pending
                if (pending.comm.key, pending.call.seq) == (key, seq)
            ]
            absent = [
                number
                for number in (pending_calls[0].absent if pending_calls else ())
                if number in case.waits.ends
                and number in case.run.by_rank
                and case.how_it_ended(case.run.by_rank[number]) is None
            ]
            if absent:
                yield self._absent(case, absent, pending_calls[0])

    def _missing_apart(self, case: Case) -> Iterable[Finding]:
        """Yield, where sequences differ, ranks that are missing elsewhere for another reason.

        They did not diverge, and either wait for no rank or went on to a call that the waiting
        ranks posted after this one.
        """
        if not case.stalled:
            return
        differing = {divergence.comm.key: divergence.seq for divergence in case.divergences}
        differing.update((each.comm.key, each.seq) for each in case.differences)
        diverging = {rank for difference in case.differences for rank in difference.odd}
        seen = set()
        for pending in case.waits.all_pending:
            key = pending.comm.key
            if key in differing or key in seen:
                continue
            seen.add(key)
            reasons: dict[int, str] = {}
            waiting = case.run.by_rank[pending.rank]
            for number in pending.absent:
                rank = case.run.by_rank.get(number)
                if rank is None or number in diverging or _is_hole(rank, pending):
                    continue
                if case.how_it_ended(rank) is not None:
                    continue
                if any(_reached(rank, key) >= seq for key, seq in differing.items()):
                    # It may be stuck in the difference, unless it went past this call before.
                    if reason := came_past(waiting, pending.call, rank, differing):
                        reasons[number] = reason
                elif number in case.waits.ends:
                    reasons[number] = ""
            if not reasons:
                continue
            sides = take_sides(case, pending, list(reasons))
            if sides.diverging == "absent":
                whys = tuple(reason for reason in reasons.values() if reason)
                yield self._absent(case, list(reasons), pending, whys)

    def _whereabouts(self, case: Case, rank: Rank, pending: PendingCall) -> Iterable[str]:
        """Say what a rank did instead of joining a call."""
        number, posted = rank.rank, _posted(rank, pending)
        head = case.waits.heads.get(number)
        if case.waits.is_outside(number) and head is not None:
            yield Join.NOT_ON_DEVICE.of(number, head.seq, case.run.communicators[head.comm])
        elif posted >= pending.call.seq and head is not None:
            yield Join.NOT_SINCE.of(rank=number, head=head, comm=case.run.communicators[head.comm])
        else:
            yield Join.COUNT.of(number, posted)
        last = rank.last_call(transfers=True)
        if last is not None:
            yield last_call(case.run, number, last)
        elif rank.lost:
            yield Join.NONE_UNDER_WAY.of(number)

    def _elsewhere(self, case: Case, missed: set[tuple[str, int]]) -> Iterable[Finding]:
        """Yield ranks that wait in other calls because a member waits or never arrived."""
        for finding in self._consequences(case):
            if finding.comm is not None and (finding.comm.key, finding.seq) not in missed:
                yield finding

    def _consequences(self, case: Case) -> Iterable[Finding]:
        """Yield, where sequences differ, the ranks that wait elsewhere for the diverging ranks."""
        differing = {difference.comm.key for difference in case.differences}
        seen = set()
        for pending in case.waits.all_pending:
            # After a first difference, equal numbers are no longer equal calls: on that
            # communicator they do not show who waits for whom.
            absent = tuple(
                number
                for number in pending.absent
                if (rank := case.run.by_rank.get(number)) is None or not _is_hole(rank, pending)
            )
            if pending.comm.key in differing or pending.comm.key in seen or not absent:
                continue
            seen.add(pending.comm.key)
            waiting = waiting_in(case, pending)
            yield Finding(
                kind=self.name,
                summary=Join.NEVER_BY.of(waiting, call_on(pending.comm, pending.call), absent),
                comm=pending.comm,
                seq=pending.call.seq,
                blame=Blame.on(absent, "certain"),
                peers=pending.call,
                role="consequence",
            )


def _waits_for_fewer(case: Case, pending: PendingCall) -> bool:
    """Return whether more ranks, which never came to a call, wait for those that are in it.

    They do so in another thread, for which the one that never came may wait.
    """
    waiting = {*waiting_in(case, pending)}
    others = {one.rank for one in case.waits.all_pending if waiting.issubset(one.awaited)}
    return len(pending.absent) > len(waiting) and others.issuperset(pending.absent)


def _posted(rank: Rank, pending: PendingCall) -> int:
    """Return how many calls a rank posted on the communicator of another one's pending call."""
    return _reached(rank, pending.comm.key)


def _reached(rank: Rank, key: str) -> int:
    log = rank.logs.get(key)
    return 0 if log is None else log.calls


def _is_hole(rank: Rank, pending: PendingCall) -> bool:
    """Return whether a rank's record is known to lack calls like a pending one."""
    unseen = rank.details.get("unseen")
    return isinstance(unseen, list) and any(
        isinstance(one, dict)
        and one.get("op") == pending.call.op
        and pending.comm.key in one.get("comms", ())
        for one in unseen
    )
