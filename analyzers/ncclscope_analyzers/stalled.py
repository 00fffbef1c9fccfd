"""All members are in the same call, and it does not complete."""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain, zip_longest

from ncclscope.engine.case import Case
from ncclscope.engine.coverage import uses_unrecorded
from ncclscope.engine.processes.device_verdict import ALONE_SECONDS, gpu_conditions
from ncclscope.engine.processes.motion import starved
from ncclscope.engine.repairs.queued import Enqueued, up_to
from ncclscope.engine.waits.engine_steps import awaits_input, is_idle
from ncclscope.engine.waits.transfers import Pair, matched_waits, pairs
from ncclscope.engine.waits.waits import ended_by, is_last, timed_out
from ncclscope.model import Blame, Call, Communicator, Finding, Rank, Run, State
from ncclscope.wording.names import call_there, plural
from ncclscope.wording.stacks import starved_text
from ncclscope.wording.stalls import Stall

_SHOWN = 4
_BEFORE = 64
"""Calls before one that are searched for an earlier one of its line."""


class Stalled:
    """All members of a communicator are in the same call, and it does not complete."""

    name = "stalled"

    def analyze(self, case: Case) -> Iterable[Finding]:
        """Yield a finding for each communicator whose members all joined a call that hangs."""
        if case.differences:
            return
        pending = _in_transfer(case)
        behind = _behind(case, pending)
        for half in _stuck(case, pending):
            yield from self._transfer(case, half)
        yield from self._left_behind(case)
        yield from self._spinning(case)
        yield from self._timed_out(case)
        for comm, call in self._common_heads(case, behind):
            seconds = case.longest_common_quiet(comm.ranks)
            overdue = [rank for rank in comm.ranks if case.run.by_rank[rank].gave_up(call)]
            if seconds is not None and all(map(case.waits.is_outside, comm.ranks)):
                yield self._before(case, comm, call, seconds)
            elif seconds is not None:
                time, proof = Stall.FOR.of(seconds), Stall.ALIVE.of(seconds)
                yield self._finding(case, comm, call, time, proof)
            elif overdue:
                proof = Stall.ABORTED.of(overdue)
                yield self._finding(case, comm, call, Stall.IN_TIMEOUT, proof)
            elif _all_started(case, comm, call):
                proof = Stall.LISTED_AS_STARTED.of()
                yield self._finding(case, comm, call, Stall.IN_DUMPS, proof)

    def _left_behind(self, case: Case) -> Iterable[Finding]:
        """Describe calls that completed on some devices and not on others."""
        seen = {one.comm.key for one in case.survived}  # equal numbers are no equal calls there
        for head in _heads(case):
            comm = case.run.communicators[head.comm]
            if comm.key in seen or len(comm.ranks) < 2 or comm.is_partial:
                continue
            seen.add(comm.key)
            found = case.waits.left_behind(comm)
            seconds = None if found is None else case.longest_common_quiet(comm.ranks)
            if found is None or seconds is None:
                continue
            call, inside = found
            if any(case.waits.overtaken(rank) and rank in case.waits.ends for rank in inside):
                continue  # others wait for it, which is the better explanation
            past = [rank for rank in comm.ranks if rank not in inside]
            few = 2 * len(inside) < len(comm.ranks)
            yield replace(
                self._finding(case, comm, call, "", ""),
                blame=Blame.among(inside if few else comm.ranks, "likely"),
                summary=Stall.SOME_COMPLETED.of(
                    comm=comm,
                    call=call,
                    past=past,
                    inside=inside,
                    seconds=seconds,
                    agreement=_agreement(case, comm)[0],
                ),
                evidence=(
                    Stall.POSTED.of(comm=comm, call=call, how=Stall.ONLY.of(past)),
                    Stall.ALIVE.of(seconds),
                ),
            )

    def _timed_out(self, case: Case) -> Iterable[Finding]:
        """Describe a call that is the last of all members, and whose timeout ended processes."""
        ended: dict[str, list[int]] = {}
        for rank in filter(timed_out, case.run.ranks):
            if (call := rank.last_call()) is not None and ended_by(call, rank, timed_out):
                ended.setdefault(call.comm, []).append(rank.rank)
        for key, ranks in ended.items():
            comm = case.run.communicators[key]
            call = case.run.by_rank[ranks[0]].last_call()
            if call is None or any(rank in case.waits.heads for rank in comm.ranks):
                continue  # with known progress, see below
            if all(is_last(case.run.by_rank.get(rank), call) for rank in comm.ranks):
                proof = Stall.TIMED_OUT.of(ranks)
                yield self._finding(case, comm, call, Stall.IN_TIMEOUT, proof)

    def _spinning(self, case: Case) -> Iterable[Finding]:
        """Describe a hang that GPU load shows where the backend does not report completion."""
        ranks = tuple(rank.rank for rank in case.run.ranks if rank.logs)
        if case.waits.heads or len(ranks) < 2:
            return
        if _rests(case.run):
            return  # another program loads the GPUs
        seconds = case.longest_common_quiet(ranks)
        snapshot = case.run.snapshot
        spinning = {rank.rank for rank in case.run.ranks if rank.details.get("gpu_spins")}
        if snapshot is not None:
            found = gpu_conditions(snapshot)
            spinning.update(rank for rank, condition in found.items() if condition == "spins")
        if seconds is None or seconds < ALONE_SECONDS:
            return
        if not spinning.issuperset(ranks):
            return
        shared = [comm for comm in case.run.communicators.values() if set(comm.ranks) >= {*ranks}]
        comm = shared[0] if len(case.run.communicators) == 1 and shared else None
        yield Finding(
            kind=self.name,
            summary=Stall.SPIN.of(seconds, comm or Stall.SOME_COMM),
            comm=comm,
            blame=Blame.among(ranks, "likely"),
            role="cause",
            evidence=(Stall.AS_MANY.of(ranks, seconds),),
            inferred=(Stall.BY_LOAD.of(), Stall.REASON.of()),
        )

    def _finding(
        self, case: Case, comm: Communicator, call: Call, time: object, proof: str
    ) -> Finding:
        agreement, reason = _agreement(case, comm)
        slow = starved(case.run.snapshot)
        reasons = [
            starved_text({one: slow[one] for one in comm.ranks if one in slow}),
            _crossed(case, call),
            reason,
        ]
        finding = Finding(
            kind=self.name,
            summary=Stall.NONE_COMPLETED.of(comm=comm, call=call, time=time, agreement=agreement),
            comm=comm,
            seq=call.seq,
            blame=Blame.among(comm.ranks, "likely"),
            peers=call,
            role="cause",
            evidence=(
                Stall.POSTED.of(comm=comm, call=call, how=Stall.NONE),
                Stall.BEFORE.of(plural(call.seq - 1, "call")),
                proof,
            ),
            inferred=tuple(filter(None, reasons)),
        )
        before = list(up_to(case, call))
        is_next = all(one.is_whole for one in before)
        return finding if is_next else _queued(case, finding, call, time, before)

    def _before(self, case: Case, comm: Communicator, call: Call, seconds: float) -> Finding:
        """Describe a call that all ranks have posted and no device has reached."""
        finding = self._finding(case, comm, call, "", "")
        return replace(
            finding,
            summary=Stall.NONE_REACHED.of(
                comm=comm, call=call, seconds=seconds, agreement=_agreement(case, comm)[0]
            ),
            evidence=(
                Stall.POSTED.of(comm=comm, call=call, how=Stall.NO_DEVICE),
                Stall.ALIVE.of(seconds),
            ),
            inferred=(Stall.EARLIER_WORK.of(),),
        )

    def _transfer(self, case: Case, half: _Half) -> Iterable[Finding]:
        """Describe a send and a receive that are posted, match, and do not complete."""
        comm = case.run.communicators[half.call.comm]
        pair = tuple(sorted((half.rank, half.other)))
        seconds = case.longest_common_quiet(pair)
        if seconds is None:
            return
        why, reason = Stall.ITSELF, Stall.REASON
        if "nccl" not in comm.backend:  # NCCL has no tags
            why, reason = Stall.TAGS_MAY_DIFFER, Stall.TAGS
        ahead = case.run.by_rank[half.rank].last_call(transfers=True) != half.call
        yield Finding(
            kind=self.name,
            summary=Stall.TRANSFER.of(
                rank=half.rank,
                call=half.call,
                comm=comm,
                other=half.other,
                seconds=seconds,
                why=why,
            ),
            comm=comm,
            seq=half.call.seq,
            blame=Blame.among(pair, "likely"),
            peers=half.call,
            role="cause",
            evidence=(
                Stall.HALVES.of(half.number, half.rank, half.other),
                *((Stall.WENT_ON.of(half.rank),) if ahead else ()),
                Stall.BOTH_ALIVE.of(seconds),
            ),
            inferred=(reason.of(), *((Stall.DROPPED.of(),) if ahead else ())),
        )

    def _common_heads(
        self, case: Case, behind: Container[int]
    ) -> Iterable[tuple[Communicator, Call]]:
        """Yield the calls that all members of a communicator have posted and wait in."""
        seen = set()
        for call in _heads(case):
            comm = case.run.communicators[call.comm]
            if comm.key in seen or len(comm.ranks) < 2 or comm.is_partial:
                continue
            seen.add(comm.key)
            if any(rank in behind or rank in case.waits.pending_calls for rank in comm.ranks):
                continue  # it, or a rank that it waits for, has not reached the collective yet
            if any(_went_on(case.run.by_rank.get(rank), call) for rank in comm.ranks):
                continue  # it was enqueued, and nobody waits for it
            if set(comm.ranks) <= _places(case, call).keys():
                yield comm, call


