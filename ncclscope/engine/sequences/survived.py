"""Differences that the job survived: the search for a cause begins after them.

Where all members of a communicator have completed calls after a difference, the difference did not
cause a hang. Either the record of one rank has a hole there, or members may legally differ there.
These calls are known to have completed:

- a call that the backend or the program saw complete, and all calls before it: a communicator
  runs its calls one after the other;
- a call that the device has counted as finished;
- on NCCL, where hosts only enqueue: a call that is followed by more launches than a stream's
  queue holds, or by several engine steps, each of which needs the results of the one before.

A few hundred later calls prove nothing: the queue holds a thousand.

After that, the members are compared again. A rank whose record has holes numbers its calls
differently from its peers: its calls get the numbers of equal calls of its peers, and calls of an
operation that it never recorded are excluded from the comparison.

Where no numbers are shifted, the completed calls after a difference are searched for further ones,
each of which is a mistake of its own.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from dataclasses import fields as dataclass_fields

import numpy as np

from ncclscope.engine.sequences.align import Divergence
from ncclscope.engine.sequences.groups import part_outside_groups
from ncclscope.engine.waits.order import AHEAD, STEPS
from ncclscope.engine.waits.waits import first_pending
from ncclscope.model import Call, Communicator, Rank, Run
from ncclscope.model.log import CallLog, newest_of
from ncclscope.model.memory import ListLog, Tail
from ncclscope.model.windows import best_shift
from ncclscope.wording.notes import Lacks

WINDOW = 4096
"""Calls at the end of a log, and after a difference, that are compared again."""
FARTHEST = 1 << 16
"""Newest calls that are searched to count the launches of graphs among them."""
ALIKE = 0.8
"""Share of the calls that must agree for two logs to be numbered alike by their contents."""
SEARCHES = 32
"""Searches for further differences on one communicator, each of which bisects all logs."""


@dataclass(frozen=True, slots=True)
class AssumedCall(Call):
    """A call that a rank's record lacks and its peers posted; never shown as recorded."""


@dataclass(frozen=True)
class Survived:
    """A difference after which all members completed calls.

    Attributes:
        divergence: The difference.
        completed: Number of later calls that all members are known to have completed at least.
        logs: The members' calls from the last of those on, numbered alike; empty where they could
            not be numbered, so that nothing after the difference is compared.
        holes: Ranks whose record lacks calls, with the operations that it lacks entirely.
    """

    divergence: Divergence
    completed: int
    logs: Mapping[int, CallLog]
    holes: Mapping[int, frozenset[str]]


def find_survived(run: Run) -> list[Survived]:
    """Return the differences that the job survived, at most one for each communicator."""
    if run.window:
        return []  # call numbers of a window do not count all calls
    found = []
    for key, comm in run.communicators.items():
        members = {rank.rank: rank for rank in run.members(key)}
        if comm.creates_groups or len(members) < 2:
            continue
        logs = {number: rank.logs[key] for number, rank in members.items()}
        if not all(log.anchored for log in logs.values()):
            continue
        divergence, _ = part_outside_groups(comm, logs)
        if divergence is None or len(divergence.groups) < 2:
            continue
        done: dict[int, int] = {}
        for number, log in logs.items():
            done[number] = _last_completed(members[number], log, divergence.seq)
            if done[number] <= divergence.seq:
                break  # skip the other logs: each may be on another node
        else:
            completed = min(done.values()) - divergence.seq
            found.append(_compare_again(comm, logs, divergence, done, completed))
    return found


def find_further(survived: Survived, logs: Mapping[int, CallLog]) -> Iterator[Divergence]:
    """Yield later differences in calls that all members have completed.

    A rank may make the same mistake in each step: such a repetition is not yielded again.

    Args:
        survived: The first difference on the communicator.
        logs: The members' calls as recorded, by global rank.
    """
    if survived.holes or not survived.logs:
        return  # the numbers are not those of the same calls
    divergence = survived.divergence
    last = divergence.seq + survived.completed
    known = {_mistake(divergence, logs)}
    for _ in range(SEARCHES):
        start = divergence.seq + 1
        tails: dict[int, CallLog] = {number: Tail(log, start) for number, log in logs.items()}
        found, _swaps = part_outside_groups(divergence.comm, tails)
        if found is None or len(found.groups) < 2 or found.seq > last:
            return
        # In a tail, its first call is inexact: the calls before it, which agree, are cut off.
        is_kept = all(log.first <= start for log in logs.values())
        divergence = replace(found, exact=found.exact or is_kept)
        mistake = _mistake(divergence, logs)
        if mistake not in known:
            known.add(mistake)
            yield divergence


