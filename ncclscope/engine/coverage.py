"""How much of a job is recorded: why a verdict may, or may not, be `ok`.

A call that all peers completed may need every member. Then an absent member made it, and its record
has a gap there: the description of the communicator or the newest records are damaged, or no probe
saw the calls. Completion is not recorded everywhere. Where processes exited normally, their calls
count as completed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from heapq import nlargest
from typing import Any

from ncclscope.engine.damaged import has_damaged_transfers, is_peerless
from ncclscope.errors import DamagedFileError
from ncclscope.model import Call, Communicator, Rank, Run, State
from ncclscope.model.activities import ASLEEP, CPU
from ncclscope.model.log import CallLog
from ncclscope.model.metadata import DAMAGED
from ncclscope.model.signature import SYMMETRIC_OPS
from ncclscope.model.snapshot import RasComm, Snapshot
from ncclscope.model.unranked import unranked
from ncclscope.untrusted import printable
from ncclscope.wording.names import by_words, plural, ranks_text
from ncclscope.wording.verdicts import Gap

_UNEVEN_OPS = frozenset({"all_gatherv", "reduce_scatterv", "all_to_all", "gather", "scatter"})
"""Each call of these is several launches of NCCL's, so that counts cannot be compared."""
_COUNTERS = {"nccl": Gap.NCCL, "ras": Gap.RAS, "flight_recorder": Gap.FLIGHT_RECORDER}
_SEEN_BY_NCCL = frozenset({"ddp", "compiled", "coalesced", "cupy", "late", "ray_collective"})
"""Kinds of calls that no probe sees, but NCCL's profiler plugin does, on NCCL."""
_BROKEN = {"refused": "is refused", "ended": "has ended"}


@dataclass(frozen=True)
class CommCoverage:
    """One communicator whose calls were also counted by another data source.

    Attributes:
        comm: The communicator.
        recorded: Number of recorded calls, the maximum over all members.
        counted: Number of counted calls, the maximum over all members.
        by: The source of the count: ``ras``, ``flight_recorder`` or ``nccl``.
        comparable: Whether one recorded call is one counted call.
    """

    comm: Communicator
    recorded: int
    counted: int
    by: str
    comparable: bool = True

    def to_dict(self) -> dict[str, Any]:
        """Return the entry in the terms of the JSON verdict."""
        return {
            "key": self.comm.key,
            "label": self.comm.label,
            "recorded": self.recorded,
            "counted": self.counted,
            "by": self.by,
        }


@dataclass(frozen=True)
class Coverage:
    """How much of a job is recorded.

    Attributes:
        unrecorded: The gaps in the records of calls, one sentence each, with the ranks concerned.
        unread: The gaps in the process snapshot, likewise.
        comms: Communicators whose calls were also counted by another data source.
    """

    unrecorded: tuple[str, ...]
    unread: tuple[str, ...]
    comms: tuple[CommCoverage, ...]

    @property
    def unseen(self) -> tuple[str, ...]:
        """All gaps."""
        return (*self.unrecorded, *self.unread)

    @property
    def complete(self) -> bool:
        """Whether there are no known gaps, so that agreement and stacks can be trusted."""
        return not self.unseen

    @property
    def has_all_calls(self) -> bool:
        """Whether the records of calls have no known gaps, whatever is known of processes."""
        return not self.unrecorded

    def to_dict(self) -> dict[str, Any]:
        """Return the coverage in the terms of the JSON verdict."""
        return {
            "complete": self.complete,
            "unseen": list(self.unseen),
            "comms": [one.to_dict() for one in self.comms],
        }


