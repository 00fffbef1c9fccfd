"""Turn all Flight Recorder dumps of a job into its ranks.

This module decides what a single dump leaves open: the members of a group, the number of calls on
a group without kept entries, and which gloo calls have completed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from ncclscope.model import Communicator, Rank, State
from ncclscope.model.log import CallLog
from ncclscope.model.text import plural
from ncclscope.model.ties import grouped
from ncclscope.readers.flight_recorder.entry import Entry
from ncclscope.readers.flight_recorder.group import Group, Held
from ncclscope.readers.flight_recorder.log import DumpLog, LazyCalls
from ncclscope.readers.flight_recorder.members import Known, are_partial, infer
from ncclscope.readers.flight_recorder.reader import Dump

_WORLD = "default_pg"
_NAMELESS = ("", "undefined")
_MOST_RANKS = 1 << 16
"""A larger size, or rank, that a dump names is no evidence of one."""
_AT_ONCE_NS = 250_000_000
_LONG_NS = 30_000_000_000
_LAG_NS = 1_000_000_000


@dataclass
class _Comm:
    """One group across all dumps."""

    group: Group
    held: dict[int, Held] = field(default_factory=dict)
    whole: dict[int, bool] = field(default_factory=dict)
    ranks: tuple[int, ...] = ()
    is_partial: bool = False

    @property
    def p2p(self) -> bool:
        """Whether the group's status also counts sends and receives."""
        return any(held.sent or held.reached for held in self.held.values())

    @property
    def key(self) -> str:
        group = self.group
        return f"fr/{group.backend}/{group.name}/{','.join(map(str, group.ranks))}"

    @property
    def size(self) -> int:
        """Number of members, from the sizes of gathers and scatters; 0 if unknown."""
        sizes = {id(entry.posted): entry.posted.size for entry in self._entries()}
        counts = Counter(size for size in sizes.values() if size).most_common(2)
        if not counts or (len(counts) > 1 and counts[0][1] == counts[1][1]):
            return 0
        return counts[0][0]

    def _entries(self) -> Iterable[Entry]:
        return (entry for held in self.held.values() for entry in held.calls)

    def calls(self, rank: int) -> int | None:
        """Return the number of calls a rank has made; None if its dump does not say."""
        held = self.held.get(rank)
        if held is None:
            return 0 if self.whole.get(rank) else None
        if held.calls:
            return held.calls[-1].seq
        if held.reached or self.whole.get(rank):
            return held.reached
        return None if self.p2p else held.enqueued


def settle(ranks: Iterable[Rank], notes: list[str]) -> list[Rank]:
    """Build the logs of ranks that were read from dumps; other ranks stay unchanged.

    Args:
        ranks: All ranks.
        notes: Receives notes on dumps that were left out.
    """
    others: list[Rank] = []
    dumps: list[Rank] = []
    for rank in ranks:
        (dumps if isinstance(rank.details.get("dump"), Dump) else others).append(rank)
    if not dumps:
        return others
    by_rank = _by_rank(dumps, notes)
    comms = _comms(by_rank)
    world = _world(by_rank, comms.values())
    _set_members(comms.values(), world, by_rank)
    logs = _logs(by_rank, comms)
    found = [
        _rank(number, own, logs[number], comms, world) for number, own in sorted(by_rank.items())
    ]
    # A rank whose first call has not completed has the same recorder as its peers.
    if any(rank.details["tells"] for rank in found):
        found = [replace(rank, details={**rank.details, "tells": True}) for rank in found]
    if not _is_sized(by_rank, comms.values()):
        found = [replace(rank, details={**rank.details, "unsized": True}) for rank in found]
    return others + found


def _by_rank(dumps: Sequence[Rank], notes: list[str]) -> dict[int, list[Rank]]:
    """Return the newest run's dumps by rank, one per recorder."""
    folders = grouped(dumps, lambda rank: Path(rank.source).parent)
    newest = sorted(
        folders.values(), key=lambda own: max(_dump(rank).newest_ns for rank in own), reverse=True
    )
    found: dict[int, list[Rank]] = {}
    older = 0
    for own in newest:
        if {rank.rank for rank in own} & found.keys():
            older += len(own)  # of another run
            continue
        own.sort(key=lambda rank: (-_dump(rank).newest_ns, -len(rank.source), rank.source))
        for rank in own:
            taken = found.setdefault(rank.rank, [])
            groups = {group for other in taken for group in _dump(other).groups}
            if taken and (not _dump(rank).groups or groups & _dump(rank).groups.keys()):
                older += 1
            else:
                taken.append(rank)
    if older:
        notes.append(f"{plural(older, 'dump')} left out: older than another, or a duplicate")
    return found


