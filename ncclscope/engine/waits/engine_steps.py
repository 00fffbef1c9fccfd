"""The engine step of each rank, and the workers and engines that wait outside of any collective.

A worker without a request waits in its queue. Its engine, which should have sent one, waits for
the other engines or for its workers' answers. These waits are not collectives, but they explain
why a rank does not join one.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from ncclscope.engine import services
from ncclscope.engine.processes.judgement import HANG_SECONDS
from ncclscope.engine.processes.motion import read_engines
from ncclscope.engine.records import Records, silent_seconds
from ncclscope.engine.sequences.habit import in_step
from ncclscope.engine.sequences.step_rhythm import step_of
from ncclscope.engine.waits.noted import Noted, lasting, raised
from ncclscope.model import Activity, Call, Finding, Rank, Run, State, Step
from ncclscope.model.activities import ASKED, INPUT, PAUSED, WORK, WORKER_DIED
from ncclscope.model.log import CallLog
from ncclscope.untrusted import printable
from ncclscope.wording.ends import Ends
from ncclscope.wording.names import ranks_text, site_text
from ncclscope.wording.notes import Came, Note, idle_after, method_text, step_text
from ncclscope.wording.waits import Place

_SHOWN = 6
"""Different steps that are listed one by one."""
_COMPARED = 64
"""Ranks of one step whose calls are read to find a common pending call."""
_STEPS_AHEAD = 3
"""Steps that another replica may be ahead, when searching for a counterpart."""
_CALLS_OF_STEP = 4096
"""Calls on one communicator that a step may have, when searching for its first one."""
_UNANSWERED_NS = 2_000_000_000
"""A worker that waits longer than this after a message was sent has not received it."""
_HELD_SECONDS = 2.0
"""An engine that goes on is in one step for less."""
_LONGEST = 160
"""Characters of an exception that are shown."""
_PLACES = ("dp", "pp", "tp")


def describe_steps(run: Run, cause: Finding) -> Iterator[str]:
    """Yield evidence lines on engine steps for a cause; none where no steps were recorded.

    Args:
        run: The run.
        cause: The cause. Where its first rank has no steps, the other ranks are not read, since
            a rank without steps has to be read completely.
    """
    first = min((*cause.diverging_ranks, *cause.candidate_ranks), default=-1)
    singled = run.by_rank.get(first, run.ranks[0] if run.ranks else None)
    if singled is None or singled.last_step() is None:
        return
    engines = _engines(run)
    groups: dict[str, list[Rank]] = {}
    for rank in run.ranks:
        groups.setdefault(_doing(rank, engines.get(rank.labels.get("engine", ""))), []).append(rank)
    shown = sorted(groups.items(), key=lambda item: item[1][0].rank)
    if len(shown) > _SHOWN:  # replicas that share nothing count their steps by themselves
        shown = [item for item in shown if singled in item[1]]
    alone = len(groups) == 1
    yield "; ".join(
        f"{ranks_text(rank.rank for rank in members)}{'' if alone else _place(run, members)} "
        f"{text.format(since=_longest(members))}{'' if alone else _call(members)}"
        for text, members in shown
    )
    yield from _step_of_divergence(run, cause, singled)
    for engine in engines.values() if cause.kind not in services.KINDS else ():
        link = link_of(run, engine)
        if link is not None:
            yield link.text


def counterpart(rank: Rank, log: CallLog, seq: int, other: Rank, theirs: CallLog) -> int | None:
    """Return the number of the call of another replica at the same point of the program.

    Where steps are recorded, count calls from the beginning of the same step: a dummy batch has
    fewer calls than a real one, so call numbers of two replicas may differ.

    Args:
        rank: The rank that made the call.
        log: Its log of the communicator.
        seq: The call's number there.
        other: A rank of another replica.
        theirs: Its log of the communicator with the same role there.

    Returns:
        A call number, beyond the other's last call where it made no such call; None where the
        replicas are at different points, or that is unknown.
    """
    step = rank.last_step()
    steps = other.last_steps(_STEPS_AHEAD + 1)
    if step is None and not steps:
        return seq if in_step(log, theirs, seq) else None
    places = [place for place, one in enumerate(steps) if step and one.number == step.number]
    if step is None or not places:
        return None
    ours, begins = _begin_of_step(log, step), _begin_of_step(theirs, steps[places[-1]])
    if ours is None or begins is None or seq < ours:
        return None
    found = begins + seq - ours
    if places[-1] + 1 < len(steps):
        ends = _begin_of_step(theirs, steps[places[-1] + 1])
        if ends is None or found >= ends:
            return theirs.calls + 1  # it has finished the step without such a call
    return found


def _begin_of_step(log: CallLog, step: Step) -> int | None:
    """Return the number of a step's first call, made or not; None where it is overwritten."""
    start = max(log.first, log.calls + 1 - _CALLS_OF_STEP)
    before = bisect_left(log.positions(start, log.calls + 1), step.position)
    return start + before if before or start == 1 else None


