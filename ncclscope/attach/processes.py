"""Finds the processes of a job, and their ranks.

Four things make a process a worker: its title, RANK or LOCAL_RANK in its environment, a ring
that it has mapped, or that the user names it. Children that inherited a rank, such as those
of a data loader, are none.
"""

from __future__ import annotations

import contextlib
import os
import re
import sys
import threading
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

from ncclscope.attach.candidate import Candidate
from ncclscope.attach.kinship import group_jobs, is_launcher, meeting_points, without_relatives
from ncclscope.attach.proc_sample import state_of
from ncclscope.attach.titles import is_worker_title, parse_title, ranks_from_labels
from ncclscope.errors import UsageError
from ncclscope.redaction import redact_text, redact_words
from ncclscope.ring import layout
from ncclscope.untrusted import printable

__all__ = ["Candidate", "Placed", "choose_job", "describe", "find_workers", "give_ranks"]

_OF_THE_JOB = re.compile(
    r"MASTER_ADDR|MASTER_PORT|TORCHELASTIC_RUN_ID|CUDA_DEVICE_ORDER|"
    r"NCCL_.*|TORCH_NCCL_.*|TORCH_FR_.*|NCCLSCOPE.*|VLLM_(?!API_KEY).*"
)
_KEPT = re.compile(
    r"RANK|LOCAL_RANK|WORLD_SIZE|LOCAL_WORLD_SIZE|GROUP_RANK|SLURM_PROCID|SLURM_NTASKS|"
    rf"SLURM_LOCALID|CUDA_VISIBLE_DEVICES|{_OF_THE_JOB.pattern}"
)
"""Variables that say something of the job; nothing else of an environment is kept."""
_GENERATIONS = 5
"""From a worker by its engine to what was started, and one or two between."""
_SECRET = re.compile(r"KEY|TOKEN|SECRET|PASSWORD|CREDENTIAL", re.IGNORECASE)
_RANK_VARIABLES = ("RANK", "SLURM_PROCID")
_SERVES = re.compile(r"engine|^\S+::(?:DPCoordinator|APIServer)", re.IGNORECASE)
"""Titles of processes that take no part in collectives of the ranks."""
_COMMUNICATES = re.compile(r"gloo|nccl", re.IGNORECASE)
_LONGEST = 4096
_KERNEL_LIMIT = 0.5
"""Seconds that a process in the kernel may take to tell its command line."""
_MOST_MAPS = 1 << 24


@dataclass(frozen=True)
class Placed:
    """A worker with its rank."""

    candidate: Candidate
    rank: int
    source: str


def describe(pid: int) -> Candidate:
    """Returns what can be told of a process without stopping it.

    One that hangs in the kernel can hang whoever reads its command line, so that is left to a
    thread which nobody waits for longer than a moment.
    """
    state = state_of(pid)
    if state in "ZX":
        return Candidate(pid, parent=_parent(pid))
    if state != "D":
        return _describe(pid)
    found: list[Candidate] = []
    thread = threading.Thread(target=lambda: found.append(_describe(pid)), daemon=True)
    thread.start()
    thread.join(_KERNEL_LIMIT)
    return found[0] if found else Candidate(pid, parent=_parent(pid))


def _describe(pid: int) -> Candidate:
    words = _words(pid)
    maps = _maps(pid)
    above = _ancestors(pid)
    threads = _thread_names(pid)
    lines = (words, *(_words(ancestor) for ancestor in above[:_GENERATIONS]))
    return Candidate(
        pid=pid,
        parent=_parent(pid),
        title=printable(_title(words)[:300].strip()),
        words=tuple(words),
        environment=_environment(pid),
        rings=tuple(sorted(set(_rings(maps)))),
        python="python" in maps or "python" in "".join(words[:1]),
        ancestors=tuple(above[1:]),
        name=threads.get(pid, ""),
        communicates=any(map(_COMMUNICATES.search, threads.values())),
        meeting=next(filter(None, map(meeting_points, lines)), ""),
    )


