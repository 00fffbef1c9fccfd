"""Read the files in which processes say that they are not recorded.

Such a process is a rank of the job without calls: others may wait for it, and nothing shows what it
does. The files are written by :mod:`ncclscope.ring.tombstone`.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from pathlib import Path

from ncclscope.errors import DamagedFileError
from ncclscope.model import Rank
from ncclscope.readers.ring.ranks import is_alive
from ncclscope.ring.tombstone import PAGE, VERSION
from ncclscope.untrusted import (
    integer,
    integers,
    number,
    open_regular,
    parse_object,
    printable,
    rank_number,
    text,
)

WHY = "untraced"
"""Among a process's details: why it is not recorded."""
LONGEST_REASON = 600
_MOST_PIDS = 1 << 22
MOST_ANCESTORS = 64
_MAKING_NS = 10 * 10**9
"""A living process that has not finished its ring for this long is not recorded."""
_EARLIER_NS = 60 * 10**9
"""An ended process belongs to an earlier job if it came so long before the first recorded one."""
_TEXTS = ("boot_id", "run")
_NUMBERS = ("parent", "pid_namespace", "start_ticks", "attempt")


def read_untraced(path: Path) -> Rank | None:
    """Read the file of a process that is not recorded.

    Returns:
        A rank without calls; None while its process may still finish its ring.

    Raises:
        DamagedFileError: It is not such a file.
        OSError: It cannot be read.
    """
    with open(open_regular(path, follow=False), "rb") as file:
        return parse_untraced(file.read(PAGE), str(path))


def parse_untraced(page: bytes, source: str) -> Rank | None:
    """Return the rank of :func:`read_untraced`.

    Args:
        page: Contents of the file.
        source: Its path.

    Raises:
        DamagedFileError: It is not the page of such a file.
    """
    about = parse_object(page)
    if about.get("ncclscope_untraced") != VERSION:
        raise DamagedFileError(f"{source} does not say which process is not recorded")
    host, pid = text(about.get("host")) or "", number(about.get("pid"), _MOST_PIDS)
    written = integer(about.get("time_ns")) or 0
    alive = is_alive(about, host, pid)
    now = time.time_ns()
    if about.get("final") is not True and alive and abs(now - written) < _MAKING_NS:
        return None
    why = (text(about.get("why")) or "it gave no reason")[:LONGEST_REASON]
    details: dict[str, object] = {name: text(about.get(name)) or "" for name in _TEXTS}
    details |= {name: integer(about[name]) for name in _NUMBERS if name in about}
    details["ancestors"] = list(integers(about.get("ancestors"), MOST_ANCESTORS) or ())
    return Rank(
        rank=rank_number(about.get("rank")),
        world_size=number(about.get("world_size")),
        host=printable(host),
        pid=pid,
        started_ns=integer(about.get("started_ns")) or None,
        last_seen_ns=now if alive else written or None,
        alive=alive,
        source=printable(source),
        details={**details, WHY: printable(why)},
    )


def separate_untraced(processes: Iterable[Rank]) -> tuple[list[Rank], list[Rank]]:
    """Return the recorded processes, and those that are not."""
    recorded: list[Rank] = []
    untraced: list[Rank] = []
    for one in processes:
        (untraced if WHY in one.details else recorded).append(one)
    return recorded, untraced


def of_job(untraced: Sequence[Rank], recorded: Sequence[Rank]) -> list[Rank]:
    """Return the processes without a record that belong to a job, each once.

    A process that made a ring after all is recorded.

    Args:
        untraced: Processes of the run that are not recorded.
        recorded: Those that are.
    """
    known = {_identity(one) for one in recorded}
    # Where hosts share a directory, only the process's own knows that it lives.
    by_life = sorted(untraced, key=lambda one: one.alive is True)
    left = {_identity(one): one for one in by_life if _identity(one) not in known}
    began = min((one.started_ns or 0 for one in recorded if one.rank >= 0), default=0)
    return [
        one for one in left.values() if one.alive or (one.last_seen_ns or 0) > began - _EARLIER_NS
    ]


def in_order(untraced: Iterable[Rank]) -> list[Rank]:
    """Return processes by rank, those without one last."""
    return sorted(untraced, key=lambda one: (one.rank < 0, one.rank, one.host, one.pid))


def _identity(process: Rank) -> tuple[object, ...]:
    names = ("boot_id", "pid_namespace", "start_ticks")
    return (process.host, process.pid, *(str(process.details.get(name)) for name in names))
