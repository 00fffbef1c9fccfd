"""Calls of an engine on its workers that are not answered.

An engine sends a method to all of its workers, and waits for the answer of one of them, or of all.
A worker that takes the message leaves its wait for work, answers, and waits for work again. So the
newest of these activities show how far it has come.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from ncclscope.engine.case import Case
from ncclscope.engine.processes.late import share_of_core
from ncclscope.engine.waits.noted import lasting
from ncclscope.model import Activity, Rank
from ncclscope.wording.notes import Came

WORK = "work"
"""Detail of a ``dequeue`` for the next message, whatever that is."""


@dataclass(frozen=True)
class Unanswered:
    """A call that an engine waits for the answer of.

    Attributes:
        engine: The engine core.
        name: Its label.
        sent: The sending: its detail is the method.
        seconds: How long the engine has waited, up to its last heartbeat.
        workers: Its workers, by rank, and how far each has come.
        awaited: Those whose answers it waits for.
        shares: Of those that are inside and at work: the share of a core that each uses.
    """

    engine: Rank
    name: str
    sent: Activity
    seconds: float
    workers: dict[int, Came]
    awaited: tuple[int, ...]
    shares: dict[int, float]

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
    def is_late(self) -> bool:
        """Whether all workers that have not answered are at work."""
        return self.shares.keys() >= {*self.lacking}


def unanswered(case: Case) -> Iterator[Unanswered]:
    """Yield the calls that engines wait for the answers of, where no worker is in a collective.

    Args:
        case: The case. Waits of any length are yielded.
    """
    run = case.run
    for engine in run.others:
        name, waits = engine.labels.get("engine"), lasting(engine, "dequeue")
        sent = engine.activities.get("enqueue")
        if name is None or waits is None or waits.activity.detail == WORK or sent is None:
            continue
        if sent.until_ns is None or sent.since_ns > waits.activity.since_ns:
            continue
        workers = [rank for rank in run.ranks if rank.labels.get("engine") == name]
        numbers = {rank.rank for rank in workers}
        if not workers or numbers & case.waits.pending_calls.keys():
            continue  # a collective keeps the worker, or its peers
        if any(case.how_it_ended(rank) for rank in workers):
            continue
        one = 0 < sent.number <= len(workers)
        awaited = workers[sent.number - 1 : sent.number] if one else workers
        shares = {rank.rank: share_of_core(case, rank.rank) for rank in awaited}
        yield Unanswered(
            engine=engine,
            name=name,
            sent=sent,
            seconds=waits.seconds,
            workers={rank.rank: _came(rank, sent) for rank in workers},
            awaited=tuple(rank.rank for rank in awaited),
            shares={rank: share for rank, share in shares.items() if share is not None},
        )


def _came(worker: Rank, sent: Activity) -> Came:
    takes, answers = worker.activities.get("dequeue"), worker.activities.get("enqueue")
    if answers is not None and answers.since_ns >= sent.since_ns:
        return Came.ANSWERED
    if takes is None or takes.detail != WORK or takes.until_ns is not None:
        return Came.INSIDE
    return Came.BACK if takes.since_ns >= sent.since_ns else Came.NOT_TAKEN