def _dump(rank: Rank) -> Dump:
    dump: Dump = rank.details["dump"]
    return dump


def _comms(by_rank: Mapping[int, Sequence[Rank]]) -> dict[Group, _Comm]:
    """Join groups across all ranks; a rank without entries does not know a group's backend."""
    backends: dict[Group, set[str]] = {}
    for dump in _dumps(by_rank):
        for group, held in dump.groups.items():
            if held.calls or held.sent:
                backends.setdefault(group._replace(backend=""), set()).add(group.backend)
    comms: dict[Group, _Comm] = {}
    for number, own in by_rank.items():
        for rank in own:
            for group, held in _dump(rank).groups.items():
                known = backends.get(group._replace(backend=""), set())
                if not (held.calls or held.sent) and len(known) == 1:
                    group = group._replace(backend=next(iter(known)))
                comms.setdefault(group, _Comm(group)).held[number] = held
    for comm in comms.values():
        comm.whole = {
            number: all(_dump(rank).whole for rank in own) for number, own in by_rank.items()
        }
    return comms


def _dumps(by_rank: Mapping[int, Sequence[Rank]]) -> Iterable[Dump]:
    return (_dump(rank) for own in by_rank.values() for rank in own)


def _world(by_rank: Mapping[int, Sequence[Rank]], comms: Iterable[_Comm]) -> int:
    """Return the number of ranks of the job."""
    known = max(max(by_rank) + 1, *(dump.size for dump in _dumps(by_rank)))
    for comm in comms:
        known = max(known, max(comm.group.ranks, default=-1) + 1)
        if _is_world(comm.group) and not comm.group.ranks:
            named = (one.posted.peer for held in comm.held.values() for one in held.sent)
            sizes = [comm.size, *(peer + 1 for peer in named if peer is not None)]
            known = max(known, *(size for size in sizes if size < _MOST_RANKS), 0)
    return known


def _is_sized(by_rank: Mapping[int, Sequence[Rank]], comms: Iterable[_Comm]) -> bool:
    """Return whether the dumps show the number of ranks, and not only who left one."""
    sized = any(comm.group.ranks or comm.size for comm in comms if _is_world(comm.group))
    return sized or any(dump.size for dump in _dumps(by_rank))


def _is_world(group: Group) -> bool:
    return group.desc == _WORLD or group.name == _WORLD


def _set_members(comms: Iterable[_Comm], world: int, by_rank: Mapping[int, Sequence[Rank]]) -> None:
    """Set the members of all groups, those that no dump describes as far as they are known.

    Args:
        comms: The groups.
        world: Number of ranks of the job.
        by_rank: Dumps by rank.
    """
    absent = set(range(world)) - by_rank.keys()
    alike: dict[tuple[str, str], list[_Comm]] = {}
    for comm in comms:
        if comm.group.ranks or _is_world(comm.group):
            comm.ranks = comm.group.ranks or tuple(range(world))
        else:
            name = comm.group.name if comm.group.desc in _NAMELESS else ""
            alike.setdefault((comm.group.desc, name), []).append(comm)
    for same in alike.values():
        known = [Known(frozenset(comm.held), comm.size) for comm in same]
        members = infer(known, world, absent)
        partial = are_partial(known, members, world)
        for comm, ranks, is_partial in zip(same, members, partial, strict=True):
            comm.ranks, comm.is_partial = ranks, is_partial


def _logs(
    by_rank: Mapping[int, Sequence[Rank]], comms: Mapping[Group, _Comm]
) -> dict[int, tuple[dict[str, CallLog], dict[str, LazyCalls]]]:
    labels = _labels(comms.values())
    logs: dict[int, tuple[dict[str, CallLog], dict[str, LazyCalls]]] = {
        number: ({}, {}) for number in by_rank
    }
    newest = {number: _newest(own) for number, own in by_rank.items()}
    for comm in comms.values():
        members = [number for number in comm.ranks if number in by_rank]
        made = {number: comm.calls(number) for number in members}
        counts = [count for count in made.values() if count is not None]
        if not counts or (
            len(set(counts)) == 1
            and not any(held.calls or held.sent for held in comm.held.values())
        ):
            continue  # no rank kept a call, and all made the same number
        communicator = Communicator(
            comm.key,
            labels[comm.group],
            comm.ranks,
            comm.group.backend,
            is_partial=comm.is_partial,
        )
        tells = _tells(comm)
        sure = 0 if comm.is_partial else min(counts)
        if len(members) < len(comm.ranks) and any(
            held.calls and not held.calls[-1].retired and held.calls[-1].seq <= sure
            for held in comm.held.values()
        ):
            sure -= 1  # one rank still waits for the lost member, so the others' call failed
        for number in members:
            held = comm.held.get(number) or Held()
            # A rank without a count is assumed to have made all calls.
            count = made[number]
            by_time = len(by_rank[number]) > 1
            logs[number][0][comm.key] = DumpLog(
                communicator,
                held.calls,
                max(counts) if count is None else count,
                done=0 if tells else max(sure, _passed(held.calls, newest[number])),
                by_time=by_time,
            )
            if held.sent:
                logs[number][1][comm.key] = LazyCalls(comm.key, held.sent, by_time=by_time)
    return logs


