"""Separate processes that share a rank number: of an earlier run, or of another replica.

vLLM runs the data-parallel replicas of a dense model as separate jobs, each with a rank 0. And a
reused directory still holds the rings of the previous run.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ncclscope.model import Rank
from ncclscope.model.activities import INIT, STORE_PLACE
from ncclscope.model.memory import Relabelled
from ncclscope.model.text import plural
from ncclscope.model.ties import grouped, tied
from ncclscope.readers.members import renamed


def separate_replicas(ranks: Sequence[Rank], notes: list[str]) -> list[Rank]:
    """Return processes with distinct rank numbers.

    If processes with the same number did not overlap in time, the latest is kept. If they did,
    each replica gets its own range of numbers. Processes that share a communicator belong to the
    same replica. Replicas are ordered by the ``dp`` label, host and pid of their lowest rank.

    Args:
        ranks: All processes with a rank.
        notes: Receives notes on what was left out or renumbered.
    """
    by_rank = grouped(ranks, lambda rank: rank.rank)
    if all(len(same) == 1 for same in by_rank.values()):
        return list(ranks)
    living = _whole([rank for same in by_rank.values() for rank in _living(same)], ranks)
    if len(living) < len(ranks):
        older = len(ranks) - len(living)
        notes.append(f"{plural(older, 'ring')} of earlier processes with the same rank left out")
    living = _without_doubles(_with_restarts(living, notes))
    if len(living) == len(by_rank):
        return living
    size = max(by_rank) + 1
    places = _places(living)
    notes.append(
        f"{max(places) + 1} processes share each rank number: "
        f"the ranks of replica n are numbered from n x {size}"
    )
    moved = [_moved(rank, place * size) for rank, place in zip(living, places, strict=True)]
    shared = _shared(living, places)
    return [
        renamed(rank, {key: f"{key}/replica-{place}" for key in shared}) if place else rank
        for rank, place in zip(moved, places, strict=True)
    ]


def number_rest(ranks: Sequence[Rank], others: Sequence[Rank]) -> tuple[list[Rank], list[Rank]]:
    """Number processes after the ranks that have no world, but places in groups.

    Args:
        ranks: The processes with a rank.
        others: Those without.

    Returns:
        The numbered ones, and the others that remain.
    """
    loose: list[Rank] = []
    rest: list[Rank] = []
    for one in others:
        (loose if one.logs.keys() & one.places.keys() else rest).append(one)
    loose.sort(key=lambda one: (min(one.places.values()), one.pid))
    start = max((end for rank in ranks for end in (rank.rank + 1, rank.world_size)), default=0)
    return [replace(one, rank=number) for number, one in enumerate(loose, start)], rest


def _living(same: Sequence[Rank]) -> list[Rank]:
    """Return the processes of one number without those that ended before a later one began."""
    living: list[Rank] = []
    for rank in sorted(same, key=lambda rank: span(rank)[0], reverse=True):
        if all(_overlap(rank, other) for other in living):
            living.append(rank)
    return living


def _whole(living: Sequence[Rank], ranks: Sequence[Rank]) -> list[Rank]:
    """Return the processes and those that share their communicators, which may have ended before.

    Of two jobs at the same time, a rank of one may end before that of the other has begun.
    """
    kept = {id(rank) for rank in living}
    for members in tied(ranks, lambda rank: rank.logs):
        distinct = len({rank.rank for rank in members}) == len(members)
        if distinct and any(id(rank) in kept for rank in members):
            kept.update(map(id, members))
    return [rank for rank in ranks if id(rank) in kept]


def _with_restarts(living: Sequence[Rank], notes: list[str]) -> list[Rank]:
    """Return the processes, with one ring for each that executed its program anew.

    Such a process keeps its pid. Its earlier ring has its calls; the later one has none yet, and
    shows what the process does now.
    """
    names = ("boot_id", "pid_namespace", "start_ticks")
    kept: dict[tuple[object, ...], Rank] = {}
    for rank in sorted(living, key=lambda rank: rank.started_ns or 0):
        who = (rank.rank, rank.host, rank.pid, *(rank.details.get(name) for name in names))
        earlier = kept.get(who)
        again = earlier is not None and who[-1] and not rank.records and span(rank)[0]
        if earlier is None or not again:
            kept[who if earlier is None else (*who, len(kept))] = rank
            continue
        kept[who] = replace(
            earlier,
            last_seen_ns=rank.last_seen_ns,
            exited=rank.exited,
            alive=rank.alive,
            activities={**earlier.activities, **rank.activities},
            details={**earlier.details, **rank.details},
            again=None,
        )
        notes.append(
            f"rank {rank.rank} (pid {rank.pid}) executed its program anew after its last recorded "
            f"call, and has posted none since"
        )
    return list(kept.values())


def _without_doubles(living: Sequence[Rank]) -> list[Rank]:
    """Return the processes without those that meet at a store with the rank of another one."""
    first: dict[tuple[int, str], int] = {}
    kept: list[Rank] = []
    for rank in sorted(living, key=lambda rank: (rank.started_ns or 0, rank.pid)):
        place = _meeting_place(rank)
        known = first.get((rank.rank, place)) if place else None
        if known is None:
            first[rank.rank, place] = len(kept)
            kept.append(rank)
            continue
        doubles = [*kept[known].details.get("doubles", ()), rank.pid]
        kept[known] = replace(kept[known], details={**kept[known].details, "doubles": doubles})
    return kept


def _meeting_place(rank: Rank) -> str:
    """Return the address at which a process waits for its peers; empty if it has a group."""
    inside, place = rank.activities.get(INIT), rank.activities.get(STORE_PLACE)
    if rank.logs or inside is None or inside.until_ns is not None or place is None:
        return ""
    return place.detail or ""


def _overlap(older: Rank, newer: Rank) -> bool:
    start, end = span(newer)[0], span(older)[1]
    return not start or not end or end > start


def span(rank: Rank) -> tuple[int, int]:
    """Return a process's first and last sign of life, in ns since 1970; 0 if unknown.

    The last one is unknown as well if the clock of the process was set back.
    """
    start, end = rank.started_ns or 0, rank.last_seen_ns or 0
    if not start or not end:
        logs = [log for log in rank.logs.values() if log.calls >= log.first]
        times = [log.call(seq).time_ns or 0 for log in logs for seq in (log.first, log.calls)]
        start, end = start or min(times, default=0), end or max(times, default=0)
    return start, end if end >= start else 0


def _places(ranks: Sequence[Rank]) -> list[int]:
    """Return the replica number, from 0, of each process."""
    cohorts = tied(range(len(ranks)), lambda one: ranks[one].logs)
    if _repeat(ranks, cohorts):
        # Processes of different worlds may share a group, whose members no world knows.
        cohorts = tied(range(len(ranks)), lambda one: _of_its_world(ranks[one]))
    if _repeat(ranks, cohorts):
        cohorts = _siblings(ranks)  # the communicator keys are not unique
    places = [0] * len(ranks)
    taken: set[tuple[int, int]] = set()
    for cohort in sorted(cohorts, key=lambda cohort: min(_order(ranks[one]) for one in cohort)):
        place = 0
        while any((place, ranks[one].rank) in taken for one in cohort):
            place += 1
        for one in cohort:
            places[one] = place
            taken.add((place, ranks[one].rank))
    return places


def _repeat(ranks: Sequence[Rank], cohorts: Sequence[Sequence[int]]) -> bool:
    return any(len({ranks[one].rank for one in cohort}) < len(cohort) for cohort in cohorts)


def _of_its_world(rank: Rank) -> list[str]:
    return [key for key, log in rank.logs.items() if log.communicator.ranks]


def _siblings(ranks: Sequence[Rank]) -> list[list[int]]:
    """Return groups of processes that one process started; single ones where numbers repeat."""
    parents = [(rank.host, rank.details.get("parent", -n)) for n, rank in enumerate(ranks, 1)]
    found = list(grouped(range(len(ranks)), lambda one: parents[one]).values())
    if _repeat(ranks, found):
        return [[one] for one in range(len(ranks))]
    return found


def _shared(ranks: Sequence[Rank], places: Sequence[int]) -> set[str]:
    """Return the keys under which replicas recorded different communicators."""
    seen: dict[str, set[tuple[int, int]]] = {}
    for rank, place in zip(ranks, places, strict=True):
        for key in rank.logs:
            seen.setdefault(key, set()).add((place, rank.places.get(key, rank.rank)))
    return {key for key, own in seen.items() if len({number for _, number in own}) < len(own)}


def _order(rank: Rank) -> tuple[int, int, str, str, int]:
    label = rank.labels.get("dp", "")
    number = int(label) if label.isdecimal() and len(label) < 20 else -1
    return rank.rank, number, label, rank.host, rank.pid


def _moved(rank: Rank, offset: int) -> Rank:
    if not offset:
        return rank
    logs = {
        key: Relabelled(
            log,
            replace(
                log.communicator,
                ranks=tuple(member + offset for member in log.communicator.ranks),
            ),
        )
        for key, log in rank.logs.items()
    }
    own = {**rank.details, "own_rank": rank.rank}
    return replace(rank, rank=rank.rank + offset, logs=logs, details=own)