def _mistake(divergence: Divergence, logs: Mapping[int, CallLog]) -> tuple[object, ...]:
    """Return what repeats where a line of the program is wrong; sizes change from step to step."""
    calls = [logs[group[0]].call(divergence.seq) for group in divergence.groups]
    sides = [(call.op, call.dtype, call.redop, call.root, call.site) for call in calls]
    return divergence.groups, *sides


def after_survived(run: Run, survived: Sequence[Survived]) -> Run:
    """Return a run in which each rank's log begins after the differences that were survived."""
    ranks = []
    for rank in run.ranks:
        logs, device, unseen = dict(rank.logs), dict(rank.device), []
        for each in survived:
            key = each.divergence.comm.key
            if key not in logs:
                continue
            own = each.logs.get(rank.rank)
            if own is None:
                del logs[key]
                device.pop(key, None)
                continue
            if own.calls != logs[key].calls:
                device.pop(key, None)  # the device counts by the numbers of the rank's own record
            logs[key] = own
            if rank.rank in each.holes:
                has_more = own.calls < rank.logs[key].calls
                unseen += _holes(each, each.holes[rank.rank], has_more=has_more)
        details = rank.details
        if unseen:
            before = details.get("unseen") or []
            if isinstance(before, str):
                before = [{"kind": "other", "text": before, "comms": []}]
            details = {**details, "unseen": [*before, *unseen]}
        ranks.append(replace(rank, logs=logs, device=device, details=details))
    return replace(run, ranks=tuple(ranks))


def _holes(survived: Survived, ops: frozenset[str], *, has_more: bool) -> list[dict[str, object]]:
    """Return the calls that a rank's record lacks, in the form of the ``unseen`` detail.

    Args:
        survived: The difference.
        ops: Operations that the record lacks entirely.
        has_more: Whether the record has a call more than others there. A call that was refused
            with an exception, before it was sent, is such a call.
    """
    comm = survived.divergence.comm
    name, hole = comm.label or comm.key[:12], {"kind": "hole", "comms": [comm.key]}
    if not ops:
        code = Lacks.ALONE if has_more else Lacks.CALL
        return [{**hole, "text": code.of(survived.divergence.seq, name)}]
    return [{**hole, "text": Lacks.OP.of(op, name), "op": op} for op in sorted(ops)]


def _last_completed(rank: Rank, log: CallLog, seq: int) -> int:
    """Return the last call that a rank is known to have completed; 0 for none."""
    if log.calls <= seq:
        return 0
    device = rank.device.get(log.communicator.key)
    known = 0 if device is None or device.finished is None else device.finished
    pending, reported = first_pending(log)
    if reported:
        known = max(known, log.calls if pending is None else pending.seq - 1)
    return max(known, _behind_launches(rank, log), _before_steps(rank, log))


def _behind_launches(rank: Rank, log: CallLog) -> int:
    """Return the last call that is followed by more launches than a stream's queue holds."""
    if log.communicator.backend == "gloo" or log.calls - log.first < AHEAD:
        return 0
    if not rank.graphs:
        return log.calls - AHEAD
    launches: set[object] = set()
    lowest = max(log.first, log.calls - FARTHEST)
    for stop in range(log.calls + 1, lowest, -WINDOW):
        for call in reversed(log.span(max(lowest, stop - WINDOW), stop)):
            if len(launches) > AHEAD:
                return call.seq
            if not call.captured:
                replay = call.replay
                launches.add(call.seq if replay is None else (call.graph, replay.number, ""))
    return 0


def _before_steps(rank: Rank, log: CallLog) -> int:
    """Return the last call before the newest steps, each of which needs the one before it."""
    steps = newest_of(rank.steps, STEPS)
    if len(steps) < STEPS or log.communicator.backend == "gloo":
        return 0
    start = max(log.first, log.calls - WINDOW)
    before = sum(at < steps[0].position for at in log.positions(start, log.calls + 1))
    return start + before - 1 if before else 0


