"""Find the processes of a job, and their ranks.

A process is a worker if its title says so, if RANK or LOCAL_RANK is in its environment, if it
has mapped a ring, or if the user names its pid. Children that inherited a rank's environment,
such as data loader workers, do not count.
"""

from __future__ import annotations

import contextlib
import os
import re
import sys
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import psutil

from ncclscope.attach.candidate import Candidate
from ncclscope.attach.kinship import (
    group_jobs,
    idle_launchers,
    is_launcher,
    meeting_points,
    with_ranks_below,
    without_relatives,
    without_supervisors,
)
from ncclscope.attach.proc_sample import state_of
from ncclscope.attach.titles import is_worker_title, parse_title, ranks_from_labels
from ncclscope.errors import DamagedFileError, UsageError
from ncclscope.model.metadata import SERVERS
from ncclscope.redaction import redact_text, redact_words
from ncclscope.ring import layout
from ncclscope.ring.image import RingImage
from ncclscope.untrusted import printable

__all__ = [
    "Candidate",
    "Placed",
    "choose_job",
    "describe",
    "find_workers",
    "give_ranks",
    "left_out",
]

_T = TypeVar("_T")

_OF_THE_JOB = re.compile(
    r"MASTER_ADDR|MASTER_PORT|TORCHELASTIC_RUN_ID|CUDA_DEVICE_ORDER|"
    r"NCCL_.*|TORCH_NCCL_.*|TORCH_FR_.*|NCCLSCOPE.*|VLLM_(?!API_KEY).*"
)
_KEPT = re.compile(
    r"RANK|LOCAL_RANK|WORLD_SIZE|LOCAL_WORLD_SIZE|GROUP_RANK|SLURM_PROCID|SLURM_NTASKS|"
    rf"SLURM_LOCALID|CUDA_VISIBLE_DEVICES|{_OF_THE_JOB.pattern}"
)
"""Variables that describe the job; no other part of an environment is kept."""
_GENERATIONS = 5
"""Ancestors to search: from a worker over its engine to the started command, plus wrappers."""
_SECRET = re.compile(r"KEY|TOKEN|SECRET|PASSWORD|CREDENTIAL", re.IGNORECASE)
_RANK_VARIABLES = ("RANK", "SLURM_PROCID")
_SERVES = re.compile(r"engine|^\S+::(?:DPCoordinator|APIServer)", re.IGNORECASE)
"""Titles of processes that do not take part in the ranks' collectives."""
_CUDA_DEVICE = Path("/dev/nvidiactl")
_COMMUNICATES = re.compile(r"gloo|nccl(?!scope)", re.IGNORECASE)
_LONGEST = 4096
_KERNEL_LIMIT = 0.5
"""Seconds to wait for the command line of a process in state D (uninterruptible sleep)."""
_MOST_MAPS = 1 << 24


@dataclass(frozen=True)
class Placed:
    """A worker with its rank."""

    candidate: Candidate
    rank: int
    source: str


def describe(pid: int) -> Candidate:
    """Return what is known about a process without stopping it.

    Reading the command line of a process that hangs in the kernel can hang the reader. A
    thread reads it, and this function waits only 0.5 s for that thread.
    """
    state = state_of(pid)
    if state in "ZX":
        return Candidate(pid, parent=_ask(pid, psutil.Process.ppid) or 0)
    if state != "D":
        return _describe(pid)
    found: list[Candidate] = []
    thread = threading.Thread(target=lambda: found.append(_describe(pid)), daemon=True)
    thread.start()
    thread.join(_KERNEL_LIMIT)
    return found[0] if found else Candidate(pid, parent=_ask(pid, psutil.Process.ppid) or 0)


