"""The cursor files of the guard: a process's newest running hashes, readable by its peers.

A ring is laid out to be read afterwards; finding one call in it takes a search. The hashes that a
peer needs while it posts are in shared memory, at an offset computed from the call's number:

======== ==================== ==========================================================
offset   size                 contents
======== ==================== ==========================================================
0        ``SLOTS`` x 32       one slot a communicator: see SLOT
4096     ``SLOTS`` x 8192     its hashes: running hash after call n at n % ``DEPTH``
======== ==================== ==========================================================

Truncating a mapped file kills every process that touches the map (SIGBUS). So the hashes are in
an unnamed file (memfd) with a sealed size, which no process can truncate. A note beside the ring,
``NAME.words`` beside ``NAME.ring``, shows peers where to find it: see HEADER. Only notes, memory
and rings of the same user are trusted.

A hash is one aligned store of eight bytes. Equal hashes are trusted; where hashes differ, the
records in the rings decide.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import mmap
import os
import struct
import time
from hashlib import blake2b
from pathlib import Path

from ncclscope import procfs
from ncclscope.untrusted import open_regular

SUFFIX = ".words"
MAGIC = b"ncclword"
VERSION = 2
SLOTS = 128
"""Maximum number of guarded communicators; later ones of a process are not guarded."""
DEPTH = 1024
"""Hashes kept for each communicator, a power of two: the lead at which a peer is still found."""

HEADER = struct.Struct("<8sIIIIQQQ40sQQQQ")
"""Magic, version, slots, depth, pid, start ticks, pid namespace, started (ns), boot id;
descriptor of the memory in that process, and its inode; device and inode of the ring."""
SLOT = struct.Struct("<16siIQ")
"""digest, rank, number in the ring, last seq"""
_WORDS_AT = SLOTS * SLOT.size
_SIZE = _WORDS_AT + SLOTS * DEPTH * 8
_SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL
_NO_EXEC = 8
"""MFD_NOEXEC_SEAL, which some systems require (vm.memfd_noexec=2) and old kernels do not know."""
_SEQ = 3
"""Index of the last seq among the eight-byte numbers of a slot."""

Hashes = memoryview
"""A view of unsigned 64-bit numbers."""


def digest_of(key: str) -> bytes:
    """Return the 16-byte digest of a communicator's key that identifies its slot."""
    return blake2b(key.encode("utf-8", "replace"), digest_size=16).digest()


class CursorFile:
    """The cursor file that this process writes.

    Args:
        ring: The process's ring, beside which the note is written.

    Attributes:
        path: The note.
        inode: Device and inode of the ring's file.

    Raises:
        OSError: There is no memory for the hashes, or no space for the note.
    """

    def __init__(self, ring: Path) -> None:
        self.path = ring.with_suffix(SUFFIX)
        self._used = 0
        self._descriptor = _new_memory()
        try:
            # Reserve memory now: a store without memory left also raises SIGBUS.
            os.posix_fallocate(self._descriptor, 0, _SIZE)
            fcntl.fcntl(self._descriptor, fcntl.F_ADD_SEALS, _SEALS)
            self._map = mmap.mmap(self._descriptor, _SIZE)
            self._numbers = memoryview(self._map).cast("Q")
            status = os.lstat(ring)
            self.inode = status.st_dev, status.st_ino
            self._write_note()
        except BaseException:
            os.close(self._descriptor)
            raise

    def _write_note(self) -> None:
        pid = os.getpid()
        identity_ = procfs.start_ticks(pid), procfs.pid_namespace(), time.time_ns()
        boot = procfs.boot_id().encode()
        memory = os.fstat(self._descriptor).st_ino
        places = self._descriptor, memory, *self.inode
        data = HEADER.pack(MAGIC, VERSION, SLOTS, DEPTH, pid, *identity_, boot, *places)
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        note = os.open(self.path, flags, 0o600)
        try:
            if os.write(note, data) < len(data):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        except BaseException:
            os.unlink(self.path)
            raise
        finally:
            os.close(note)

    def add(self, key: str, rank: int, number: int) -> tuple[Hashes, Hashes] | None:
        """Add a communicator.

        Args:
            key: The communicator's key.
            rank: Global rank of this process.
            number: The communicator's number in the ring.

        Returns:
            Its hashes ``[DEPTH]``, and its last seq ``[1]``; None when all slots are taken.
        """
        if self._used >= SLOTS:
            return None
        slot = self._used
        self._used += 1
        offset = slot * SLOT.size
        # Write the digest last: a peer that finds it also finds the rest.
        SLOT.pack_into(self._map, offset, b"", rank, number, 0)
        self._map[offset : offset + 16] = digest_of(key)
        return _views(self._numbers, slot)


