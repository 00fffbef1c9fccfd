"""Read from /proc/locks for whose file locks processes wait.

The kernel lists each lock with the process that took it, and below it those that wait for it. A
process that a rank has started counts as the rank.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from ncclscope.model import Run
from ncclscope.procfs import ancestors

_LOCKS = Path("/proc/locks")
_MOST_BYTES = 1 << 22
_LINE = re.compile(r"(\d{1,18}): *(->)? *[A-Z]{1,16} +\S{1,32} +\S{1,32} +(-?\d{1,9}) ")


def holders_of(ranks: Mapping[int, int], locks: Path = _LOCKS) -> dict[int, tuple[int, ...]]:
    """Return which ranks hold the file locks for which each rank waits, by rank.

    Args:
        ranks: The ranks of this host, by pid.
        locks: The kernel's list.

    Returns:
        The holders, -1 for any other process; ranks that wait for no lock are left out.
    """
    try:
        with locks.open("rb") as file:
            text = file.read(_MOST_BYTES).decode("ascii", "replace")
    except OSError:
        return {}
    holders: dict[str, int] = {}
    found: dict[int, set[int]] = {}
    for line in text.splitlines():
        if (match := _LINE.match(line)) is None:
            continue
        rank = _rank_of(int(match[3]), ranks)
        if not match[2]:
            holders[match[1]] = rank
        elif rank >= 0:
            found.setdefault(rank, set()).add(holders.get(match[1], -1))
    return {rank: tuple(sorted(of)) for rank, of in sorted(found.items())}


def _rank_of(pid: int, ranks: Mapping[int, int]) -> int:
    if pid <= 0 or pid in ranks:
        return ranks.get(pid, -1)
    return next((ranks[one] for one in ancestors(pid) if one in ranks), -1)


def with_locks(run: Run, locks: Path = _LOCKS) -> Run:
    """Return a run with the file locks for which its living processes wait.

    A bundle has those of its time, perhaps of another host.

    Args:
        run: The run of rings of this host.
        locks: The kernel's list.
    """
    if run.snapshot is not None:
        return run
    living = {rank.pid: rank.rank for rank in run.ranks if rank.alive is True and rank.pid}
    return replace(run, locks=holders_of(living, locks)) if living else run
