"""How a job failed of which no rank is recorded to wait for another, in sentences."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from textwrap import shorten

from ncclscope.engine.case import Case
from ncclscope.engine.processes.motion import read_engines, read_servers
from ncclscope.engine.services.answers import raised_before
from ncclscope.engine.services.requests import (
    as_process,
    is_held,
    place_of,
    unresponsive,
)
from ncclscope.engine.waits.engine_steps import was_killed
from ncclscope.engine.waits.noted import raised
from ncclscope.engine.waits.waits import failed, lost_store, timed_out
from ncclscope.model import Rank, Run, State
from ncclscope.model.activities import RAISED
from ncclscope.model.metadata import ENDS, LAUNCHER
from ncclscope.model.snapshot import Snapshot
from ncclscope.model.text import status_text
from ncclscope.untrusted import printable
from ncclscope.wording.ends import Failure
from ncclscope.wording.names import by_words, process_text, ranks_text, sentence

_SHOWN = 3
_LONGEST = 240
"""Characters of an exception's text that are shown."""


def failure_of(case: Case) -> str:
    """Return how a part of the job failed, though no rank is recorded to wait for it.

    An engine fails if a worker of it is gone, or if it is gone and its workers are not.
    """
    run = case.run
    failing = [one for one in run.ranks if failed(one) or timed_out(one) or lost_store(one)]
    # An engine fails, too, if all of the job is killed.
    others = run.others if run.others and not was_killed(case) else ()
    unheard = unresponsive(case)
    engines = [one for one in others if failed(one) and ENDS not in one.details]
    behind = [engine for engine in others if _raised_last(case, engine)]
    first = [rank for rank in run.ranks if any(_raised_before(case, rank, one) for one in behind)]
    answered = {rank.rank for rank in first}
    raising = [
        rank for rank in run.ranks if rank.rank in answered or _raised_last(case, rank)
    ] + behind
    lost = [engine for engine in others if _is_outlived(engine, run)]
    if not (failing or engines or raising or lost or unheard):
        return _failure_of_program(run)
    known = any(rank.exited for rank in run.ranks)
    gone = [rank.rank for rank in run.ranks if rank.alive is False and not rank.exited]
    words = [(f"ended with {_error(rank)}", rank) for rank in (*engines, *failing)]
    for rank in raising:
        error = raised(case, rank)
        then = any(_raised_before(case, one, rank) for one in first)
        failure = Failure.THEN_RAISED if then else Failure.RAISED
        words.append((failure.of(error[0] if error else ""), rank))
    for how in dict.fromkeys(one.how for one in unheard):
        same = [one for one in unheard if one.how is how]
        seconds, place = max(one.seconds for one in same), place_of(run, same[0].process)
        words += [(how.of(same, seconds, place), one.process) for one in same]
    said = by_words(words)
    if lost:
        said[str(Failure.OUTLIVED)] = lost
    parts = [f"{_names(ranks)} {text}." for text, ranks in [*said.items()][:_SHOWN]]
    if known and gone:
        parts.append(Failure.NO_EXIT.of(gone))
    parts.append(str(Failure.NO_WAIT))
    return " ".join(filter(None, parts))


def held_engines(snapshot: Snapshot, *, is_idle: bool) -> str:
    """Return which engines and servers give workers no requests, and why; empty without any.

    Args:
        snapshot: The process snapshot.
        is_idle: Whether all workers wait for requests. If not, an engine may wait for an answer.
    """
    parts = []
    servers = read_servers(snapshot)
    for one in (*read_engines(snapshot), *servers):
        engine = Failure.ENGINE.of(one.worker.pid)
        name = process_text(as_process(one.worker)) if one in servers else engine
        if one.condition == "stopped":
            parts.append(f"{name} {Failure.STOPPED.of([one])}")
        elif one in servers and not is_held(one):
            continue
        elif is_idle and one.frames and one.is_at_one_line and one.waits != "queue":
            where = f"{'in' if one.op or one.work else 'at'} {one.text}"
            parts.append(Failure.HELD.of(name, where, snapshot.gap))
    return f"{sentence('; '.join(parts))}." if parts else ""


def _failure_of_program(run: Run) -> str:
    """Return how the program under ``ncclscope run`` failed, if none of its ranks is known to."""
    statuses = {
        status
        for other in run.others
        if other.details.get("launcher") == LAUNCHER
        for status in other.details.get(ENDS, {}).values()
    }
    if not statuses or any(rank.alive for rank in run.ranks):
        return ""
    ends = " and ".join(sorted({*map(status_text, statuses)}))
    return Failure.PROGRAM.of(ends)


def _is_outlived(engine: Rank, run: Run) -> bool:
    """Return whether an engine has left no exit, and a worker of it has, or still runs."""
    if engine.alive is not False or engine.exited or failed(engine):
        return False
    label = engine.labels.get("engine")
    workers = [rank for rank in run.ranks if label and rank.labels.get("engine") == label]
    return any(rank.exited or rank.alive for rank in workers)


def _raised_last(case: Case, rank: Rank) -> bool:
    """Return whether an exception is the last that is known of a process that is gone."""
    if rank.alive is not False or rank.exited or RAISED not in rank.activities:
        return False
    last = rank.last_call(transfers=True)
    if rank.rank >= 0 and (last is None or last.state is State.COMPLETED):
        return False  # it was handled, and the rank had no call to make
    return raised(case, rank) is not None


def _raised_before(case: Case, rank: Rank, engine: Rank) -> bool:
    """Return whether a worker's exception comes shortly before that of its engine."""
    if rank.labels.get("engine") != engine.labels.get("engine"):
        return False
    return raised_before(rank, engine) and raised(case, rank) is not None


def _names(processes: Sequence[Rank]) -> str:
    """Return ranks by their numbers, and engines by their labels, to begin a sentence."""
    engines = [process for process in processes if process.rank < 0]
    names = [*map(process_text, engines)]
    ranks = [process.rank for process in processes if process.rank >= 0]
    return sentence(" and ".join([*([ranks_text(ranks)] if ranks else []), *names]))


def _error(rank: Rank) -> str:
    text = shorten(str(rank.details["ended_with"]), _LONGEST, placeholder=" ...")
    return printable(text).rstrip(": .")


def failures_of(ranks: Iterable[Rank]) -> str:
    """Return which processes ended with which exceptions, as sentences; empty if none did."""
    errors: dict[str, list[Rank]] = {}
    for rank in ranks:
        if rank.details.get("ended_with"):
            errors.setdefault(_error(rank), []).append(rank)
    return " ".join(f"{_names(own)} ended with {error}." for error, own in errors.items())