def _compare_again(
    comm: Communicator,
    logs: Mapping[int, CallLog],
    divergence: Divergence,
    done: Mapping[int, int],
    completed: int,
) -> Survived:
    """Number the members' last calls alike, and drop the calls that all have completed."""
    reference = max(divergence.groups[0], key=lambda number: done[number])
    peer = logs[reference]
    numbered: dict[int, CallLog] = {}
    holes: dict[int, frozenset[str]] = {}
    least = done[reference]
    for number, log in logs.items():
        found = _numbered_as(log, peer, divergence.seq)
        if found is None:
            return Survived(divergence, completed, {}, {})
        numbered[number], lost = found
        if numbered[number] is not log:
            holes[number] = lost
        last = done[number] if numbered[number] is log else _renumbered(found[0], log, done[number])
        least = min(least, last)
    # The last completed call is kept, so that later ones are known to be compared with it.
    for start in (least, least + 1):
        tails: dict[int, CallLog] = {n: Tail(log, start) for n, log in numbered.items()}
        found_again, _ = part_outside_groups(comm, tails)
        if found_again is None or found_again.seq > least:
            break
    return Survived(divergence, completed, tails, holes)


def _renumbered(numbered: CallLog, log: CallLog, seq: int) -> int:
    """Return the new number of a call, or of the last one before it that has one."""
    position = log.call(max(seq, log.first)).position
    kept = numbered.positions(numbered.first, numbered.calls + 1)
    return numbered.first - 1 + sum(at <= position for at in kept)


def _numbered_as(log: CallLog, peer: CallLog, seq: int) -> tuple[CallLog, frozenset[str]] | None:
    """Return a rank's calls with a peer's numbers, and the operations that its record lacks.

    Returns:
        None where too few of the calls agree with any numbering.
    """
    if log is peer or _agrees_unshifted(log, peer, seq):
        return log, frozenset()
    own, theirs = _last_calls(log, seq), _last_calls(peer, seq)
    lost = _ops_after(peer, seq) - _ops_after(log, seq)
    more = _ops_after(log, seq) - _ops_after(peer, seq)
    own = [call for call in own if call.op not in more]
    common = [call for call in theirs if call.op not in lost]
    contents = [np.array([call.signature for call in calls], np.uint64) for calls in (common, own)]
    shift = best_shift(*contents)
    if shift is None or shift.agreeing < ALIKE * shift.overlap:
        return None
    calls: list[Call] = []
    for place, call in enumerate(own):
        at = shift.start + place
        if at < 0:
            continue
        if at < len(common):
            number = common[at].seq
        else:
            number = (calls[-1].seq if calls else peer.calls) + 1
            while number <= peer.calls and theirs[number - theirs[0].seq].op in lost:
                number += 1
        if calls:
            missing = theirs[calls[-1].seq + 1 - theirs[0].seq : number - theirs[0].seq]
            last = calls[-1]
            calls += [_assumed(one, last) for one in missing]
        calls.append(replace(call, seq=number))
    return ListLog(log.communicator, calls, made=peer.calls), frozenset(lost)


def _assumed(call: Call, before: Call) -> AssumedCall:
    """Return a peer's call as one that a rank posted right after its call ``before``."""
    fields = {each.name: getattr(call, each.name) for each in dataclass_fields(Call)}
    moment = {
        "position": before.position,
        "time_ns": before.time_ns,
        "state": before.state,
    }
    return AssumedCall(**{**fields, **moment})


def _agrees_unshifted(log: CallLog, peer: CallLog, seq: int) -> bool:
    """Return whether two logs agree again soon after a difference, with their own numbers."""
    start, stop = max(seq + 1, log.first, peer.first), min(log.calls, peer.calls) + 1
    if start >= stop:
        return False
    near = min(stop, start + WINDOW)
    pairs = zip(log.signatures(start, near), peer.signatures(start, near), strict=True)
    return sum(one == other for one, other in pairs) >= ALIKE * (near - start)


def _last_calls(log: CallLog, seq: int) -> list[Call]:
    start = max(log.first, seq, log.calls - WINDOW + 1)
    return list(log.span(start, log.calls + 1))


def _ops_after(log: CallLog, seq: int) -> set[str]:
    """Return the operations among the calls after a difference."""
    start = max(log.first, seq)
    near = log.span(start, min(log.calls + 1, start + WINDOW))
    return {call.op for call in near} | {call.op for call in _last_calls(log, seq)}