def survey(run: Run) -> Coverage:
    """Return how much of a run is recorded.

    Compare the records with each count that exists, and collect the unrecorded activities that
    the processes themselves report.
    """
    comms = (*_counted_by_nccl(run), *_counted_by_ras(run), *_counted_by_dumps(run))
    unrecorded = [
        *(*_missing(run), *_declared(run), *_probes(run)),
        *(*_damaged_transfers(run), *_unlogged(run)),
    ]
    for one in comms:
        if one.comparable and one.counted > one.recorded:
            gap = _COUNTERS[one.by]
            unrecorded.append(gap.of(one.comm, one.counted, one.recorded))
    return Coverage(tuple(dict.fromkeys(unrecorded)), tuple(_unread(run)), comms)


def unrecorded_kinds(rank: Rank) -> Mapping[str, tuple[str, ...]]:
    """Return the features that a process uses and no probe records.

    Returns:
        By kind (``ddp``, ``compiled``, ...) the keys of the affected communicators; empty where
        they are not known.
    """
    kinds: dict[str, tuple[str, ...]] = {}
    for one in _entries(rank):
        comms = one.get("comms")
        keys = tuple(key for key in comms if isinstance(key, str)) if comms else ()
        kinds[str(one.get("kind") or "other")] = keys
    return kinds


def uses_unrecorded(rank: Rank, key: str | None = None) -> bool:
    """Return whether a process may post calls that are not recorded.

    Args:
        rank: The process.
        key: The communicator's key; any communicator by default.
    """
    if rank.details.get("probe_failed"):
        return True
    return any(key is None or not keys or key in keys for keys in unrecorded_kinds(rank).values())


def is_damaged(run: Run, number: int, key: str) -> bool:
    """Return whether a rank has unreadable calls that may belong to this communicator.

    Args:
        run: The run.
        number: Global rank.
        key: The communicator's key.
    """
    rank = run.by_rank.get(number)
    if rank is None:
        return number in run.unrecorded
    return key not in rank.logs and DAMAGED in unrecorded_kinds(rank)


def _entries(rank: Rank) -> list[Mapping[str, Any]]:
    found = rank.details.get("unseen")
    if isinstance(found, str):
        return [{"kind": "other", "text": found, "comms": []}]
    entries = [one for one in found or () if isinstance(one, Mapping)]
    return [one for one in entries if not _is_recorded(rank, one)]


def _is_recorded(rank: Rank, entry: Mapping[str, Any]) -> bool:
    """Return whether NCCL's profiler plugin records the calls that an entry concerns."""
    if not rank.carried or entry.get("kind") not in _SEEN_BY_NCCL:
        return False
    comms = entry.get("comms") or ()
    logs = [rank.logs[key] for key in comms if key in rank.logs]
    return len(logs) == len(comms) > 0 and all(
        "nccl" in log.communicator.backend and log.communicator.hash for log in logs
    )


def _missing(run: Run) -> Iterator[str]:
    yield from gone_texts(run)
    yield from untraced_texts(run)
    if run.unreadable:
        yield Gap.UNREADABLE.of(run.unreadable)
    snapshot = run.snapshot
    if snapshot is None:
        return
    bare = [
        rank.rank for rank in run.ranks if not rank.logs and rank.activities.keys() <= {CPU, ASLEEP}
    ]
    if bare and len(bare) == len(run.ranks):
        traced = any(one.rings for one in snapshot.workers)
        yield Gap.NOT_TRACED.of("not every" if traced else "no")
    elif bare:
        yield Gap.BARE.of(bare)


def gone_texts(run: Run) -> Iterator[str]:
    """Yield which ranks left nothing at all: ``ranks 1 2 left no record``."""
    gone = [number for number in run.missing if number not in run.unrecorded]
    if gone and unranked(rank.rank for rank in run.ranks):
        yield Gap.NO_RECORD.of(plural(len(gone), "further member"))  # which ones is not known
    elif gone:
        yield Gap.NO_RECORD.of(gone)


