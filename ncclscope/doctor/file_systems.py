"""Check the places for rings: their file systems and free space."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable
from pathlib import Path

from ncclscope.doctor.check import Check, Outcome
from ncclscope.errors import os_reason
from ncclscope.ring import layout
from ncclscope.ring.place import SHARED_MEMORY, SPARE, bases
from ncclscope.ring.room import first_parts
from ncclscope.wording.names import plural

_RING_SIZE = sum(
    size for _, size in first_parts(layout.Geometry.for_capacity(layout.DEFAULT_CAPACITY))
)
"""Bytes that a ring reserves at first."""
_MOUNTS = Path("/proc/self/mountinfo")

ENOUGH = 8
"""Usual number of traced processes per host: one per GPU."""

_IN_MEMORY = frozenset({"tmpfs", "ramfs", "hugetlbfs"})
_OVER_A_NETWORK = frozenset(
    {"nfs", "nfs4", "cifs", "smb3", "lustre", "gpfs", "beegfs", "ceph", "afs", "9p", "glusterfs"}
)


def check_places(section: str, named: str | None) -> Iterable[Check]:
    """Check shared memory, the rings' directory, and the disk used when that is full.

    Args:
        section: Section of the checks.
        named: Value of ``NCCLSCOPE_DIR``.
    """
    yield Check(section, "shm", *_shared_memory())
    yield Check(section, "rings", *_rings(Path(named) if named else SHARED_MEMORY))
    yield Check(section, "fallback", *_fallback())


def file_system(path: Path, mounts: str | None = None) -> str:
    """Return the type of the file system that holds a path; ``"unknown"`` without /proc.

    Args:
        path: The path, which need not exist.
        mounts: Text of ``/proc/self/mountinfo``; read from there by default.
    """
    if mounts is None:
        try:
            mounts = _MOUNTS.read_text(errors="surrogateescape")
        except OSError:
            return "unknown"
    wanted = os.path.realpath(path)
    best, found = "", "unknown"
    for line in mounts.splitlines():
        left, _, right = line.partition(" - ")
        words, kind = left.split(), right.split()
        if len(words) < 5 or not kind:
            continue
        # The kernel writes a space in a path as \040.
        point = words[4].replace("\\040", " ").rstrip("/") + "/"
        # A later mount at the same point hides an earlier one.
        if f"{wanted.rstrip('/')}/".startswith(point) and len(point) >= len(best):
            best, found = point, kind[0]
    return found


def rings_that_fit(free: int) -> int:
    """Return how many rings of the default size fit, created one after another.

    All rings of a host may take only a part of the free space, so that the job keeps the rest.

    Args:
        free: Free space in bytes.
    """
    return free // (_RING_SIZE * SPARE)


def _shared_memory() -> Outcome:
    if not SHARED_MEMORY.is_dir():
        return "bad", "there is no /dev/shm", "set NCCLSCOPE_DIR"
    usage = shutil.disk_usage(SHARED_MEMORY)
    state = f"/dev/shm: {file_system(SHARED_MEMORY)}, {_room(usage)} MB free"
    fits = rings_that_fit(usage.free)
    if fits >= ENOUGH:
        return "ok", state
    return (
        "warn",
        f"{state}: room for {plural(fits, 'ring')}; further rings go to disk",
        "docker run --shm-size 2g; Kubernetes: an emptyDir with medium Memory at /dev/shm",
    )


def _rings(place: Path) -> Outcome:
    existing = next((p for p in (place, *place.parents) if p.exists()), Path("/"))
    try:
        usage = shutil.disk_usage(existing)
    except OSError as error:
        return "bad", f"{existing}: {error.strerror}", "set NCCLSCOPE_DIR"
    if not os.access(existing, os.W_OK):
        return "bad", f"{existing} cannot be written to", "set NCCLSCOPE_DIR"
    kind, fits = file_system(existing), rings_that_fit(usage.free)
    state = f"{existing}: {kind}, {_room(usage)} MB free, a ring takes {_RING_SIZE / 1e6:.1f} MB"
    if fits < 1:
        return (
            "bad",
            f"{state}: no room for a ring",
            "docker run --shm-size 2g, fewer records (NCCLSCOPE_RECORDS), or NCCLSCOPE_DIR on disk",
        )
    if kind in _OVER_A_NETWORK:
        return (
            "warn",
            f"{state}: a file server that hangs would block the job",
            "NCCLSCOPE_DIR=/dev/shm/DIR, and `ncclscope collect` afterwards",
        )
    lasts = "memory: survives the process, not a reboot" if kind in _IN_MEMORY else "disk"
    return "ok", f"{state} ({lasts})"


def _fallback() -> Outcome:
    """Check the directories that rings use when their own has no room."""
    refused = []
    for place in (base for base in bases() if base != SHARED_MEMORY):
        try:
            usage = shutil.disk_usage(place)
        except OSError as error:
            refused.append(f"{place}: {os_reason(error)}")
            continue
        state = f"{place}: {file_system(place)}, {_room(usage)} MB free"
        if rings_that_fit(usage.free) >= 1 and os.access(place, os.W_OK):
            return "ok", f"{state}, used when the rings' directory is full"
        refused.append(f"{state}: no room for a ring")
    return "warn", "; ".join(refused), "set TMPDIR to another disk"


def _room(usage: shutil._ntuple_diskusage) -> str:
    return f"{usage.free >> 20:,} of {usage.total >> 20:,}"