def find_workers(pids: Sequence[int] = ()) -> list[Candidate]:
    """Returns the workers of one job on this machine.

    Args:
        pids: Those the user names; all that can be found when empty. Engine cores among them
            are left out, as their workers are meant.

    Raises:
        UsageError: There are none, or they belong to several jobs.
    """
    if pids:
        for pid in pids:
            if state_of(pid) == "X":
                raise UsageError(f"there is no process {pid}", "give the pids of running workers")
        named = [describe(pid) for pid in dict.fromkeys(pids)]
        return _without_engines(without_relatives(named))
    own = {os.getpid(), *(process.pid for process in psutil.Process().parents())}
    found = [describe(pid) for pid in psutil.pids() if pid not in own and _may_be_python(pid)]
    return choose_job(found)


def choose_job(found: Iterable[Candidate]) -> list[Candidate]:
    """Returns the workers among some processes.

    Raises:
        UsageError: There are none, or they belong to several jobs.
    """
    found = list(found)
    workers = _without_engines(without_relatives([one for one in found if _is_worker(one)]))
    if not workers:
        raise UsageError(
            "no worker was found: no process has a ring, RANK in its environment or a title "
            "such as VLLM::Worker_TP0",
            "name the processes: ncclscope attach PID PID ..."
            + ("" if os.geteuid() == 0 else "; those of other users are seen by root only"),
        )
    jobs = group_jobs(workers)
    if len(jobs) > 1:
        listed = "; ".join(
            f"{' '.join(str(one.pid) for one in job)} ({job[0].title[:40]})" for job in jobs
        )
        raise UsageError(
            f"workers of {len(jobs)} jobs run here", f"name the pids of one of them: {listed}"
        )
    return [*workers, *_parents_of_all(workers, found)]


def give_ranks(workers: Sequence[Candidate], ring_ranks: Mapping[int, int]) -> list[Placed]:
    """Gives each worker its rank, from the best witness that knows all of them.

    Args:
        workers: The workers.
        ring_ranks: By pid, what rings say.

    Returns:
        The workers in the order of their ranks, each with a rank of its own.
    """
    from_titles = ranks_from_labels([parse_title(worker.title) for worker in workers])
    titled = all(parse_title(worker.title) for worker in workers) or (
        len(workers) == 1 and is_worker_title(workers[0].title)
    )
    known: list[tuple[str, list[int | None]]] = [
        ("ring", [ring_ranks.get(worker.pid) for worker in workers]),
        ("RANK", [worker.integer(*_RANK_VARIABLES) for worker in workers]),
    ]
    if titled and from_titles is not None:
        known.append(("title", list(from_titles)))
    known.append(("LOCAL_RANK", [w.integer("LOCAL_RANK", "SLURM_LOCALID") for w in workers]))
    merged: list[tuple[int, str] | None] = [None] * len(workers)
    for source, ranks in known:
        for index, rank in enumerate(ranks):
            if merged[index] is None and rank is not None:
                merged[index] = (rank, source)
        if len({one for one in merged if one}) == len(workers) and _distinct(merged):
            return _sorted(workers, merged)
        if None not in merged and not _distinct(merged):
            break
    if not _distinct(merged):
        merged = [None] * len(workers)
    taken = {one[0] for one in merged if one is not None}
    free = (rank for rank in range(2 * len(workers)) if rank not in taken)
    for index in sorted(range(len(workers)), key=lambda index: workers[index].pid):
        merged[index] = merged[index] or (next(free), "pid")
    return _sorted(workers, merged)


def _distinct(merged: Iterable[tuple[int, str] | None]) -> bool:
    ranks = [one[0] for one in merged if one is not None]
    return len(set(ranks)) == len(ranks)


