"""Rings of jobs that were over long before: a directory may hold tens of thousands of them.

Reading a ring takes a millisecond, and its header a hundredth of that. The header says when the
process was last heard of. From the newest on, rings are kept whose process was still heard of when
one that is kept began, so that all that can belong to the newest job are.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from ncclscope.errors import DamagedFileError
from ncclscope.ring import layout
from ncclscope.ring.reader import RingFile
from ncclscope.untrusted import integer, open_regular

__all__ = ["MANY", "without_long_over"]

MANY = 1000
"""Rings up to which all are read: a job may have as many ranks."""
SLACK_NS = 600 * 10**9
"""A process that ended so long before another began may have been of the same job."""


def without_long_over(files: Sequence[Path], notes: list[str]) -> list[Path]:
    """Return files without the rings of processes that ended long before the newest job began.

    Args:
        files: Rings, and whatever else is read.
        notes: Told how many are left out.

    Returns:
        The same files where there are few rings. What has no header that can be read is kept, for
        whoever reads it to say so.
    """
    rings = [path for path in files if path.name.endswith(layout.SUFFIX)]
    if len(rings) <= MANY:
        return list(files)
    heard = {path: _last_heard(path) for path in rings}
    cutoff: int | None = None
    old: set[Path] = set()
    for path in sorted(rings, key=lambda path: heard[path] or 0, reverse=True):
        last = heard[path]
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
        notes.append(f"{len(old)} rings of jobs that were over before are left out")
    return [path for path in files if path not in old]


def _last_heard(path: Path) -> int | None:
    """Return when a process showed life for the last time; None where the header is none."""
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
        ring = RingFile(path)
    except (OSError, DamagedFileError):
        return None
    try:
        return integer(ring.about.get("started_ns")) or None
    finally:
        ring.close()