def _engines(run: Run) -> dict[str, Rank]:
    """Return the engine cores, by the number that their workers have recorded."""
    return {
        process.labels["engine"]: process for process in run.others if "engine" in process.labels
    }


def _doing(rank: Rank, engine: Rank | None) -> str:
    """Return what ranks of one group do, with a placeholder ``{since}`` for its duration."""
    step = step_text(rank.last_step())
    at = _lasting(rank, "step")
    if at is not None and at.detail == "sample_tokens":
        return f"in sample_tokens of {step}"
    if is_idle(rank):
        sent = None if engine is None else engine.activities.get("enqueue")
        unseen = sent if sent is not None and _unseen(rank, sent) else None
        return idle_after(rank.last_step(), unseen)
    return f"in {step}"


def is_idle(rank: Rank) -> bool:
    """Return whether a worker waits, outside of any step, for a request from its engine.

    Or it is an engine, and waits for requests itself.
    """
    if is_in_step(rank):
        return False
    waits = _lasting(rank, "dequeue")
    return awaits_input(rank) if waits is None else waits.detail == WORK


def is_in_step(worker: Rank) -> bool:
    """Return whether a worker is in a step of its model, or in a call of its engine."""
    return _lasting(worker, "step") is not None


def is_between_steps(rank: Rank) -> bool:
    """Return whether a rank is in no step: idle, or an engine that is at what it does itself."""
    return is_idle(rank) or (schedules_itself(rank) and not is_in_step(rank))


def awaits_input(engine: Rank) -> bool:
    """Return whether an engine waits for requests, and is not at what a client asked of it."""
    return _lasting(engine, INPUT) is not None and _lasting(engine, ASKED) is None


def schedules_itself(rank: Rank) -> bool:
    """Return whether a rank is an engine that runs its only worker itself."""
    return rank.rank >= 0 and INPUT in rank.activities


def engine_cores(run: Run) -> list[Rank]:
    """Return the engine cores: processes of their own, and ranks that are engines themselves."""
    apart = [process for process in run.others if "engine" in process.labels]
    return [*apart, *filter(schedules_itself, run.ranks)]


def how_far(worker: Rank, sent: Activity) -> Came:
    """Return how far a worker has come with what its engine sent last."""
    takes, answers = worker.activities.get("dequeue"), worker.activities.get("enqueue")
    if answers is not None and answers.since_ns >= sent.since_ns:
        return Came.ANSWERED
    if takes is None or takes.detail != WORK:
        return Came.INSIDE
    if takes.until_ns is not None:
        return Came.INSIDE if takes.until_ns >= sent.since_ns else Came.EARLIER
    return Came.BACK if takes.since_ns >= sent.since_ns else Came.NOT_TAKEN


def inside(run: Run, worker: Rank) -> Noted | None:
    """Return the call of its engine that a worker is in, and has posted no call in; else None."""
    engine, taken = (
        _engines(run).get(worker.labels.get("engine", "")),
        worker.activities.get("dequeue"),
    )
    sent = None if engine is None else engine.activities.get("enqueue")
    if sent is None or taken is None or taken.until_ns is None or worker.last_seen_ns is None:
        return None
    last = worker.last_call(transfers=True)
    if how_far(worker, sent) is not Came.INSIDE or (last and (last.time_ns or 0) > taken.until_ns):
        return None
    return Noted(max(0.0, (worker.last_seen_ns - taken.until_ns) / 1e9), sent)


def is_behind(run: Run, worker: Rank, other: Rank, call: Call) -> bool:
    """Return whether a worker has not begun that in which another one made a call.

    It is still at an earlier call of its engine, or at an earlier step: an engine begins a step on
    all of its workers.
    """
    own, theirs = worker.last_step(), step_of(other, call)
    is_same = worker.labels.get("engine", "?") == other.labels.get("engine")
    if is_same and own is not None and theirs is not None and own.number < theirs.number:
        return True
    return _is_at_earlier_call(run, worker) and not _is_at_earlier_call(run, other)


def _is_at_earlier_call(run: Run, worker: Rank) -> bool:
    engine = _engines(run).get(worker.labels.get("engine", ""))
    sent = None if engine is None else engine.activities.get("enqueue")
    return sent is not None and how_far(worker, sent) is Came.EARLIER


