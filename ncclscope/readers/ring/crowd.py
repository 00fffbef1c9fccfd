"""Leave out rings of jobs that ended long ago: a directory may hold tens of thousands.

Reading a ring takes a millisecond; its header takes a hundredth of that and holds the last
heartbeat. Starting with the newest, a ring is kept if its last heartbeat is later than the start
of a kept ring. So every ring that may belong to the newest job is kept.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from ncclscope.errors import DamagedFileError
from ncclscope.model.text import plural
from ncclscope.ring import layout
from ncclscope.ring.reader import RingFile
from ncclscope.untrusted import integer, open_regular

MANY = 1000
"""Up to this number of rings, all are read: a job may have this many ranks."""
SLACK_NS = 600 * 10**9
"""A process may belong to the same job if it ended up to this long before another began."""


def without_long_over(files: Sequence[Path], notes: list[str]) -> list[Path]:
    """Return files without the rings of processes that ended long before the newest job began.

    Args:
        files: Rings and other input files.
        notes: Receives a note with the number of rings left out.

    Returns:
        The remaining files; all of them if there are few rings. A ring with an unreadable header
        is kept, so that its reader can report the error.
    """
    rings = [path for path in files if path.name.endswith(layout.SUFFIX)]
    if len(rings) <= MANY:
        return list(files)
    heartbeats = {path: _last_heartbeat(path) for path in rings}
    cutoff: int | None = None
    old: set[Path] = set()
    for path in sorted(rings, key=lambda path: heartbeats[path] or 0, reverse=True):
        last = heartbeats[path]
        if last is None:
            continue
        if cutoff is not None and last < cutoff:
            old.add(path)
            continue
        started = _started(path)
        if started is not None:
            began = started - SLACK_NS
            cutoff = began if cutoff is None else min(cutoff, began)
    if old:
        notes.append(f"{plural(len(old), 'ring')} of earlier jobs left out")
    return [path for path in files if path not in old]


def _last_heartbeat(path: Path) -> int | None:
    """Return a ring's last heartbeat in ns since 1970; None if it has no valid header."""
    try:
        descriptor = open_regular(path)
        try:
            header = os.pread(descriptor, layout.HEADER_HEARTBEAT + 8, 0)
        finally:
            os.close(descriptor)
    except (OSError, DamagedFileError):
        return None
    if not header.startswith(layout.MAGIC) or len(header) < layout.HEADER_HEARTBEAT + 8:
        return None
    return int.from_bytes(header[layout.HEADER_HEARTBEAT :], "little") or None


def _started(path: Path) -> int | None:
    try:
        with RingFile(path) as ring:
            return integer(ring.about.get("started_ns")) or None
    except (OSError, DamagedFileError):
        return None
