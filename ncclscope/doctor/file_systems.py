"""Where rings can go: which file system that is, and how much room it has."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterable
from pathlib import Path

from ncclscope.analysis.wording import plural
from ncclscope.doctor.check import Check
from ncclscope.ring import layout
from ncclscope.ring.place import SHARE

__all__ = ["check_places", "file_system", "rings_that_fit"]

_RING_SIZE = layout.Geometry.for_capacity(layout.DEFAULT_CAPACITY).total
_SHM = Path("/dev/shm")
_MOUNTS = Path("/proc/self/mountinfo")

ENOUGH = 8
"""Processes of a host that are usually traced: one for each GPU."""

_IN_MEMORY = frozenset({"tmpfs", "ramfs", "hugetlbfs"})
_OVER_A_NETWORK = frozenset(
    {"nfs", "nfs4", "cifs", "smb3", "lustre", "gpfs", "beegfs", "ceph", "afs", "9p", "glusterfs"}
)


def check_places(section: str, named: str | None) -> Iterable[Check]:
    """Looks at shared memory, at where rings go, and at the disk that they go to otherwise.

    Args:
        section: Of the checks.
        named: What ``NCCLSCOPE_DIR`` says.
    """
    yield _shared_memory(section)
    yield _rings(section, Path(named) if named else _SHM)
    yield _fallback(section)


def file_system(path: Path, mounts: str | None = None) -> str:
    """Returns the type of the file system that holds a path; ``"unknown"`` without /proc.

    Args:
        path: Need not exist.
        mounts: The text of ``/proc/self/mountinfo``; read when absent.
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
        # The kernel spells a space in a path \040.
        point = words[4].replace("\\040", " ").rstrip("/") + "/"
        # What was mounted later lies on top.
        if f"{wanted.rstrip('/')}/".startswith(point) and len(point) >= len(best):
            best, found = point, kind[0]
    return found


def rings_that_fit(free: int) -> int:
    """Returns how many rings of the usual size find room one after the other.

    Each takes at most a part of what is free when it is made, so that the job keeps the rest.

    Args:
        free: Bytes.
    """
    return max(0, free // _RING_SIZE - SHARE + 1)


def _shared_memory(section: str) -> Check:
    if not _SHM.is_dir():
        return Check(section, "shm", "bad", "there is no /dev/shm", "set NCCLSCOPE_DIR")
    usage = shutil.disk_usage(_SHM)
    state = f"/dev/shm: {file_system(_SHM)}, {_room(usage)} MB free"
    fits = rings_that_fit(usage.free)
    if fits >= ENOUGH:
        return Check(section, "shm", "ok", state)
    return Check(
        section,
        "shm",
        "warn",
        f"{state}: room for {plural(fits, 'ring')}; others go to disk",
        "docker run --shm-size 2g; Kubernetes: an emptyDir with medium Memory at /dev/shm",
    )


def _rings(section: str, place: Path) -> Check:
    existing = next((p for p in (place, *place.parents) if p.exists()), Path("/"))
    try:
        usage = shutil.disk_usage(existing)
    except OSError as error:
        return Check(section, "rings", "bad", f"{existing}: {error.strerror}", "name another place")
    if not os.access(existing, os.W_OK):
        return Check(
            section, "rings", "bad", f"{existing} cannot be written to", "set NCCLSCOPE_DIR"
        )
    kind, fits = file_system(existing), rings_that_fit(usage.free)
    state = f"{existing}: {kind}, {_room(usage)} MB free, a ring takes {_RING_SIZE / 1e6:.1f} MB"
    if fits < 1:
        return Check(
            section,
            "rings",
            "bad",
            f"{state}: too little",
            "docker run --shm-size 2g, fewer records (NCCLSCOPE_RECORDS), or NCCLSCOPE_DIR on disk",
        )
    if kind in _OVER_A_NETWORK:
        return Check(
            section,
            "rings",
            "warn",
            f"{state}: a server that hangs would hold up the job's stores",
            "NCCLSCOPE_DIR=/dev/shm/DIR, and `ncclscope collect` afterwards",
        )
    lasts = "memory: outlives the process, not the machine" if kind in _IN_MEMORY else "disk"
    return Check(section, "rings", "ok", f"{state} ({lasts})")


def _fallback(section: str) -> Check:
    """Where rings go for which there is no room where they should be."""
    place = Path(tempfile.gettempdir())
    try:
        usage = shutil.disk_usage(place)
    except OSError as error:
        return Check(section, "fallback", "warn", f"{place}: {error.strerror}", "set TMPDIR")
    state = f"{place}: {file_system(place)}, {_room(usage)} MB free"
    if rings_that_fit(usage.free) >= 1 and os.access(place, os.W_OK):
        return Check(section, "fallback", "ok", f"{state}, where the other place is full")
    return Check(
        section, "fallback", "warn", f"{state}: no room for a ring", "set TMPDIR to another disk"
    )


def _room(usage: shutil._ntuple_diskusage) -> str:
    return f"{usage.free >> 20:,} of {usage.total >> 20:,}"