def _unseen(rank: Rank, sent: Activity) -> bool:
    """Return whether an idle worker still waits for a message that has been sent to it."""
    seen, until = rank.last_seen_ns, sent.until_ns
    if seen is None or until is None:
        return False
    return rank.activities["dequeue"].since_ns < until and seen - until > _UNANSWERED_NS


def _lasting(rank: Rank, name: str) -> Activity | None:
    found = rank.activities.get(name)
    return found if found is not None and found.until_ns is None else None


def _longest(members: Sequence[Rank]) -> str:
    """Return the text of the longest wait up to the last heartbeat, such as `` for 12 s``."""
    waited = [
        (rank.last_seen_ns - idle.since_ns) // 1_000_000_000
        for rank in members
        if (idle := _lasting(rank, "dequeue")) is not None and rank.last_seen_ns is not None
    ]
    return f" for {max(waited)} s" if waited and max(waited) > 0 else ""


def _place(run: Run, members: Sequence[Rank]) -> str:
    """Return the parallel coordinates that only these ranks share, such as `` (DP1)``."""
    parts = []
    for name in _PLACES:
        here = {rank.labels.get(name) for rank in members}
        if len(here) == 1 and len({rank.labels.get(name) for rank in run.ranks}) > 1:
            parts.append(f"{name.upper()}{here.pop()}")
    return f" ({' '.join(parts)})" if parts else ""


def _call(members: Sequence[Rank]) -> str:
    """Return the pending call of the ranks as text, if it is the same for all of them."""
    if len(members) > _COMPARED:
        return ""
    calls = [rank.last_call() for rank in members]
    first = calls[0]
    if first is None or any(
        call is None
        or call.state is State.COMPLETED
        or (call.comm, call.seq, call.op) != (first.comm, first.seq, first.op)
        for call in calls
    ):
        return ""
    label = members[0].logs[first.comm].communicator.label or first.comm[:12]
    return Note.IN_CALL.of(first.seq, label, f"{first.op}{site_text(first)}")


def _step_of_divergence(run: Run, cause: Finding, singled: Rank) -> Iterator[str]:
    """Yield the step of the diverging call, where ranks have since begun other steps."""
    if cause.comm is None or cause.seq is None or run.window:
        return
    members = run.members(cause.comm.key)
    named = cause.diverging_ranks or (singled.rank,)
    peer = next((rank for rank in members if rank.rank not in named), None)
    if peer is None:
        return
    found: list[tuple[Rank, Step]] = []
    for rank in (singled, peer):
        log = rank.logs.get(cause.comm.key)
        if log is not None and log.first <= cause.seq <= log.calls:
            step = step_of(rank, log.call(cause.seq))
            if step is not None and step != rank.last_step():
                found.append((rank, step))
    if found:
        steps = [f"to {step_text(step)} on {ranks_text([one.rank])}" for one, step in found]
        yield Note.BELONGS.of(cause.seq, cause.comm, ", ".join(steps))


def was_killed(records: Records) -> bool:
    """Return whether all ranks are gone, and none is known to have ended by itself or failed."""
    return all(
        rank.alive is False
        and not rank.exited
        and not rank.details.get("ended_with")
        and raised(records, rank) is None
        for rank in records.run.ranks
    )


def dead_workers(records: Records) -> Iterator[tuple[Rank, str]]:
    """Yield the workers that an engine saw end unexpectedly, each with what the engine noted.

    None where all ranks are gone and none ended by itself or failed: the job was killed as a whole.
    Nor workers that exited in order while their engine started: it has failed, and ended them.
    """
    run = records.run
    if not any(WORKER_DIED in engine.activities for engine in run.others) or was_killed(records):
        return
    for name, engine in _engines(run).items():
        died = engine.activities.get(WORKER_DIED)
        workers = [rank for rank in run.ranks if rank.labels.get("engine") == name]
        if died is None or not 0 < died.number <= len(workers):
            continue
        worker = workers[died.number - 1]
        if INPUT in engine.activities or not worker.ended_well:
            detail = printable(died.detail or "")
            yield worker, Ends.SAW_WORKER.of(name, engine.pid, detail)


@dataclass(frozen=True)
class Link:
    """What an engine waits for or is at, while it sends its workers nothing.

    Attributes:
        engine: The engine core.
        text: The same in words.
        workers: Workers whose answers it waits for.
        engines: Engines for which it waits in a call of all engines.
    """

    engine: Rank
    text: str
    workers: tuple[Rank, ...] = ()
    engines: tuple[Rank, ...] = ()


