"""Group processes into jobs, and leave out those that only serve ranks.

Data loader workers inherit the environment of their rank, and a launcher has the environment
that it passes to its ranks. Ranks of one job may have been started separately.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import zip_longest
from pathlib import Path

import psutil

from ncclscope.attach.candidate import Candidate
from ncclscope.attach.titles import is_engine_title, is_server_title, is_worker_title
from ncclscope.errors import DamagedFileError
from ncclscope.model.ties import tied
from ncclscope.readers.ring.cursor import RingCursor
from ncclscope.readers.ring.transfers import engine_transfers
from ncclscope.ring.image import RingImage

_RANKS = ("RANK", "SLURM_PROCID", "LOCAL_RANK")
_PORT = 8000
"""Port of a server of vLLM's without that option."""
_NUMBERS = re.compile(r"\d+")
_LAUNCHERS = {"torchrun", "ncclscope", "py-spy", "accelerate", "deepspeed", "mpirun", "horovodrun"}
_LAUNCHING_MODULES = {
    "torch.distributed.run",
    "torch.distributed.launch",
    "accelerate.commands.launch",
    "deepspeed.launcher.launch",
    "ncclscope",
}
_HELPERS = re.compile(r"multiprocessing\.(?:resource_tracker|forkserver)")
_MEETING = re.compile(
    r"--?(data-parallel-address|dpa|data-parallel-rpc-port|dpp|dp-master-ip|dp-master-port|"
    r"master[-_]addr|master[-_]port|dist-init-addr|rdzv[-_]endpoint)(?:=(.*))?"
)
"""Options by which separately started servers find each other."""
_LOADER = "pt_data_worker"


def is_launcher(words: Sequence[str]) -> bool:
    """Return whether a command line is a launcher or a helper process, not a rank."""
    return (
        any(word.rpartition("/")[2] in _LAUNCHERS for word in words[:3])
        or bool(_LAUNCHING_MODULES & set(words[:4]))
        or any(map(_HELPERS.search, words[:4]))
    )


def idle_launchers(found: Sequence[Candidate]) -> list[Candidate]:
    """Return processes of torchrun that have no Python process below them."""
    above = {pid for one in found for pid in (one.parent, *one.ancestors)}
    return [one for one in found if _is_torchrun(one.words) and one.pid not in above]


def _is_torchrun(words: Sequence[str]) -> bool:
    return "torch.distributed.run" in words[:4] or any(
        word.rpartition("/")[2] == "torchrun" for word in words[:2]
    )


def meeting_points(words: Sequence[str]) -> str:
    """Return the rendezvous options of a command line; empty if it has none."""
    found = []
    for word, following in zip_longest(words, words[1:], fillvalue=""):
        option = _MEETING.fullmatch(word)
        if option:
            value = following if option[2] is None else option[2]
            found.append(f"{option[1].replace('_', '-')}={value}")
    return " ".join(sorted(found))


def without_relatives(workers: Sequence[Candidate]) -> list[Candidate]:
    """Leave out launchers, and processes that only inherited their parent's environment."""
    by_pid = {worker.pid: worker for worker in workers}
    dropped = {one.pid for one in workers if one.name == _LOADER or is_launcher(one.words)}
    for worker in workers:
        above = (by_pid[pid] for pid in (worker.parent, *worker.ancestors) if pid in by_pid)
        parent = next(above, None)
        if parent is None or (is_worker_title(worker.title) and worker.title != parent.title):
            continue
        ranks = [worker.environment.get(name) for name in _RANKS]
        if ranks != [parent.environment.get(name) for name in _RANKS]:
            continue
        if worker.communicates and not parent.communicates:
            dropped.add(parent.pid)
        elif any(ranks) or parent.communicates:
            dropped.add(worker.pid)
    return [worker for worker in workers if worker.pid not in dropped] or list(workers)


def without_supervisors(workers: Sequence[Candidate]) -> list[Candidate]:
    """Leave out processes that show no rank where others do, such as a script that starts ranks.

    A process whose threads communicate is a rank, as Lightning's rank 0. If the ranks are known
    only from rings or titles, one that has not got that far shows neither: of those without,
    only what has started ranks is left out.
    """
    ranked = [one for one in workers if _shows_rank(one)]
    by_variable = any(one.integer(*_RANKS) is not None for one in ranked)
    above = {pid for one in ranked for pid in (one.parent, *one.ancestors)}
    others = {
        one.pid
        for one in workers
        if not (_shows_rank(one) or one.communicates) and (by_variable or one.pid in above)
    }
    return [one for one in workers if one.pid not in others]


def with_ranks_below(
    named: Sequence[Candidate], below: Callable[[int], Sequence[Candidate]]
) -> list[Candidate]:
    """Replace each process that is no rank by the ranks among its descendants, if it has any.

    A script that calls torch.multiprocessing.spawn below torchrun has a RANK, as its children
    have; only they make process groups. The agent of torchrun has none.

    Args:
        named: The processes that the user named.
        below: Return the descendants of a process, described.
    """
    found: dict[int, Candidate] = {}
    for one in named:
        started = () if _takes_part(one) else tuple(_ranks_among(below(one.pid), one))
        found.update({worker.pid: worker for worker in started or (one,)})
    return list(found.values())


