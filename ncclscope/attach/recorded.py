"""The processes that recorded into a directory: which of them run on this host, if any."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterator
from pathlib import Path

from ncclscope.errors import DamagedFileError, UsageError
from ncclscope.model import Rank
from ncclscope.model.metadata import SERVERS
from ncclscope.readers import ring_files
from ncclscope.readers.ring.ranks import read_ring


def named_directory() -> Path | None:
    """Return the directory with rings that NCCLSCOPE_DIR names; None without one."""
    named = os.environ.get("NCCLSCOPE_DIR") or os.environ.get("NCCL_SCOPE_DIR")
    directory = Path(named) if named else None
    return directory if directory is not None and any(ring_files(directory)) else None


def living_pids(directory: Path) -> tuple[int, ...]:
    """Return the pids of the processes of this host that record into a directory.

    Raises:
        UsageError: No process has recorded there, or none of them runs here.
    """
    processes = [
        one
        for one in _processes(directory)
        if "launcher" not in one.details and one.details.get("role") not in SERVERS
    ]
    read = f"ncclscope diagnose {shlex.quote(str(directory))}"
    if not processes:
        raise UsageError(
            f"{directory} holds no ring, and attach examines running processes",
            f"name their pids; for the verdict on records: {read}",
        )
    if living := tuple(sorted(one.pid for one in processes if one.alive)):
        return living
    have_ended = all(one.alive is False or one.exited for one in processes)
    ended = "have ended" if have_ended else "do not run on this host"
    raise UsageError(
        f"the processes that recorded into {directory} {ended}, and attach examines running ones",
        f"for the verdict on their records: {read}",
    )


def _processes(directory: Path) -> Iterator[Rank]:
    for path in ring_files(directory):
        try:
            yield read_ring(path)
        except (DamagedFileError, OSError):
            continue
