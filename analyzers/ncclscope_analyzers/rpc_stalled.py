"""A service that hangs: workers that do not answer, engines that wait or are gone."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from ncclscope.engine.case import Case
from ncclscope.engine.precedence import LATE
from ncclscope.engine.processes.motion import read_engines, seen_at
from ncclscope.engine.services.answers import (
    Apart,
    Fallen,
    Unanswered,
    engines_apart,
    engines_fallen,
    engines_gone,
    engines_held,
    unanswered,
)
from ncclscope.engine.services.requests import (
    Unresponsive,
    lost_requests,
    open_requests,
    paused,
    place_of,
    unresponsive,
    without_work,
)
from ncclscope.engine.waits.graph import waiting_in_calls
from ncclscope.engine.waits.noted import Noted, doing, lasting
from ncclscope.model import Blame, Finding, Rank
from ncclscope.model.activities import INPUT, RAISED, REQUESTS
from ncclscope.untrusted import printable
from ncclscope.wording.names import plural, process_text, rank_text, sentence, who_text
from ncclscope.wording.notes import Came, Rpc, Unheard, method_text

_SHOWN = 4
"""Workers whose state is in the evidence."""
_SAID = {
    Came.ITSELF: Rpc.ITSELF,
    Came.INSIDE: Rpc.INSIDE,
    Came.EARLIER: Rpc.EARLIER,
    Came.NOT_TAKEN: Rpc.NOT_TAKEN,
    Came.BACK: Rpc.BACK,
    Came.ANSWERED: Rpc.LOST,
}
"""What is said of workers by how far they have come; who is furthest from an answer, first."""


class RpcStalled:
    """An engine waits for a worker's answer or for other engines, or a server for its engine."""

    name = "rpc_stalled"

    def analyze(self, case: Case) -> Iterable[Finding]:
        """Yield a finding for each engine that waits, or one on the processes that are stopped."""
        found = [_finding(case, one) for one in unanswered(case) if _is_long(case, one)]
        apart = [one for one in engines_apart(case) if one.seconds >= case.live_stall_seconds]
        yield from (
            found
            or [_apart(case, one) for one in apart]
            or _gone(case)
            or _held(case)
            or _unheard(case)
        )


def _is_long(case: Case, one: Unanswered) -> bool:
    """Return whether an answer has been awaited for as long as a hang lasts.

    Where a worker is at the call, it may be busy; where none is any more, no answer comes.
    It gets on with the call as long as it posts calls. Samples of stacks show that a worker stays
    stopped; a profiler stops it for a moment.
    """
    if one.is_stopped and one.method is None:
        return True
    is_over = one.is_lost and not one.alive
    quiet = (case.quiet_seconds(case.run.by_rank[rank]) for rank in one.lacking)
    seconds = min([one.seconds, *(known for known in quiet if known is not None)])
    return seconds >= (case.stall_seconds if is_over else case.live_stall_seconds)


def _finding(case: Case, one: Unanswered) -> Finding:
    far = next(came for came in _SAID if any(one.workers[rank] is came for rank in one.lacking))
    ranks = tuple(rank for rank in one.lacking if one.workers[rank] is far)
    is_known = far is not Came.ANSWERED and (len(ranks) < len(one.workers) or len(ranks) == 1)
    first = case.run.by_rank[ranks[0]]
    is_other = one.given_up and far is Came.EARLIER
    began = Rpc.BEGAN if far is Came.ITSELF else Rpc.SENT_LAST if one.given_up else Rpc.SENT
    call = method_text(None if is_other else one.method)
    said = Rpc.GIVEN_UP if one.given_up else Rpc.LATE if one.is_late else _SAID[far]
    summary = said.of(
        who=who_text(case.run, ranks),
        ranks=ranks,
        call=call,
        engine=_engine(one.name, one.pid),
        seconds=one.seconds,
        at=str(Rpc.IS_STOPPED) if one.is_stopped else _place(case, ranks),
    )
    return Finding(
        kind=LATE if one.is_late else RpcStalled.name,
        summary=summary,
        blame=Blame.on(ranks) if is_known else Blame.among(ranks),
        odd=first.last_call() if is_known else None,
        role="cause",
        analyzer=RpcStalled.name,
        evidence=(
            began.of(_engine(one.name, one.pid), method_text(one.method), one.seconds),
            *(Rpc.WORKER.of(rank, one.workers[rank]) for rank in one.awaited[:_SHOWN]),
        ),
        hangs=True,
    )


