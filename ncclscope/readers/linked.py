"""Find the jobs that exchange transfers, such as prefill and decode engines.

Each server is a job of its own: it has its own run and its own ranks, numbered from 0.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from ncclscope.model import Rank
from ncclscope.model.text import plural
from ncclscope.model.ties import grouped
from ncclscope.readers.replicas import span
from ncclscope.untrusted import text


def separate_linked(processes: Iterable[Rank], notes: list[str]) -> list[list[Rank]]:
    """Return the processes of each job that belongs to the newest one by its transfers.

    Args:
        processes: All processes read.
        notes: Receives a note on the rings of other jobs that are left out.

    Returns:
        The jobs. One that receives transfers comes first: what is missing is missing there.
        Without ties there is one list, with all processes.
    """
    every = list(processes)
    jobs = grouped(every, _job)
    if len(jobs) < 2 or not any(_engines(job) for job in jobs.values()):
        return [every]
    groups = list(jobs.values())
    newest = max(groups, key=_started)
    tied = [newest]
    left = [job for job in groups if job is not newest]
    while found := [job for job in left if any(_are_tied(job, other) for other in tied)]:
        tied += found
        left = [job for job in left if job not in found]
    if len(tied) == 1:
        return [every]
    if left:
        rings = plural(sum(map(len, left)), "ring")
        notes.append(f"{rings} of {plural(len(left), 'earlier run')} left out")
    return sorted(tied, key=lambda job: (not _receives(job), -_started(job)))


def _job(process: Rank) -> str:
    run = str(process.details.get("run") or "")
    if run or not process.transfers:
        return run
    return f"engine {process.transfers[0].engine}"  # a trace may lack a run id


def _started(job: Sequence[Rank]) -> int:
    return max(process.started_ns or 0 for process in job)


def _engines(job: Sequence[Rank]) -> set[str]:
    found = {one.engine for process in job for one in process.transfers}
    for process in job:
        about = process.details.get("kv_engine")
        if isinstance(about, Mapping) and (engine := text(about.get("id"))):
            found.add(engine)
    return found


def _peers(job: Sequence[Rank]) -> set[str]:
    return {one.peer for process in job for one in process.transfers if one.peer}


def _receives(job: Sequence[Rank]) -> bool:
    return any(one.direction == "recv" for process in job for one in process.transfers)


def _are_tied(one: Sequence[Rank], other: Sequence[Rank]) -> bool:
    """Return whether one names the other's engine, or both ran engines at the same time.

    Before the first transfer, none has named the other.
    """
    engines = _engines(one), _engines(other)
    if _peers(one) & engines[1] or _peers(other) & engines[0]:
        return True
    return all(engines) and _overlap(one, other)


def _overlap(one: Sequence[Rank], other: Sequence[Rank]) -> bool:
    spans = [[span(process) for process in job] for job in (one, other)]
    begun = [min(start for start, _ in found) for found in spans]
    ended = [max(end for _, end in found) for found in spans]
    return begun[0] <= ended[1] and begun[1] <= ended[0]