def untraced_texts(run: Run) -> Iterator[str]:
    """Yield which processes are not recorded, and why: ``ranks 1 2 could not be recorded: ...``."""
    found: dict[str, list[Rank]] = {}
    for one in run.untraced:
        found.setdefault(str(one.details.get("untraced")), []).append(one)
    for why, own in found.items():
        numbers = [one.rank for one in own if one.rank >= 0]
        pids = [str(one.pid) for one in own if one.rank < 0]
        who = [ranks_text(numbers)] if numbers else []
        if pids:
            who.append(f"{'pid' if len(pids) == 1 else 'pids'} {' '.join(pids)}")
        yield Gap.UNTRACED.of(" and ".join(who), why)


def _unread(run: Run) -> Iterator[str]:
    """Yield the ranks whose stacks could not be read, which says nothing about their calls."""
    unread = [
        worker.rank
        for worker in (run.snapshot.workers if run.snapshot is not None else ())
        if not worker.stacks[-1:] or not worker.stacks[-1].threads
    ]
    if unread:
        yield Gap.STACK.of(unread)


def _declared(run: Run) -> Iterator[str]:
    """Yield the unrecorded activities that processes report themselves."""
    said = []
    for rank in run.ranks:
        for one in _entries(rank):
            text = str(one.get("text") or "").strip().rstrip(".")
            said.append((printable(text), rank.rank))
        if failed := rank.details.get("probe_failed"):
            said.append((Gap.PROBE_FAILED.of(printable(str(failed))), rank.rank))
    for text, own in by_words(said).items():
        yield f"{ranks_text(own)}: {text}"


def _probes(run: Run) -> Iterator[str]:
    """Yield the probes that do not record on some ranks."""
    said = []
    for rank in run.ranks:
        probes = rank.details.get("probes")
        for name, one in probes.items() if isinstance(probes, Mapping) else ():
            state = one.get("state") if isinstance(one, Mapping) else None
            if state in _BROKEN:
                why = printable(str(one.get("why") or ""))[:200]
                text = f"probe {printable(str(name))} {_BROKEN[state]}{f' ({why})' if why else ''}"
                said.append((text, rank.rank))
    for text, own in by_words(said).items():
        yield f"{ranks_text(own)}: {text}"


def _damaged_transfers(run: Run) -> Iterator[str]:
    """Yield communicators whose sends and receives cannot be paired, with the ranks concerned."""
    damaged: dict[str, list[Rank]] = {}
    for rank in run.ranks:
        for key in () if rank.lost else rank.p2p:
            comm = run.communicators.get(key)
            if comm is not None and has_damaged_transfers(rank, comm):
                damaged.setdefault(key, []).append(rank)
    for key, found in damaged.items():
        comm = run.communicators[key]
        if waiting := [r.rank for r in found if is_peerless(r, comm)]:
            yield Gap.PEERLESS.of(waiting, comm)
        if ranks := [r.rank for r in found if r.rank not in waiting]:
            yield Gap.DAMAGED_TRANSFERS.of(ranks, comm)


def _unlogged(run: Run) -> Iterator[str]:
    """Yield the ranks whose record lacks calls, though their peers completed them."""
    for comm, ranks in unlogged_members(run):
        yield Gap.NO_CALL.of(ranks, comm)
    for comm, ranks in cut_short(run):
        yield Gap.NO_LAST_CALLS.of(ranks, comm)


def _counted_by_nccl(run: Run) -> Iterator[CommCoverage]:
    """Compare recorded calls with those that NCCL reported to its profiler plugin.

    Of a communicator, the member with the most calls that are not recorded counts.
    """
    for key, comm in run.communicators.items():
        counts = [
            (rank.carried[key], log.calls - getattr(log, "before", 0))
            for rank in run.members(key)
            if key in rank.carried and (log := rank.logs[key])
        ]
        if counts:
            counted, recorded = max(counts, key=lambda one: (one[0] - one[1], one[0]))
            yield CommCoverage(comm=comm, recorded=recorded, counted=counted, by="nccl")


