"""Processes that share a rank number: an earlier run's, or another replica's.

vLLM runs the data-parallel replicas of a dense model as jobs of their own: each has a
rank 0. And a directory that has been used before still holds the rings of the last run.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ncclscope.model import Rank
from ncclscope.model.memory import Relabelled

__all__ = ["separate_replicas", "span"]


def separate_replicas(ranks: Sequence[Rank], notes: list[str]) -> list[Rank]:
    """Return processes with distinct rank numbers.

    Of processes that share a number and did not live at the same time, the latest is kept.
    Of those that did, each replica gets a range of numbers of its own. Processes that have a
    communicator in common belong to the same replica; replicas are ordered by the ``dp``
    label, host and pid of their lowest rank.
    """
    by_rank: dict[int, list[Rank]] = {}
    for rank in ranks:
        by_rank.setdefault(rank.rank, []).append(rank)
    if all(len(same) == 1 for same in by_rank.values()):
        return list(ranks)
    living = [rank for same in by_rank.values() for rank in _living(same)]
    if len(living) < len(ranks):
        older = len(ranks) - len(living)
        notes.append(f"{older} rings of earlier processes with the same rank were left out")
    if len(living) == len(by_rank):
        return living
    size = max(by_rank) + 1
    places = _places(living)
    notes.append(
        f"{max(places) + 1} processes share each rank number: "
        f"ranks of replica n count from n x {size}"
    )
    return [_moved(rank, place * size) for rank, place in zip(living, places, strict=True)]


def _living(same: Sequence[Rank]) -> list[Rank]:
    """Leave out processes that had ended when the latest of the same number began."""
    living: list[Rank] = []
    for rank in sorted(same, key=lambda rank: span(rank)[0], reverse=True):
        if all(_overlap(rank, other) for other in living):
            living.append(rank)
    return living


def _overlap(older: Rank, newer: Rank) -> bool:
    start, end = span(newer)[0], span(older)[1]
    return not start or not end or end > start


def span(rank: Rank) -> tuple[int, int]:
    """Return when a process began to record and was last heard of; 0 where nothing tells."""
    start, end = rank.started_ns or 0, rank.last_seen_ns or 0
    if not start or not end:
        logs = [log for log in rank.logs.values() if log.calls >= log.first]
        times = [log.call(seq).time_ns or 0 for log in logs for seq in (log.first, log.calls)]
        start, end = start or min(times, default=0), end or max(times, default=0)
    return start, end


def _places(ranks: Sequence[Rank]) -> list[int]:
    """Return to which replica, from 0, each process belongs."""
    crews = _crews(ranks)
    if any(len({ranks[one].rank for one in crew}) < len(crew) for crew in crews):
        crews = [[one] for one in range(len(ranks))]  # keys that are not what they should be
    places = [0] * len(ranks)
    taken: set[tuple[int, int]] = set()
    for crew in sorted(crews, key=lambda crew: min(_order(ranks[one]) for one in crew)):
        place = 0
        while any((place, ranks[one].rank) in taken for one in crew):
            place += 1
        for one in crew:
            places[one] = place
            taken.add((place, ranks[one].rank))
    return places


def _crews(ranks: Sequence[Rank]) -> list[list[int]]:
    """Return which processes are joined by communicators, directly or through others."""
    crew_of = list(range(len(ranks)))
    first: dict[str, int] = {}
    for one, rank in enumerate(ranks):
        for key in rank.logs:
            mine, theirs = crew_of[one], crew_of[first.setdefault(key, one)]
            if mine != theirs:
                crew_of = [theirs if crew == mine else crew for crew in crew_of]
    crews: dict[int, list[int]] = {}
    for one, crew in enumerate(crew_of):
        crews.setdefault(crew, []).append(one)
    return list(crews.values())


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
    return replace(rank, rank=rank.rank + offset, logs=logs)
