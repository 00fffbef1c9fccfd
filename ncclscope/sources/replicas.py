"""Processes that share a rank number: an earlier run's, or another replica's.

vLLM runs the data-parallel replicas of a dense model as jobs of their own: each has a
rank 0. And a directory that has been used before still holds the rings of the last run.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ncclscope.model import Communicator, Rank
from ncclscope.sources.memory import Relabelled

__all__ = ["separate_replicas"]


def separate_replicas(ranks: Sequence[Rank], notes: list[str]) -> list[Rank]:
    """Returns processes with distinct rank numbers.

    Of processes that share a number and did not live at the same time, the latest is kept.
    Of those that did, each replica gets a range of numbers of its own, in order of their
    ``dp`` label, host and pid.
    """
    by_rank: dict[int, list[Rank]] = {}
    for rank in ranks:
        by_rank.setdefault(rank.rank, []).append(rank)
    if all(len(same) == 1 for same in by_rank.values()):
        return list(ranks)
    older = 0
    for number, same in by_rank.items():
        same.sort(key=lambda rank: rank.started_ns or 0)
        living = [same[-1]]
        for rank in reversed(same[:-1]):
            if _overlap(rank, living[-1]):
                living.append(rank)
            else:
                older += 1
        by_rank[number] = living
    if older:
        notes.append(f"{older} rings of earlier processes with the same rank were left out")
    replicas = max(len(same) for same in by_rank.values())
    if replicas == 1:
        return [same[0] for same in by_rank.values()]
    size = max(by_rank) + 1
    notes.append(
        f"{replicas} processes share each rank number: ranks of replica n count from n x {size}"
    )
    separated = []
    for same in by_rank.values():
        same.sort(key=lambda rank: (rank.labels.get("dp", ""), rank.host, rank.pid))
        separated += [_moved(rank, place * size) for place, rank in enumerate(same)]
    return separated


def _overlap(one: Rank, other: Rank) -> bool:
    if not (one.started_ns and one.last_seen_ns and other.started_ns):
        return False
    return one.last_seen_ns > other.started_ns


def _moved(rank: Rank, offset: int) -> Rank:
    if not offset:
        return rank
    logs = {
        key: Relabelled(
            log,
            Communicator(
                key,
                log.communicator.label,
                tuple(member + offset for member in log.communicator.ranks),
                log.communicator.backend,
            ),
        )
        for key, log in rank.logs.items()
    }
    return replace(rank, rank=rank.rank + offset, logs=logs)
