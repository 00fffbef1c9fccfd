"""What engines wait for: the answers of their workers, and each other; and engines that are gone.

An engine sends a method to all of its workers, and waits for the answer of one of them, or of all.
A worker that takes the message leaves its wait for work, answers, and waits for work again. So the
newest of these activities show how far it has come. An engine that waits for requests waits for no
answer: it has them all, or it has given up those of the workers that are still at a call.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from ncclscope.engine.case import Case
from ncclscope.engine.processes.late import share_of_core
from ncclscope.engine.processes.motion import Motion, read_engines, read_motions
from ncclscope.engine.processes.requests import awaits_requests
from ncclscope.engine.waits.engine_steps import (
    engine_cores,
    how_far,
    is_idle,
    schedules_itself,
    turn_of,
)
from ncclscope.engine.waits.graph import waiting_in_calls
from ncclscope.engine.waits.noted import Noted, lasting
from ncclscope.model import Activity, Call, Communicator, Rank, Run, State
from ncclscope.model.activities import ASKED, INPUT, PAUSED, RAISED, WORK, WORKER_DIED
from ncclscope.wording.notes import Came


@dataclass(frozen=True)
class Unanswered:
    """A call that an engine waits for the answer of.

    Attributes:
        pid: The engine core.
        name: Its label; empty where it is not known.
        method: What it called; empty where that is not known.
        alive: Whether the engine is known to live.
        seconds: How long the engine has waited, for the answer or for requests since, up to its
            last heartbeat.
        workers: Its workers, by rank, and how far each has come.
        awaited: Those whose answers it waits for.
        shares: Of those that are inside and at work: the share of a core that each uses.
        stopped: Those that a signal has stopped.
        given_up: Whether the engine waits for requests again.
    """

    pid: int
    name: str
    method: Activity | None
    alive: bool
    seconds: float
    workers: dict[int, Came]
    awaited: tuple[int, ...]
    shares: dict[int, float]
    stopped: frozenset[int] = frozenset()
    given_up: bool = False

    @property
    def lacking(self) -> tuple[int, ...]:
        """The awaited workers that have not answered; all awaited ones where each has."""
        lacking = (rank for rank in self.awaited if self.workers[rank] is not Came.ANSWERED)
        return tuple(lacking) or self.awaited

    @property
    def is_lost(self) -> bool:
        """Whether no worker is at the call any more: nobody is left who would answer it."""
        return all(came in (Came.BACK, Came.ANSWERED) for came in self.workers.values())

    @property
    def is_stopped(self) -> bool:
        """Whether a signal has stopped all workers that have not answered."""
        return self.stopped >= {*self.lacking}

    @property
    def is_late(self) -> bool:
        """Whether all workers that have not answered are at work."""
        return self.shares.keys() >= {*self.lacking}


def unanswered(case: Case) -> Iterator[Unanswered]:
    """Yield the calls that engines wait for the answers of, where no worker is in a collective.

    Args:
        case: The case. Waits of any length are yielded.
    """
    yield from _recorded(case)
    yield from _seen(case)


def _seen(case: Case) -> Iterator[Unanswered]:
    """Yield what the stacks of an engine without a ring show, and those of its workers.

    A worker that waits for work may have answered or not; one that is elsewhere has not. Where the
    engine waits for requests, it has given up the answers of those that are elsewhere.
    """
    snapshot, run = case.run.snapshot, case.run
    known = {engine.pid for engine in run.others}
    engines = [] if snapshot is None else read_engines(snapshot)
    if snapshot is None or len(engines) != 1 or engines[0].worker.pid in known:
        return
    engine, motions = engines[0], read_motions(snapshot)
    given_up = awaits_requests(engine.waits, engine.frames)
    waits = engine.is_at_one_line and (engine.waits == "answer" or given_up)
    if not waits or motions.keys() != run.by_rank.keys():
        return
    came = {rank: _came_as_seen(motion) for rank, motion in motions.items()}
    idle = {Came.BACK, Came.NOT_TAKEN}.intersection(came.values())
    if not idle or any(one.op for one in motions.values()):
        return  # a collective may keep them
    at_it = tuple(rank for rank, one in came.items() if one is not Came.BACK)
    if given_up and not (at_it and all(motions[rank].condition == "still" for rank in at_it)):
        return
    yield Unanswered(
        pid=engine.worker.pid,
        name="",
        method=None,
        alive=True,
        seconds=snapshot.gap,
        workers=came,
        awaited=at_it or tuple(came),
        shares={rank: motions[rank].cpu for rank in at_it if motions[rank].condition == "moving"},
        stopped=frozenset(n for n, one in motions.items() if one.condition == "stopped"),
        given_up=given_up,
    )


def _came_as_seen(motion: Motion) -> Came:
    if motion.condition == "stopped":
        return Came.NOT_TAKEN
    return Came.BACK if motion.waits == "queue" else Came.INSIDE


def _recorded(case: Case) -> Iterator[Unanswered]:
    run = case.run
    for engine in engine_cores(run):
        if schedules_itself(engine):
            yield from _inside(case, engine)
            continue
        name, sent = engine.labels.get("engine"), engine.activities.get("enqueue")
        waits, rests = lasting(engine, "dequeue"), _rests_for(engine)
        if name is None or sent is None or sent.until_ns is None:
            continue
        if waits is not None:
            is_first = sent.since_ns > waits.activity.since_ns
            if is_first or waits.activity.detail == WORK:
                continue
        elif rests is None:
            continue
        workers = [rank for rank in run.ranks if rank.labels.get("engine") == name]
        numbers = {rank.rank for rank in workers}
        if not workers or numbers & waiting_in_calls(case):
            continue  # a call keeps the worker, or its peers
        if any(case.how_it_ended(rank) for rank in workers):
            continue
        came = {rank.rank: how_far(rank, sent) for rank in workers}
        one = 0 < sent.number <= len(workers)
        awaited = workers[sent.number - 1 : sent.number] if one else workers
        if waits is None:
            awaited = [rank for rank in workers if came[rank.rank] in (Came.INSIDE, Came.EARLIER)]
        shares = {rank.rank: share_of_core(case, rank.rank) for rank in awaited}
        if awaited:
            yield Unanswered(
                pid=engine.pid,
                name=name,
                method=sent,
                alive=engine.alive is True,
                seconds=rests or 0.0 if waits is None else waits.seconds,
                workers=came,
                awaited=tuple(rank.rank for rank in awaited),
                shares={rank: share for rank, share in shares.items() if share is not None},
                stopped=frozenset(rank.rank for rank in workers if rank.details.get("stopped")),
                given_up=waits is None,
            )


def _inside(case: Case, engine: Rank) -> Iterator[Unanswered]:
    """Yield what an engine that runs its worker itself has not come back from."""
    noted = [one for name in ("step", ASKED) if (one := lasting(engine, name))]
    noted = noted or [one for one in [turn_of(engine)] if one]
    if not noted or waiting_in_calls(case) or case.how_it_ended(engine):
        return
    newest = min(noted, key=lambda one: one.seconds)
    share = share_of_core(case, engine.rank)
    yield Unanswered(
        pid=engine.pid,
        name=engine.labels.get("engine", ""),
        method=newest.activity,
        alive=engine.alive is True,
        seconds=newest.seconds,
        workers={engine.rank: Came.ITSELF},
        awaited=(engine.rank,),
        shares={} if share is None else {engine.rank: share},
        stopped=frozenset({engine.rank} if engine.details.get("stopped") else ()),
    )


def engines_held(case: Case) -> Iterator[tuple[Rank, Noted]]:
    """Yield the engines that have not come back to their workers or their requests, and from what.

    All their workers wait for work. The engine waits for no answer of theirs, nor in a call of
    engines, and no server found it dead.
    """
    if any((_raised(one)[0] or "").startswith(_SEEN_DEAD) for one in case.run.others):
        return
    for engine in case.run.others:
        workers = [rank for rank in case.run.ranks if rank.labels.get("engine") == _label(engine)]
        noted = lasting(engine, ASKED) or turn_of(engine)
        if noted is None or not workers or not all(map(is_idle, workers)):
            continue
        waits = lasting(engine, "dequeue") or lasting(engine, PAUSED)
        is_known = engine.details.get("stopped") or case.how_it_ended(engine)
        if waits is None and not is_known and not any(_waits(engine, key) for key in engine.logs):
            yield engine, noted


def _rests_for(engine: Rank) -> float | None:
    """Return for how long an engine has waited for requests, and for nothing else in between."""
    rests, last = lasting(engine, INPUT), engine.activities.get("dequeue")
    if rests is None or last is None or last.until_ns is None or engine.last_seen_ns is None:
        return None
    return min(rests.seconds, max(0.0, (engine.last_seen_ns - last.until_ns) / 1e9))


_SEEN_DEAD = "EngineDeadError"
"""What a server raises that finds its engine dead."""
_SHORTLY_NS = 10_000_000_000


@dataclass(frozen=True)
class Apart:
    """A call of engines that some have posted, and wait in, and others have not.

    Attributes:
        comm: The group of the engines.
        call: The call.
        waiting: The engines that wait in it.
        absent: Those that posted fewer calls there.
        seconds: How long the last of the waiting ones has waited, up to its last heartbeat.
    """

    comm: Communicator
    call: Call
    waiting: tuple[Rank, ...]
    absent: tuple[Rank, ...]
    seconds: float


def engines_apart(case: Case) -> Iterator[Apart]:
    """Yield the calls in which engines wait for others, where no worker waits in a collective."""
    if not any("engine" in one.labels and one.logs for one in case.run.others):
        return
    if waiting_in_calls(case):
        return
    groups: dict[str, list[Rank]] = {}
    for process in case.run.others:
        if "engine" in process.labels:
            for key in process.logs:
                groups.setdefault(key, []).append(process)
    for key, members in groups.items():
        made = {one.pid: one.logs[key].calls for one in members}
        most = max(made.values())
        waiting = [one for one in members if made[one.pid] == most and _waits(one, key)]
        absent = [one for one in members if made[one.pid] < most]
        last = [one.logs[key].call(most) for one in waiting]
        if waiting and absent:
            since = max(call.time_ns or 0 for call in last)
            seen = max(one.last_seen_ns or 0 for one in waiting)
            comm = waiting[0].logs[key].communicator
            seconds = max(0.0, (seen - since) / 1e9)
            yield Apart(comm, last[0], tuple(waiting), tuple(absent), seconds)


def _waits(engine: Rank, key: str) -> bool:
    log = engine.logs[key]
    return log.calls >= log.first and log.call(log.calls).state is not State.COMPLETED


def engines_gone(run: Run) -> list[Rank]:
    """Return the engines that recorded no end, and that a worker of theirs has outlived.

    It still runs, or it ended in order and their server found them dead, as it does where the
    worker runs in the engine itself. Who kills a whole service leaves neither.
    """
    errors = [one.activities[RAISED].detail or "" for one in run.others if RAISED in one.activities]
    is_seen = any(error.startswith(_SEEN_DEAD) for error in errors)
    found = []
    for one in engine_cores(run):
        workers = [rank for rank in run.ranks if rank.labels.get("engine") == _label(one)]
        is_gone = one.alive is False and not (one.exited or one.details.get("ended_with"))
        alone = workers == [one]
        if is_gone and any(r.alive or (is_seen and (r.exited or alone)) for r in workers):
            found.append(one)
    return found


@dataclass(frozen=True)
class Fallen:
    """An engine that an exception ended, as its server found.

    Attributes:
        engine: The engine.
        worker: A worker of it that had raised an exception shortly before; None without one.
        server: The process that found it dead.
    """

    engine: Rank
    worker: Rank | None
    server: Rank


def engines_fallen(run: Run) -> list[Fallen]:
    """Return the engines that exceptions ended, in the order of these.

    A server that ends in order finds its engines gone as well, but none of them raised anything.
    """
    servers = [one for one in run.others if (_raised(one)[0] or "").startswith(_SEEN_DEAD)]
    found = []
    for engine in engine_cores(run):
        server = next((one for one in servers if raised_before(engine, one)), None)
        if server is not None:
            own = (rank for rank in run.ranks if rank.labels.get("engine") == _label(engine))
            worker = next((rank for rank in own if raised_before(rank, engine)), None)
            # One whose worker was killed raises an exception, too.
            if worker is not None or WORKER_DIED not in engine.activities:
                found.append(Fallen(engine, worker, server))
    return sorted(found, key=lambda one: _raised(one.worker or one.engine)[1])


def raised_before(one: Rank, other: Rank) -> bool:
    """Return whether an exception of a process comes shortly before that of another one.

    vLLM's worker answers with its error, for which the engine raises another one, and its server a
    third.
    """
    first, second = one.activities.get(RAISED), other.activities.get(RAISED)
    if first is None or second is None or one is other:
        return False
    return 0 <= second.since_ns - first.since_ns < _SHORTLY_NS


def _raised(process: Rank) -> tuple[str | None, int]:
    noted = process.activities.get(RAISED)
    return (None, 0) if noted is None else (noted.detail, noted.since_ns)


def _label(engine: Rank) -> str:
    """Return the label of an engine; that of no worker for another process."""
    return engine.labels.get("engine", "?")