def _counted_by_ras(run: Run) -> Iterator[CommCoverage]:
    """Compare recorded calls with NCCL's counts where one communicator of each has the members.

    RAS identifies a communicator by a hash that only the profiler plugin sees, and its members by
    their pids.
    """
    snapshot = run.snapshot
    if snapshot is None or snapshot.ras is None or not any(rank.logs for rank in run.ranks):
        return
    yield from _counted_by_hash(run, snapshot.ras.comms)
    # Members are no identity where the hash is known: vLLM has a second group of each.
    hashes = {comm.hash for comm in run.communicators.values()}
    counted: dict[tuple[int, ...], list[RasComm]] = {}
    for one in snapshot.ras.comms:
        if one.hash in hashes:
            continue
        if (members := _members(snapshot, one)) and any(rank.counts for rank in one.ranks):
            counted.setdefault(members, []).append(one)
    recorded: dict[tuple[int, ...], list[Communicator]] = {}
    for comm in run.communicators.values():
        if "nccl" in comm.backend and not comm.creates_groups and not comm.hash:
            recorded.setdefault(tuple(sorted(comm.ranks)), []).append(comm)
    for members, own in recorded.items():
        theirs = counted.get(members, ())
        if len(own) != 1 or len(theirs) != 1:
            continue
        logs = [rank.logs[own[0].key] for rank in run.members(own[0].key)]
        ops = {op for log in logs for op in getattr(log, "ops", None) or ()}
        yield CommCoverage(
            comm=own[0],
            recorded=max((log.calls for log in logs), default=0),
            counted=max(_launched(rank.counts) for rank in theirs[0].ranks),
            by="ras",
            comparable=not ops & _UNEVEN_OPS,
        )


def _counted_by_hash(run: Run, counted: Iterable[RasComm]) -> Iterator[CommCoverage]:
    """Compare communicators whose hash NCCL reported to its profiler plugin.

    A probe and the plugin may each have a communicator of that hash: then both hold its calls.
    """
    theirs = {one.hash: one for one in counted if any(rank.counts for rank in one.ranks)}
    own: dict[str, list[Communicator]] = {}
    for comm in run.communicators.values():
        if comm.hash in theirs:
            own.setdefault(comm.hash, []).append(comm)
    for hash, comms in own.items():
        calls: Counter[int] = Counter()
        ops: set[str] = set()
        for comm in comms:
            for rank in run.members(comm.key):
                log = rank.logs[comm.key]
                calls[rank.rank] += log.calls
                ops |= set(getattr(log, "ops", None) or ())
        yield CommCoverage(
            comm=comms[0],
            recorded=max(calls.values(), default=0),
            counted=max(_launched(rank.counts) for rank in theirs[hash].ranks),
            by="ras",
            comparable=not ops & _UNEVEN_OPS,
        )


def _counted_by_dumps(run: Run) -> Iterator[CommCoverage]:
    """Compare recorded calls with those in Flight Recorder dumps of the same ranks."""
    if run.dumped is None:
        return
    theirs = _by_members(run.dumped)
    for members, own in _by_members(run).items():
        found = theirs.get(members, ())
        if len(own) == len(found) == 1:
            yield CommCoverage(
                comm=own[0],
                recorded=_made(run, own[0].key),
                counted=_made(run.dumped, found[0].key),
                by="flight_recorder",
            )


def _by_members(run: Run) -> dict[tuple[int, ...], list[Communicator]]:
    found: dict[tuple[int, ...], list[Communicator]] = {}
    for comm in run.communicators.values():
        if not comm.creates_groups and comm.ranks:
            found.setdefault(tuple(sorted(comm.ranks)), []).append(comm)
    return found


def _made(run: Run, key: str) -> int:
    """Return the maximum number of calls that a member made on a communicator."""
    return max((rank.logs[key].calls for rank in run.members(key)), default=0)


def _launched(counts: Mapping[str, int]) -> int:
    """Return how many collectives were launched, without sends and receives."""
    return sum(count for name, count in counts.items() if name not in ("Send", "Recv"))