def engines_of(
    workers: Sequence[Candidate], describe: Callable[[int], Candidate]
) -> list[Candidate]:
    """Return the engines that started workers and send them their requests.

    Args:
        workers: The workers.
        describe: Return what is known about a process.
    """
    known = {one.pid for one in workers}
    above = dict.fromkeys(one.parent for one in workers if one.parent not in known)
    return [one for one in map(describe, above) if is_engine_title(one.title)]


def servers_of(
    engines: Sequence[Candidate],
    describe: Callable[[int], Candidate],
    below: Callable[[int], Sequence[Candidate]],
) -> list[Candidate]:
    """Return the processes that receive requests for engines, and pass messages between them.

    Args:
        engines: The engines, each of which a server started.
        describe: Return what is known about a process.
        below: Return the children of a process, described.
    """
    found: dict[int, Candidate] = {}
    for pid in dict.fromkeys(one.parent for one in engines if is_engine_title(one.title)):
        beside = [one for one in below(pid) if is_server_title(one.title)]
        found.update({one.pid: one for one in (describe(pid), *beside) if one.python})
    return list(found.values())


def served_port(words: Sequence[str]) -> int:
    """Return the port on which a server of vLLM's serves, by its command line."""
    options = (word.partition("=") for word in words)
    for (name, _, value), following in zip(options, [*words[1:], ""], strict=False):
        if name == "--port" and (value or following).isdecimal():
            return int(value or following)
    return _PORT


def _ranks_among(descendants: Sequence[Candidate], above: Candidate) -> Iterable[Candidate]:
    numbers = [above.environment.get(name) for name in _RANKS]
    for one in descendants:
        is_numbered = one.python and one.integer(*_RANKS) is not None
        has_own = is_numbered and numbers != [one.environment.get(name) for name in _RANKS]
        is_rank = _takes_part(one) or has_own
        if is_rank and one.name != _LOADER and not is_launcher(one.words):
            yield one


def _takes_part(one: Candidate) -> bool:
    """Return whether a process shows that it takes part in collectives."""
    return bool(one.rings) or one.communicates or is_worker_title(one.title)


def _shows_rank(one: Candidate) -> bool:
    return bool(one.rings) or is_worker_title(one.title) or one.integer(*_RANKS) is not None


def group_jobs(workers: Sequence[Candidate]) -> list[list[Candidate]]:
    """Return the workers of each job.

    Two workers belong to one job if their environments or command lines name the same
    rendezvous, or if they share a communicator, an engine that one transfers from, or a TCP
    connection. Connections count only if
    no two workers claim the same rank.
    """
    jobs = _joined([[worker] for worker in workers], _named)
    if len(jobs) > 1:
        jobs = _joined(jobs, _communicators)
    if len(jobs) > 1:
        jobs = _joined(jobs, _engines)
    if len(jobs) > 1 and _have_ranks_of_their_own(workers):
        connections = _connections({worker.pid for worker in workers})
        jobs = _joined(jobs, lambda worker: connections.get(worker.pid, ()))
    return jobs


def _joined(
    jobs: Sequence[list[Candidate]], ties: Callable[[Candidate], Iterable[str]]
) -> list[list[Candidate]]:
    """Merge the jobs that share a tie."""
    found = tied(jobs, lambda job: {tie for worker in job for tie in ties(worker)})
    return [[worker for job in group for worker in job] for group in found]


def _named(worker: Candidate) -> Iterable[str]:
    ties = [tie for tie in (worker.job, worker.meeting) if tie]
    return ties or [_kin(worker)]


def _communicators(worker: Candidate) -> Iterable[str]:
    for ring in worker.rings:
        with contextlib.suppress(DamagedFileError, OSError):
            yield from RingCursor(Path(ring)).comm_cursors


def _engines(worker: Candidate) -> Iterable[str]:
    """Yield the ids of a worker's engine and of those that it exchanges transfers with."""
    for ring in worker.rings:
        with contextlib.suppress(DamagedFileError, OSError), RingImage(Path(ring)) as image:
            for one in engine_transfers(image):
                yield from filter(None, (one.engine, one.peer))


def _have_ranks_of_their_own(workers: Sequence[Candidate]) -> bool:
    ranks = [[worker.environment.get(name) for name in _RANKS[:2]] for worker in workers]
    known = [
        next(filter(None, names), worker.title)
        for names, worker in zip(ranks, workers, strict=True)
    ]
    return len(set(known)) == len(known)


def _connections(pids: set[int]) -> Mapping[int, set[str]]:
    """Return TCP connections by pid; both ends of one have the same name."""
    found: dict[int, set[str]] = {}
    with contextlib.suppress(psutil.Error, OSError):
        for one in psutil.net_connections("tcp"):
            if one.pid in pids and one.laddr and one.raddr:
                ends = sorted((str(tuple(one.laddr)), str(tuple(one.raddr))))
                found.setdefault(one.pid, set()).add(" ".join(ends))
    return found


def _kin(worker: Candidate) -> str:
    """Return what workers of an unnamed job share: an ancestor, else the command line.

    The command line is for workers whose launcher has ended: they have no common ancestor.
    """
    root = _root(worker.pid)
    if root != worker.pid:
        return f"below {root}"
    return _NUMBERS.sub("#", " ".join(worker.words) or worker.title)


def _root(pid: int) -> int:
    """Return the outermost ancestor that is Python or a known launcher."""
    root = pid
    try:
        for ancestor in psutil.Process(pid).parents():
            if not re.search(r"python|vllm|ray|torchrun|sglang", ancestor.name(), re.IGNORECASE):
                break
            root = ancestor.pid
    except psutil.Error:
        pass
    return root