def _queued(
    case: Case, finding: Finding, call: Call, time: object, before: Sequence[Enqueued]
) -> Finding:
    """Return a finding on a call that may be behind others, whose parts are not all posted."""
    lacking = sorted(
        (one for one in before if not one.is_whole), key=lambda one: one.call.time_ns or 0
    )
    first, ranks = lacking[0], {*finding.candidate_ranks}.union(*(one.parts for one in before))
    where = call_there(case.run.communicators[first.call.comm], first.call)
    return replace(
        finding.undecided(sorted(ranks)),
        summary=Stall.MAY_BE_BEHIND.of(
            comm=finding.comm, call=call, time=time, first=where, rank=first.rank
        ),
        evidence=(
            *finding.evidence,
            *(
                Stall.BEHIND.of(
                    rank=one.rank,
                    call=call_there(case.run.communicators[one.call.comm], one.call),
                    parts=one.parts,
                )
                for one in lacking[:_SHOWN]
            ),
        ),
        inferred=(),
    )


def _heads(case: Case) -> Iterator[Call]:
    """Yield the calls in which threads are."""
    return chain.from_iterable(case.waits.heads_by_thread.values())


def _places(case: Case, call: Call) -> dict[int, int]:
    """Return the ranks of which a thread is in a call, and where each posted it in its stream."""
    return {
        rank: head.position
        for rank, heads in case.waits.heads_by_thread.items()
        for head in heads
        if (head.comm, head.seq) == (call.comm, call.seq)
    }


