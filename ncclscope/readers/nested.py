"""Separate jobs that a rank has started, as one whose program runs torchrun.

Their processes inherit the environment of the rank, and so record in its directory.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from ncclscope.model import Rank
from ncclscope.untrusted import integers

_MOST_ANCESTORS = 64
_Place = tuple[str, str, str, int]


def separate_nested(processes: Sequence[Rank]) -> tuple[list[Rank], dict[int, list[Rank]]]:
    """Return the processes of a job, and those of the jobs that its ranks have started.

    A descendant of a rank is of another job if it shares no communicator with others, and has
    their numbers or another world size: a rank may also start further ranks of its own job.

    Args:
        processes: The processes, of which some may be descendants of others.

    Returns:
        The processes of the job itself; and those of each job inside it, by the rank that
        started it.
    """
    posted = {_place(one, one.pid): one for one in processes if one.rank >= 0 and one.logs}
    inside: dict[int, list[Rank]] = {}
    for one in processes:
        if (starter := _starter(one, posted)) is not None:
            inside.setdefault(starter, []).append(one)
    found = {}
    kept = list(processes)
    for starter, own in inside.items():
        rest = [one for one in kept if one not in own]
        if _is_apart(own, rest):
            kept, found[starter] = rest, _without_launchers(own)
    return kept, found


def _place(process: Rank, pid: int) -> _Place:
    """Return a pid with what it is unique in."""
    boot, namespace = (str(process.details.get(name)) for name in ("boot_id", "pid_namespace"))
    return process.host, boot, namespace, pid


def _ancestors(process: Rank) -> list[_Place]:
    pids = integers(process.details.get("ancestors"), _MOST_ANCESTORS) or ()
    return [_place(process, pid) for pid in pids]


def _starter(process: Rank, posted: Mapping[_Place, Rank]) -> int | None:
    """Return the outermost rank that a process descends from; None if there is none."""
    found = [posted[place].rank for place in _ancestors(process) if place in posted]
    return found[-1] if found else None


def _is_apart(own: Sequence[Rank], rest: Sequence[Rank]) -> bool:
    ranks = [one for one in own if one.rank >= 0]
    keys = {key for one in rest for key in one.logs}
    if not ranks or any(key in keys for one in ranks for key in one.logs):
        return False
    others = [one for one in rest if one.rank >= 0]
    sizes = {one.world_size for one in others}
    numbers = {one.rank for one in others}
    return any(one.rank in numbers or one.world_size not in sizes for one in ranks)


def _without_launchers(own: Sequence[Rank]) -> list[Rank]:
    """Return processes of which those that only started others have no rank; they inherited it."""
    starters = {place for one in own for place in _ancestors(one)}
    return [
        replace(one, rank=-1) if not one.logs and _place(one, one.pid) in starters else one
        for one in own
    ]