def _apart(case: Case, one: Apart) -> Finding:
    """Return a finding on engines that have not come to a call of engines.

    Its ranks are the workers of the engines that have not come, or those of all, if as many wait.
    """
    absent, waiting = (
        [{rank.rank for rank in case.run.ranks if _is_of(rank, engine)} for engine in engines]
        for engines in (one.absent, one.waiting)
    )
    few, all_of = set[int]().union(*absent), set[int]().union(*absent, *waiting)
    is_known = len(one.absent) < len(one.waiting)
    return Finding(
        kind="not_joined",
        summary=Rpc.APART.of(
            who=" and ".join(_name(case, engine) for engine in one.absent),
            ranks=one.absent,
            call=one.call,
            comm=one.comm,
            seconds=one.seconds,
            waiting=" and ".join(_name(case, engine) for engine in one.waiting),
            waits=one.waiting,
            did=Rpc.RESTS.of(one.absent) if all(map(_rests, one.absent)) else "",
        ),
        blame=Blame.on(sorted(few)) if is_known else Blame.among(sorted(all_of)),
        peers=one.call,
        role="cause",
        analyzer=RpcStalled.name,
        evidence=tuple(
            Rpc.MADE.of(_name(case, engine), engine.logs[one.comm.key].calls, one.comm)
            for engine in (*one.waiting, *one.absent)[:_SHOWN]
        ),
        hangs=True,
    )


def _is_of(worker: Rank, engine: Rank) -> bool:
    return worker.labels.get("engine") == engine.labels["engine"]


def _rests(engine: Rank) -> bool:
    """Return whether an engine waits for requests, and not for an answer of its workers."""
    return lasting(engine, INPUT) is not None and lasting(engine, "dequeue") is None


def _place(case: Case, ranks: Iterable[int]) -> str:
    """Return where the first of some workers is, to follow "is"."""
    rank = case.run.by_rank[next(iter(ranks))]
    noted = doing(rank)
    return seen_at(case.run, rank.rank) or (f"in {noted.text}" if noted else str(Rpc.UNSEEN))


def _gone(case: Case) -> list[Finding]:
    """Return a finding on engines that are gone, or that exceptions ended."""
    fallen, engines = engines_fallen(case.run), engines_gone(case.run)
    if fallen and not case.stalled:
        return [_fallen(case, fallen[0])]
    if not engines or waiting_in_calls(case):
        return []
    who = " and ".join(_name(case, one) for one in engines)
    others = [one for one in case.run.others if one not in engines and RAISED in one.activities]
    return [
        _dead(
            Rpc.GONE.of(who=who, ranks=engines),
            ranks=tuple(one.rank for one in engines if one.rank >= 0),
            evidence=tuple(Rpc.RAISED.of(one.pid, _error(one)) for one in others)[:_SHOWN],
        )
    ]


def _held(case: Case) -> list[Finding]:
    """Return findings on engines that hang in what they do themselves."""
    held = [one for one in engines_held(case) if one[1].seconds >= case.live_stall_seconds]
    if not held or waiting_in_calls(case):
        return []
    return [_on_processes([], _held_at(case, engine, noted)) for engine, noted in held]


def _held_at(case: Case, engine: Rank, noted: Noted) -> str:
    seen = [] if case.run.snapshot is None else read_engines(case.run.snapshot)
    at = [one.text for one in seen if one.worker.pid == engine.pid and one.frames]
    label = engine.labels.get("engine")
    return Rpc.HELD.of(
        engine=_engine(label or "", engine.pid),
        call=method_text(noted.activity),
        seconds=noted.seconds,
        workers=[rank.rank for rank in case.run.ranks if rank.labels.get("engine") == label],
        at=Rpc.HELD_AT.of(at[0]) if at else str(Rpc.HELD_ANYWHERE),
    )