def link_of(run: Run, engine: Rank) -> Link | None:
    """Return what an engine waits for or is at; None where it waits for requests, or is unknown."""
    name, call = engine.labels.get("engine", "0"), engine.last_call()
    if engine.details.get("stopped"):
        return Link(engine, Note.ENGINE_STOPPED.of(name, engine))
    if (seconds := silent_seconds(run, engine)) >= HANG_SECONDS:
        return Link(engine, Note.ENGINE_SILENT.of(name, engine, seconds=seconds))
    if error := engine.details.get("ended_with"):
        how = Place.ENDED_WITH.of(printable(str(error))[:_LONGEST])
        return Link(engine, Note.ENGINE_ENDED.of(name, engine, how))
    if call is not None and call.state is not State.COMPLETED:
        comm = engine.logs[call.comm].communicator
        others = _engines(run).values()
        behind = tuple(one for one in others if _calls(one, call.comm) < call.seq)
        return Link(engine, Note.ENGINE_IN_CALL.of(name, engine, call, comm), engines=behind)
    if _lasting(engine, "dequeue") is not None:
        workers = [rank for rank in run.ranks if rank.labels.get("engine") == name]
        sent = engine.activities.get("enqueue")
        lacking = [one for one in workers if sent and how_far(one, sent) is not Came.ANSWERED]
        ranks = [one.rank for one in lacking or workers]
        said = Note.ENGINE_WAITS.of(
            name,
            engine,
            _longest([engine]),
            ranks or Note.WORKERS,
            workers=ranks,
            call=method_text(sent),
        )
        return Link(engine, said, tuple(lacking))
    if noted := lasting(engine, PAUSED):
        return Link(engine, Note.ENGINE_PAUSED.of(name, engine, seconds=noted.seconds))
    noted = lasting(engine, ASKED) or turn_of(engine)
    if noted is None or noted.seconds < _HELD_SECONDS:
        return None
    seen = [] if run.snapshot is None else read_engines(run.snapshot)
    at = [one.text for one in seen if one.worker.pid == engine.pid and one.frames]
    return Link(
        engine,
        Note.ENGINE_IS_AT.of(
            name,
            engine,
            Note.OWN_STEP if noted.name == "step" else method_text(noted.activity),
            seconds=noted.seconds,
            at=Note.IS_AT.of(at[0]) if at else "",
        ),
    )


def _calls(process: Rank, key: str) -> int:
    return process.logs[key].calls if key in process.logs else 0


def links_behind(run: Run, worker: Rank) -> list[Link]:
    """Return what keeps a worker from work: its engine, and those that this one waits for.

    An engine that runs its worker itself may keep it, too. Empty for one that is in a step.
    """
    first = worker if schedules_itself(worker) else None
    if is_idle(worker):
        first = _engines(run).get(worker.labels.get("engine", ""))
    found: dict[int, Link] = {}
    left = [] if first is None or is_in_step(worker) else [first]
    while left:
        link = link_of(run, left.pop(0))
        if link is not None and link.engine.pid not in found:
            found[link.engine.pid] = link
            left += link.engines
    return list(found.values())


def feeding(run: Run, worker: Rank) -> frozenset[int]:
    """Return the ranks that an idle worker waits for: its engine waits for them, or their engines.

    Empty where that engine waits for nobody: whatever keeps it, keeps this worker.
    """
    links = links_behind(run, worker)[:1]
    labels = {one.labels["engine"] for link in links for one in link.engines}
    theirs = {rank.rank for rank in run.ranks if rank.labels.get("engine") in labels}
    found = theirs.union(one.rank for link in links for one in link.workers)
    return frozenset() if worker.rank in found else frozenset(found)


def held_by_engines(run: Run, ranks: Sequence[Rank]) -> list[str]:
    """Return what keeps some ranks from work, in words, where no other rank does."""
    links = (links_behind(run, rank) for rank in ranks if not feeding(run, rank))
    return [*dict.fromkeys(one.text for behind in links for one in behind)]


def turn_of(engine: Rank) -> Noted | None:
    """Return the step of an engine since it last took requests in; None while it takes them in.

    It lasts since the newest answer, or the newest message to its workers, if these came later.
    """
    taken, seen = engine.activities.get(INPUT), engine.last_seen_ns
    if taken is None or taken.until_ns is None or seen is None:
        return None
    acts = (engine.activities.get(name) for name in (INPUT, "dequeue", "enqueue"))
    since = max(one.until_ns or 0 for one in acts if one is not None)
    step = replace(taken, name="step", detail="step", since_ns=since, until_ns=None)
    return Noted(max(0.0, (seen - since) / 1e9), step)