def _describe(pid: int) -> Candidate:
    words = _words(pid)
    maps = _maps(pid)
    above = [process.pid for process in _ask(pid, psutil.Process.parents) or ()]
    threads = _thread_names(pid)
    lines = (words, *(_words(ancestor) for ancestor in above[:_GENERATIONS]))
    return Candidate(
        pid=pid,
        parent=_ask(pid, psutil.Process.ppid) or 0,
        title=printable(_title(words)[:300].strip()),
        words=tuple(words),
        environment=_environment(pid),
        rings=tuple(sorted(set(_rings(maps)))),
        python="python" in maps or "python" in "".join(words[:1]),
        ancestors=tuple(above[1:]),
        name=threads.get(pid, ""),
        communicates=any(map(_COMMUNICATES.search, threads.values())),
        meeting=next(filter(None, map(meeting_points, lines)), ""),
        uses_gpu="libcuda.so" in maps if maps else _CUDA_DEVICE.exists(),
    )


def find_workers(pids: Sequence[int] = ()) -> list[Candidate]:
    """Return the workers of one job on this machine.

    Args:
        pids: Pids that the user named; if empty, search all processes. Engine cores are left
            out if their workers are among them, and processes without a rank if others have one.
            The ranks that a launcher has started replace it.

    Raises:
        UsageError: There are no workers, or they belong to several jobs.
    """
    if pids:
        for pid in pids:
            if state_of(pid) == "X":
                raise UsageError(f"there is no process {pid}", "give the pids of running workers")
        described = [describe(pid) for pid in dict.fromkeys(pids)]
        named = with_ranks_below(described, _descendants)
        return _without_engines(without_supervisors(without_relatives(named)))
    own = {os.getpid(), *(process.pid for process in psutil.Process().parents())}
    found = [describe(pid) for pid in psutil.pids() if pid not in own and _may_be_python(pid)]
    return choose_job(found)


def left_out(pids: Sequence[int], workers: Sequence[Candidate]) -> tuple[str, ...]:
    """Return notes on the processes that the user named and that are not among the workers."""
    kept = {one.pid for one in workers}
    others = [pid for pid in dict.fromkeys(pids) if pid not in kept]
    added = [one for one in workers if one.pid not in pids] if pids else []
    above = {pid for one in added for pid in (one.parent, *one.ancestors)}
    replaced = [pid for pid in others if pid in above]
    rest = [pid for pid in others if pid not in above]
    notes = []
    if replaced:
        listed = " ".join(map(str, sorted(one.pid for one in added)))
        what = "no rank; what it" if len(replaced) == 1 else "no ranks; what they"
        notes.append(f"{_be(replaced)} {what} started is sampled instead: {listed}")
    if rest:
        notes.append(
            f"{_be(rest)} left out: no rank, but a launcher, an engine or a helper of the ranks"
        )
    return (*notes, *_unknown_children(workers))


def _be(pids: Sequence[int]) -> str:
    listed = " ".join(map(str, pids))
    return f"process {listed} is" if len(pids) == 1 else f"processes {listed} are"


def _unknown_children(workers: Sequence[Candidate]) -> Iterable[str]:
    """Yield a note on each process that shows no group and has started Python processes."""
    for one in workers:
        if one.rings or one.communicates or is_worker_title(one.title):
            continue
        children = [
            child.pid
            for child in _descendants(one.pid)
            if child.python and not is_launcher(child.words)
        ]
        if children:
            yield (
                f"process {one.pid} may be a launcher and no rank: name the ranks among what it "
                f"started, {' '.join(map(str, children))}"
            )


def children(pid: int) -> list[Candidate]:
    """Return what is known about the processes that a process has started."""
    return _descendants(pid, recursive=False)


def _descendants(pid: int, *, recursive: bool = True) -> list[Candidate]:
    """Return what is known about the processes below one, without this process."""
    with contextlib.suppress(psutil.Error):
        below = psutil.Process(pid).children(recursive=recursive)
        return [describe(one.pid) for one in below if one.pid != os.getpid()]
    return []