def _sorted(workers: Sequence[Candidate], merged: Sequence[tuple[int, str] | None]) -> list[Placed]:
    placed = [Placed(w, one[0], one[1]) for w, one in zip(workers, merged, strict=True) if one]
    return sorted(placed, key=lambda one: one.rank)


def _is_worker(one: Candidate) -> bool:
    if one.rings or is_worker_title(one.title):
        return True
    size = one.integer("WORLD_SIZE", "SLURM_NTASKS") or 0
    ranked = one.integer(*_RANK_VARIABLES, "LOCAL_RANK") is not None
    return one.python and ranked and size != 1 and not is_launcher(one.words)


def _parents_of_all(workers: Sequence[Candidate], found: Sequence[Candidate]) -> list[Candidate]:
    """Returns a rank that has started all others, as Lightning's rank 0 does.

    Nothing in its environment says so: it set the variables of its children only.
    """
    known = {worker.pid for worker in workers}
    return [
        one
        for one in found
        if one.pid not in known
        and one.python
        and one.communicates
        and not is_launcher(one.words)
        and workers
        and all(one.pid in (worker.parent, *worker.ancestors) for worker in workers)
    ]


def _without_engines(workers: list[Candidate]) -> list[Candidate]:
    """Leaves out what serves the workers; an engine core is one itself where it has none."""
    return [one for one in workers if not _SERVES.search(one.title)] or workers


def _may_be_python(pid: int) -> bool:
    """Leaves out kernel threads and what has ended, without asking a process that hangs."""
    return state_of(pid) not in "ZX" and Path(f"/proc/{pid}/exe").is_symlink()


def _parent(pid: int) -> int:
    try:
        return psutil.Process(pid).ppid()
    except psutil.Error:
        return 0


def _ancestors(pid: int) -> list[int]:
    """Pids of its parent, its parent's parent, and so on."""
    try:
        return [process.pid for process in psutil.Process(pid).parents()]
    except psutil.Error:
        return []


def _thread_names(pid: int) -> dict[int, str]:
    """Names of its threads, by their numbers; the main thread has the process's."""
    found = {}
    with contextlib.suppress(OSError):
        for task in os.listdir(f"/proc/{pid}/task"):
            with contextlib.suppress(OSError):
                found[int(task)] = Path(f"/proc/{pid}/task/{task}/comm").read_text().strip()
    return found


def _title(words: Sequence[str]) -> str:
    """Returns what a process calls itself, or its command line, without secrets."""
    if words and (" " in words[0] or "::" in words[0]):
        return redact_text(words[0])
    return " ".join(redact_words(words))


def _words(pid: int) -> list[str]:
    try:
        return [word for word in psutil.Process(pid).cmdline() if word]
    except psutil.Error:
        return []


def _environment(pid: int) -> dict[str, str]:
    """Returns the variables of interest of a process, or those that it was handed down.

    A process that sets its title, as vLLM's workers do, wipes out what /proc shows of its
    environment. What is the same for the whole job its parents still show. How many they are is
    not: an engine that one task of Slurm's runs has workers of its own.
    """
    environment: Mapping[str, str] = {}
    kept = _KEPT
    try:
        process: psutil.Process | None = psutil.Process(pid)
        for _ in range(_GENERATIONS):
            if process is None or (environment := process.environ()):
                break
            process, kept = process.parent(), _OF_THE_JOB
    except (psutil.Error, ValueError):
        pass
    return {
        name: printable(redact_text(value[:_LONGEST]))
        for name, value in sorted(environment.items())
        if kept.fullmatch(name) and not _SECRET.search(name)
    }


def _maps(pid: int) -> str:
    try:
        with open(f"/proc/{pid}/maps", encoding=sys.getfilesystemencoding(), errors="replace") as f:
            return f.read(_MOST_MAPS)
    except OSError:
        return ""


def _rings(maps: str) -> Iterable[str]:
    for line in maps.splitlines():
        path = line.partition("/")
        if path[1] and path[2].endswith(layout.SUFFIX):
            yield "/" + path[2]