class PeerCursor:
    """The cursor file of another process of this user and host, opened for reading.

    Args:
        path: The note of that process.

    Attributes:
        pid: Process id.
        started_ns: When that process began to record, nanoseconds since 1970.
        inode: Device and inode of its ring's file.

    Raises:
        DamagedFileError: The note, or the memory, could be another user's.
        ValueError: The process does not run on this host, or the file is not of this version.
        OSError: The file cannot be read.
    """

    def __init__(self, path: Path) -> None:
        descriptor = open_regular(path, follow=False, owned=True)
        try:
            data = os.read(descriptor, HEADER.size)
        finally:
            os.close(descriptor)
        if len(data) < HEADER.size:
            raise ValueError(f"{path} is too short")
        self.path = path
        magic, version, slots, depth, *who = HEADER.unpack(data)
        if (magic, version, slots, depth) != (MAGIC, VERSION, SLOTS, DEPTH):
            raise ValueError(f"{path} is not a cursor file of this version")
        self.pid: int = who[0]
        self.started_ns: int = who[3]
        self.inode: tuple[int, int] = who[7], who[8]
        self._ticks: int = who[1]
        self._namespace: int = who[2]
        self._boot: bytes = who[4]
        if not self.alive:
            raise ValueError(f"{path} belongs to a process that does not run here")
        self._map = _map_memory(self.pid, who[5], who[6])
        self._numbers = memoryview(self._map).cast("Q")

    @property
    def alive(self) -> bool:
        """Whether the process that writes the file runs on this host."""
        own = procfs.boot_id().encode(), procfs.pid_namespace()
        if (self._boot.rstrip(b"\0"), self._namespace) != own:
            return False
        return bool(self._ticks) and self._ticks == procfs.start_ticks(self.pid)

    def find(self, digest: bytes) -> tuple[int, int, Hashes, Hashes] | None:
        """Return rank, number in the ring, hashes and last seq of a communicator, if known."""
        offset = self._map.find(digest, 0, _WORDS_AT)
        if offset < 0 or offset % SLOT.size:
            return None
        slot = offset // SLOT.size
        _, rank, number, _ = SLOT.unpack_from(self._map, offset)
        return rank, number, *_views(self._numbers, slot)


def _views(numbers: memoryview, slot: int) -> tuple[Hashes, Hashes]:
    start = _WORDS_AT // 8 + slot * DEPTH
    seq = slot * SLOT.size // 8 + _SEQ
    return numbers[start : start + DEPTH], numbers[seq : seq + 1]


def _new_memory() -> int:
    flags = os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING
    with contextlib.suppress(OSError):
        return os.memfd_create("ncclscope-words", flags | _NO_EXEC)
    return os.memfd_create("ncclscope-words", flags)


def _map_memory(pid: int, number: int, inode: int) -> mmap.mmap:
    """Map the memory of another process, if it matches the note and cannot be truncated."""
    # The kernel lets only the process's user, and root, open its descriptors.
    path = f"/proc/{pid}/fd/{number}"
    # The program may have closed it and reused its number for a file that must not be reopened.
    _check_memory(path, os.stat(path), inode)
    descriptor = open_regular(path)
    try:
        _check_memory(path, os.fstat(descriptor), inode)
        # No other kind of file has seals: EINVAL.
        if not fcntl.fcntl(descriptor, fcntl.F_GET_SEALS) & fcntl.F_SEAL_SHRINK:
            raise ValueError(f"{path} could be truncated")
        return mmap.mmap(descriptor, _SIZE, prot=mmap.PROT_READ)
    finally:
        os.close(descriptor)


def _check_memory(path: str, found: os.stat_result, inode: int) -> None:
    if (found.st_uid, found.st_ino) != (os.geteuid(), inode) or found.st_size < _SIZE:
        raise ValueError(f"{path} is not the memory of a cursor file")