def _members(snapshot: Snapshot, comm: RasComm) -> tuple[int, ...]:
    """Return the global ranks of a communicator in RAS; empty where one of them is unknown."""
    by_pid = {worker.pid: worker.rank for worker in snapshot.workers}
    known = [by_pid.get(rank.pid) for rank in comm.ranks]
    if len(known) != comm.size or None in known:
        return ()
    return tuple(sorted(rank for rank in known if rank is not None))


_NEWEST = 64
"""Calls at the end of a log that are searched for a completed one."""
_ASKED = 4
"""Members with the most calls whose logs are searched."""


def unlogged_members(run: Run) -> Iterator[tuple[Communicator, list[int]]]:
    """Yield communicators with the ranks whose record lacks them, though they must have joined.

    A window says nothing: a call that has left it may have been the communicator's last.

    Args:
        run: The records; ranks without any log are not reported.
    """
    if run.window:
        return
    for key, comm in run.communicators.items():
        if comm.creates_groups or len(comm.ranks) < 2:
            continue
        members = list(run.members(key))
        if not members or len(members) >= len(comm.ranks):
            continue
        completed = any(_has_completed(rank.logs[key]) for rank in members)
        if not completed and not any(_may_have_completed(rank, key) for rank in members):
            continue
        absent = [
            number
            for number in comm.ranks
            if (rank := run.by_rank.get(number)) is not None
            and rank.logs
            and not _has(rank, comm)
            and (completed or rank.ended_well)
            and not _has_joined_since(rank, comm)
        ]
        if absent:
            yield comm, absent


def cut_short(run: Run) -> Iterator[tuple[Communicator, list[int]]]:
    """Yield communicators with the ranks whose record lacks calls that peers completed.

    A record is stored before its call is made, so the end of this record was lost, or the file is
    an older one. That of a living process may have been read before the others.
    """
    if run.window:
        return
    for key, comm in run.communicators.items():
        members = list(run.members(key))
        logs = {rank.rank: rank.logs[key] for rank in members}
        # Where all the others came to their end, so did their calls.
        left = [rank for rank in members if not rank.ended_well]
        well = len(left) == 1 and len(members) > 1
        ended = [
            rank.rank
            for rank in members
            if (rank.exited or rank.alive is False or (well and not rank.alive))
            and rank.logs[key].anchored
        ]
        if comm.creates_groups or not ended:
            continue
        least = min(logs[number].calls for number in ended)
        ahead = nlargest(_ASKED, logs.values(), key=lambda log: log.calls)
        done = [
            call.seq
            for log in ahead
            if log.calls > least and log.anchored
            for call in _newest(log)
            if call.state is State.COMPLETED or (well and log is not logs[left[0].rank])
        ]
        short = [number for number in ended if logs[number].calls < max(done, default=0)]
        if short:
            yield comm, short


def _has(rank: Rank, comm: Communicator) -> bool:
    """Return whether a rank recorded a communicator, also under another key of the same hash."""
    if comm.key in rank.logs:
        return True
    return bool(comm.hash) and any(log.communicator.hash == comm.hash for log in rank.logs.values())


def _has_joined_since(rank: Rank, comm: Communicator) -> bool:
    """Return whether a living rank recorded a communicator after its ring was read.

    Rings are read one after another, and peers may complete calls between the first and the last.
    """
    if rank.again is None:
        return False
    try:
        return _has(rank.again(), comm)
    except (OSError, DamagedFileError):
        return True  # the file is gone or changes; the next reading shows what became of it


def _has_completed(log: CallLog) -> bool:
    return any(call.state is State.COMPLETED for call in _newest(log))


def _may_have_completed(rank: Rank, key: str) -> bool:
    return rank.ended_well and any(True for _ in _newest(rank.logs[key]))


def _newest(log: CallLog) -> Iterator[Call]:
    """Yield the newest calls that need all members."""
    newest = log.span(max(log.first, log.calls + 1 - _NEWEST), log.calls + 1)
    return (call for call in newest if call.op in SYMMETRIC_OPS)