def _tells(comm: _Comm) -> bool:
    """Return whether the backend reports completion.

    Other backends retire failed calls like completed ones. But a call that some member has not
    enqueued cannot have completed.
    """
    return "nccl" in comm.group.backend or any(
        entry.state is not State.SCHEDULED for held in comm.held.values() for entry in held.calls
    )


def _passed(entries: Sequence[Entry], newest: int) -> int:
    """Return the last call that a rank certainly completed: it retired it, and went on.

    Args:
        entries: Its calls on a group.
        newest: Position of its last call on any group.
    """
    last = next((entry for entry in reversed(entries) if entry.retired), None)
    seq = 0 if last is None else last.seq
    return seq if last is None or last.position < newest else seq - 1


def _newest(own: Sequence[Rank]) -> int:
    """Return the position of the last call in a rank's only dump; -1 where it left several."""
    held = [held for rank in own for held in _dump(rank).groups.values()]
    last = [entries[-1].position for one in held for entries in (one.calls, one.sent) if entries]
    return max(last, default=-1) if len(own) == 1 else -1


def _labels(comms: Iterable[_Comm]) -> dict[Group, str]:
    """Return display names: ``TENSOR_MODEL_PARALLEL_GROUP:1``, numbered per description."""
    labels: dict[Group, str] = {}
    alike: dict[tuple[str, str], list[_Comm]] = {}
    for comm in comms:
        if comm.group.desc in _NAMELESS:
            labels[comm.group] = f"group {comm.group.name}" if comm.group.name else "group"
        else:
            alike.setdefault((comm.group.desc, comm.group.backend), []).append(comm)
    for (desc, _), same in alike.items():
        same.sort(key=lambda comm: (comm.ranks, comm.group.name))
        for number, comm in enumerate(same):
            labels[comm.group] = desc if desc == _WORLD else f"{desc}:{number}"
    return labels


def _fresh(rank: Rank) -> bool:
    """Return whether a dump was written right after a call, as for a running job.

    The file's time may be later than the dump, if a copy did not preserve it. So only a recent
    time proves something. The limit depends on how often the rank made calls.
    """
    dump = _dump(rank)
    age: int = rank.details["written_ns"] - dump.newest_ns
    limit = min(max(_AT_ONCE_NS, 2 * dump.pace_ns), _LONG_NS)
    # Stamps of files lag behind by a tick of the kernel's clock, or a second where they are whole.
    return -_LAG_NS <= age < limit


def _rank(
    number: int,
    own: Sequence[Rank],
    logs: tuple[dict[str, CallLog], dict[str, LazyCalls]],
    comms: Mapping[Group, _Comm],
    world: int,
) -> Rank:
    details: dict[str, Any] = {**own[0].details, "numbered": True}
    overdue = [
        (comms[group].key, entry.posted.p2p, entry.seq)
        for rank in own
        for group, entries in _dump(rank).overdue.items()
        for entry in entries
    ]
    details["timed_out"] = len(overdue)
    details["overdue"] = frozenset(overdue)
    # A dump usually means that the job was thought to hang, unless it had just enqueued calls.
    details["dumped"] = not any(_fresh(rank) for rank in own)
    details["idle_s"] = min(
        (rank.details["written_ns"] - _dump(rank).newest_ns) / 1e9 for rank in own
    )
    details["tells"] = any(_dump(rank).tells for rank in own)
    details["splits"] = any(_dump(rank).splits for rank in own)
    del details["dump"], details["written_ns"]
    return replace(
        own[0],
        rank=number,
        world_size=world,
        logs=logs[0],
        p2p=logs[1],
        records=sum(rank.records for rank in own),
        lost=sum(log.first - 1 for log in logs[0].values()),
        started_ns=None,
        details=details,
    )