def choose_job(found: Iterable[Candidate]) -> list[Candidate]:
    """Return the workers among some processes.

    Raises:
        UsageError: There are no workers, or they belong to several jobs.
    """
    found = list(found)
    workers = _without_engines(without_relatives([one for one in found if _is_worker(one)]))
    if not workers:
        if idle := idle_launchers(found):
            one = idle[0]
            raise UsageError(
                f"no worker was found: torchrun (pid {one.pid}) has started none",
                "it may wait for other nodes at its rendezvous; see that all of them run torchrun "
                f"with the same options ({_shared_options(one.words)})",
            )
        raise UsageError(
            "no worker was found: no process has a ring, RANK in its environment or a title "
            "such as VLLM::Worker_TP0",
            "name the processes: ncclscope attach PID PID ..."
            + ("" if os.geteuid() == 0 else "; only root sees processes of other users"),
        )
    jobs = group_jobs(workers)
    if len(jobs) > 1:
        listed = "; ".join(
            f"{' '.join(str(one.pid) for one in job)} ({job[0].title[:40]})" for job in jobs
        )
        raise UsageError(
            f"workers of {len(jobs)} jobs run here", f"name the pids of one job: {listed}"
        )
    return [*workers, *_parents_of_all(workers, found)]


def _shared_options(words: Sequence[str]) -> str:
    """Return the options of a torchrun that must be the same on all nodes."""
    options = [word.partition("=") for word in words]
    nodes = ""
    for (name, _, value), following in zip(options, [*words[1:], ""], strict=True):
        if name == "--nnodes":
            nodes = f"nnodes={value or following}"
    return " ".join(filter(None, (nodes, meeting_points(words)))) or "its default"


def give_ranks(workers: Sequence[Candidate], ring_ranks: Mapping[int, int]) -> list[Placed]:
    """Assign a rank to each worker, from the most reliable source that covers all of them.

    Args:
        workers: The workers.
        ring_ranks: Global rank by pid, from their rings.

    Returns:
        The workers sorted by rank; no two have the same rank.
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
    """Return a rank that started all the others, as Lightning's rank 0 does.

    Its own environment has no RANK: it sets the variables of its children only.
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
    """Leave out engines and servers; an engine core without workers is a worker itself.

    A process without a title that has started titled ones, such as engines, is a server.
    """
    titled = [one for one in workers if is_worker_title(one.title)]
    above = {pid for one in titled for pid in (one.parent, *one.ancestors)}
    served = [one for one in workers if one in titled or one.pid not in above]
    return [one for one in served if not _SERVES.search(one.title)] or served


def _may_be_python(pid: int) -> bool:
    """Return whether a process is neither a kernel thread nor ended; never blocks on it."""
    return state_of(pid) not in "ZX" and Path(f"/proc/{pid}/exe").is_symlink()


def _ask(pid: int, question: Callable[[psutil.Process], _T]) -> _T | None:
    """Return what psutil says about a process; None if it has ended or must not be read."""
    try:
        return question(psutil.Process(pid))
    except psutil.Error:
        return None


def _thread_names(pid: int) -> dict[int, str]:
    """Return its threads' names by thread id; the main thread's id is the pid."""
    found = {}
    with contextlib.suppress(OSError):
        for task in os.listdir(f"/proc/{pid}/task"):
            with contextlib.suppress(OSError):
                found[int(task)] = Path(f"/proc/{pid}/task/{task}/comm").read_text().strip()
    return found


def _title(words: Sequence[str]) -> str:
    """Return a process's title or its command line, with secrets redacted."""
    if words and (" " in words[0] or "::" in words[0]):
        return redact_text(words[0])
    return " ".join(redact_words(words))


def _words(pid: int) -> list[str]:
    return [word for word in _ask(pid, psutil.Process.cmdline) or () if word]


def _environment(pid: int) -> dict[str, str]:
    """Return the variables of interest of a process, or those that it inherited.

    A process that sets its title, as vLLM's workers do, overwrites its environment in /proc.
    Its ancestors still show the variables that are common to the job. The world size is not
    one of them: an engine that runs as one Slurm task starts several workers.
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
        if path[1] and path[2].endswith(layout.SUFFIX) and not _is_of_server("/" + path[2]):
            yield "/" + path[2]


def _is_of_server(path: str) -> bool:
    """Return whether a ring is that of a process which only receives requests."""
    with contextlib.suppress(DamagedFileError, OSError), RingImage(Path(path)) as image:
        return bool(image.read_about().get("role") in SERVERS)
    return False