def _crossed(case: Case, call: Call) -> str:
    """Say which ranks posted a pending call of another thread first, and which did not."""
    own = _places(case, call)
    for other in _heads(case):
        theirs = _places(case, other)
        both = sorted(own.keys() & theirs.keys())
        before = [rank for rank in both if own[rank] < theirs[rank]]
        after = [rank for rank in both if own[rank] > theirs[rank]]
        if before and after:
            comm = case.run.communicators[other.comm]
            return Stall.CROSSED.of(before=before, seq=other.seq, comm=comm, after=after)
    return ""


def _went_on(rank: Rank | None, call: Call) -> bool:
    """Return whether a rank posted later calls there, and nothing shows that this one is pending.

    A call is known to have completed when the program has waited for it. Where it has waited for
    no earlier call of this line, it may do so much later.
    """
    log = None if rank is None else rank.logs.get(call.comm)
    if rank is None or log is None or rank.details.get("tells"):
        return False
    if log.calls <= call.seq or rank.device.get(call.comm) is not None:
        return False
    before = log.span(max(log.first, call.seq - _BEFORE), call.seq)
    alike = [one for one in before if (one.op, one.site) == (call.op, call.site)]
    return not any(one.state is State.COMPLETED for one in alike)


def _agreement(case: Case, comm: Communicator) -> tuple[str, str]:
    """Return what is known of the order of calls, and what the hang may come from."""
    if any(uses_unrecorded(case.run.by_rank[rank], comm.key) for rank in comm.ranks):
        return Stall.NO_RANK_IN_RECORDS.of(), Stall.UNRECORDED.of()
    return Stall.NO_RANK.of(), Stall.REASON.of()


