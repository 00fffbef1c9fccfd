"""Compare processes that recorded without a rank, by the communicators that they share.

``ncclscope.Tracer(directory)`` without a rank, or a launcher that sets no variable, leaves such
records. What a communicator's members posted can be compared all the same: each such process takes
one of the places that the others leave free.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from ncclscope.model import Communicator, Rank
from ncclscope.model.log import CallLog
from ncclscope.model.memory import Relabelled
from ncclscope.model.metadata import SERVICE
from ncclscope.model.text import plural
from ncclscope.model.unranked import Unranked

_NO_PEERS = (
    "sends and receives are not compared, since this process has no rank that others could name"
)


def number_unranked(
    ranks: Sequence[Rank], others: Sequence[Rank], notes: list[str]
) -> tuple[list[Rank], list[Rank]]:
    """Number processes without a rank that share a communicator with another process.

    Args:
        ranks: The processes with a rank.
        others: Those without.
        notes: Receives a note on the processes that are numbered.

    Returns:
        All processes with a number, and the others that remain.
    """
    shared = Counter(
        key
        for one in (*ranks, *others)
        for key, log in one.logs.items()
        if len(log.communicator.ranks) != 1
    )
    alone = [one for one in others if not _shares(one, shared)]
    left = [one for one in others if _shares(one, shared)]
    free = {id(one): _free(one, ranks, shared) for one in left}
    taken = {rank.rank for rank in ranks}
    start = max((end for rank in ranks for end in (rank.rank + 1, rank.world_size)), default=0)
    # Of more processes than a communicator has members, the newest are those of the job.
    newest = _numbers(sorted(left, key=_age, reverse=True), free, taken, start)
    kept = [one for one in left if id(one) in newest]
    alone += [one for one in left if id(one) not in newest]
    numbers = _numbers(sorted(kept, key=_age), free, taken, start)
    if len(numbers) < len(newest):
        numbers = newest
    found = []
    for one in kept:
        named = Unranked(numbers[id(one)], one.host, one.pid)
        own = one if len(free[id(one)]) == 1 else _without_peers(one)
        found.append(replace(own, rank=named))
    if not found:
        return list(ranks), list(others)
    pids = " ".join(str(one.pid) for one in sorted(found, key=lambda one: one.rank))
    notes.append(
        f"{plural(len(found), 'process')} recorded without a rank, and can be named by pid only: "
        f"{pids}"
    )
    names = {int(one.rank): one.rank for one in found}
    unknown = _of_unknown_members(ranks, found)
    return [_renumbered(one, names, unknown) for one in (*ranks, *found)], alone


def _shares(process: Rank, shared: Mapping[str, int]) -> bool:
    """Return whether a process is a member of a communicator of which others recorded calls.

    An engine of vLLM has no rank, and its groups are numbered by engines.
    """
    if process.details.get("role") in SERVICE or "engine" in process.labels:
        return False
    return any(shared[key] > 1 for key in process.logs)


def _free(process: Rank, ranks: Sequence[Rank], shared: Mapping[str, int]) -> set[int]:
    """Return the ranks that a process may have; empty where no communicator says who they are."""
    found: set[int] | None = None
    for key, log in process.logs.items():
        comm = log.communicator
        if not comm.ranks or shared[key] < 2:
            continue
        members = {*comm.ranks} - {rank.rank for rank in ranks if key in rank.logs}
        peers = {call.peer for call in process.p2p.get(key, ()) if call.peer is not None}
        members -= {comm.ranks[peer] for peer in peers if 0 <= peer < len(comm.ranks)}
        found = members if found is None else found & members
    if found is None:
        return set()
    return found or {-1}  # it must be one of them, and all are taken


def _numbers(
    processes: Sequence[Rank], free: Mapping[int, set[int]], taken: Iterable[int], start: int
) -> dict[int, int]:
    """Return a number for each process for which one is left, by the process's identity.

    Args:
        processes: The processes, in the order in which they choose.
        free: The numbers that each may have, by its identity; empty for any from `start` on.
        taken: Numbers that others have.
        start: The first number that no communicator's member has.
    """
    used = {*taken}
    found: dict[int, int] = {}
    # Those with the least choice come first.
    for one in sorted(processes, key=lambda one: len(free[id(one)]) or 1 << 30):
        choice = free[id(one)] or range(start, start + len(used) + 1)
        number = min({*choice} - used, default=-1)
        if number >= 0:
            used.add(number)
            found[id(one)] = number
    return found


def _age(process: Rank) -> tuple[int, str, int]:
    return process.started_ns or 0, process.host, process.pid


def _without_peers(process: Rank) -> Rank:
    """Return a process whose rank is not known without calls that name the rank of another."""
    if not any(process.p2p.values()):
        return process
    entry = {"kind": "unranked", "text": _NO_PEERS, "comms": [*process.p2p], "since_ns": None}
    unseen = [*(process.details.get("unseen") or ()), entry]
    return replace(process, p2p={}, details={**process.details, "unseen": unseen})


def _of_unknown_members(ranks: Sequence[Rank], found: Sequence[Rank]) -> dict[str, tuple[int, ...]]:
    """Return the recorded members of communicators that do not say who their members are."""
    members: dict[str, list[int]] = {}
    stated = set()
    for one in (*ranks, *found):
        for key, log in one.logs.items():
            members.setdefault(key, []).append(one.rank)
            if log.communicator.ranks:
                stated.add(key)
    keys = {key for one in found for key in one.logs} - stated
    return {key: tuple(sorted(members[key])) for key in keys}


def _renumbered(
    process: Rank, names: Mapping[int, int], unknown: Mapping[str, tuple[int, ...]]
) -> Rank:
    logs: dict[str, CallLog] = {}
    for key, log in process.logs.items():
        comm: Communicator = log.communicator
        if key in unknown or not names.keys().isdisjoint(comm.ranks):
            ranks = tuple(names.get(rank, rank) for rank in comm.ranks) or unknown[key]
            logs[key] = Relabelled(log, replace(comm, ranks=ranks))
        else:
            logs[key] = log
    return replace(process, logs=logs)