def _fallen(case: Case, one: Fallen) -> Finding:
    """Return a finding on the exception that ended an engine, and on who raised it first."""
    chain = [each for each in (one.worker, one.engine, one.server) if each is not None]
    first, *then = (Rpc.RAISED_BY.of(_name(case, each), _error(each)) for each in chain)
    ranks = tuple(each.rank for each in chain[:1] if each.rank >= 0)
    return _dead(Rpc.FALLEN.of(sentence(first), " and ".join(then)), ranks=ranks)


def _dead(summary: str, ranks: tuple[int, ...] = (), evidence: tuple[str, ...] = ()) -> Finding:
    return Finding(
        kind="dead_rank",
        summary=summary,
        blame=Blame.on(ranks),
        role="cause",
        analyzer=RpcStalled.name,
        evidence=evidence,
        hangs=True,
    )


def _error(process: Rank) -> str:
    return printable(process.activities[RAISED].detail or "")


def _unheard(case: Case) -> Iterable[Finding]:
    """Yield a finding on the processes that answer nobody, while somebody waits for them."""
    if without := without_work(case):
        yield _not_woken(case, *without)
        return
    found, (count, seconds) = unresponsive(case), open_requests(case)
    if not (found or count) or waiting_in_calls(case):
        return
    blocks = any(one.how is Unheard.BLOCKED for one in found)
    if found and count:
        requests = plural(count, "open request")
        said = _processes(case, found)
        yield _on_processes(
            found, Rpc.UNANSWERED.of(processes=said, requests=requests, seconds=seconds)
        )
    elif blocks:
        yield _on_processes(found, f"{_processes(case, found)}.")
    elif not found:
        yield from _lost(case)


def _not_woken(case: Case, coordinator: Unresponsive, ends: Sequence[int]) -> Finding:
    waiting = sorted({*case.waits.pending_calls} or {*case.run.by_rank} - {*ends})
    pending = list(case.waits.pending_calls.values())
    said = Rpc.NO_WORK.of(processes=_processes(case, [coordinator]), ranks=ends, waiting=waiting)
    finding = _on_processes([coordinator], said)
    lines = [Rpc.WAITS_IN.of([one.rank], one.call, one.comm) for one in pending[:_SHOWN]]
    return replace(
        finding,
        evidence=(*finding.evidence, *lines),
        accounts_for=tuple({(one.comm.key, one.call.seq): None for one in case.waits.all_pending}),
    )


def _lost(case: Case) -> Iterable[Finding]:
    """Yield a finding on open requests of which no engine knows."""
    count, seconds, engines = lost_requests(case)
    waiting = [one for one in (*case.run.others, *case.run.ranks) if lasting(one, REQUESTS)]
    if count and not paused(case.run):
        requests = plural(count, "open request")
        said = Rpc.LOST_REQUESTS.of(
            requests=sentence(requests),
            seconds=seconds,
            servers=" and ".join(_name(case, one) for one in waiting),
            engines=" and ".join(_name(case, one) for one in engines),
            ranks=engines,
        )
        yield _on_processes([], said)


def _on_processes(found: Sequence[Unresponsive], summary: str) -> Finding:
    return Finding(
        kind=RpcStalled.name,
        summary=summary,
        blame=Blame.on(one.process.rank for one in found if one.process.rank >= 0),
        role="cause",
        analyzer=RpcStalled.name,
        evidence=tuple(Rpc.CONT.of(one.process.pid) for one in found if one.how is Unheard.STOPPED),
        hangs=True,
    )


def _processes(case: Case, found: Sequence[Unresponsive]) -> str:
    """Return which processes answer nobody, and why, to begin a sentence."""
    parts = []
    for how in dict.fromkeys(one.how for one in found):
        same = [one for one in found if one.how is how]
        names = " and ".join(_name(case, one.process) for one in same)
        seconds = max(one.seconds for one in same)
        parts.append(f"{names} {how.of(same, seconds, place_of(case.run, same[0].process))}")
    return sentence("; ".join(parts))


def _name(case: Case, process: Rank) -> str:
    return process_text(process) if process.rank < 0 else rank_text(case.run, process.rank)


def _engine(name: str, pid: int) -> str:
    return Rpc.ENGINE.of(name, pid) if name else Rpc.THE_ENGINE.of(pid)