def _all_started(case: Case, comm: Communicator, call: Call) -> bool:
    """Return whether dumps, written long after a call, list it as started on all members."""
    if not case.timeless:
        return False
    for member in comm.ranks:
        rank = case.run.by_rank[member]
        head = rank.logs[comm.key].call(call.seq)
        if rank.details.get("dumped") is not True or head.state is not State.STARTED:
            return False
    return True


@dataclass(frozen=True)
class _Half:
    """A send or receive, and the other side's call for it, where it has posted one."""

    rank: int
    other: int
    call: Call
    number: int
    answer: Call | None

    def is_shared(self, pending: Mapping[int, _Half]) -> bool:
        """Return whether the other side waits in the same transfer."""
        other = pending.get(self.other)
        return other is not None and other.call is self.answer


def _rests(run: Run) -> bool:
    """Return whether all workers wait for work, and their engines for requests, as is recorded."""
    processes = (*run.others, *run.ranks)
    engines = {one.labels.get("engine") for one in processes if awaits_input(one)}
    return all(is_idle(one) and one.labels.get("engine") in engines for one in run.ranks)


def _in_transfer(case: Case) -> dict[int, _Half]:
    """Return the pending send or receive of each rank that posted it before any collective.

    Only for backends that report completion: where no transfer of a rank on a communicator is known
    to have completed, their states carry no information. One of the same ranks may report it, as
    gloo does for metadata, while NCCL does not for the data.
    """
    first: dict[int, _Half] = {}
    reporting = set()
    for pair in pairs(case):
        for half in _halves(pair):
            if half.call.state is State.COMPLETED:
                reporting.add((half.rank, pair.comm.key))
            elif half.rank not in first or half.call.position < first[half.rank].call.position:
                first[half.rank] = half
    heads = case.waits.heads
    reporting.update((rank, pair.comm.key) for pair, _, rank in matched_waits(case))
    return {
        rank: half
        for rank, half in first.items()
        if (rank, half.call.comm) in reporting
        and (rank not in heads or half.call.position < heads[rank].position)
    }


def _stuck(case: Case, pending: Mapping[int, _Half]) -> list[_Half]:
    """Return the sends of the transfers that both sides have posted and that hang."""
    shared = [
        half for half in pending.values() if half.call.op == "send" and half.is_shared(pending)
    ]
    sends = {(half.rank, half.other, half.number): half for half in shared}
    for pair, number, _ in matched_waits(case):
        sent, received = pair.sends[number - 1], pair.receives[number - 1]
        half = _Half(pair.sender, pair.receiver, sent, number, received)
        sends.setdefault((half.rank, half.other, number), half)
    return [*sends.values()]


def _halves(pair: Pair) -> Iterable[_Half]:
    for number, (sent, received) in enumerate(zip_longest(pair.sends, pair.receives), 1):
        if sent is not None:
            yield _Half(pair.sender, pair.receiver, sent, number, received)
        if received is not None:
            yield _Half(pair.receiver, pair.sender, received, number, sent)


def _behind(case: Case, pending: Mapping[int, _Half]) -> set[int]:
    """Return the ranks whose pending transfer explains why they are in no collective yet."""
    behind = {
        rank
        for rank, half in pending.items()
        if half.answer is None or half.is_shared(pending) or half.other in case.waits.pending_calls
    }
    grown = True
    while grown:
        more = {rank for rank, half in pending.items() if half.other in behind} - behind
        behind |= more
        grown = bool(more)
    return behind
