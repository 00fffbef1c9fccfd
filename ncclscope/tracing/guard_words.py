"""The words of the guard: the last running hashes of a process, where its peers can see them.

A ring is laid out to be read afterwards; to find one call in it takes a search. What a peer
needs while it posts stands in a small file beside the ring, ``NAME.words`` beside
``NAME.ring``, at a place that follows from the number of the call:

======== ==================== ==========================================================
offset   size                 contents
======== ==================== ==========================================================
0        4096                 header, see HEADER; the magic is written last
4096     ``SLOTS`` x 32       one slot a communicator: see SLOT
8192     ``SLOTS`` x 8192     its words: running hash after call n at n % ``DEPTH``
======== ==================== ==========================================================

A word is one aligned store of eight bytes. It is believed where it says that all is well;
where it does not, the records in the rings decide.
"""

from __future__ import annotations

import mmap
import os
import struct
import time
from hashlib import blake2b
from pathlib import Path

from ncclscope.errors import RingError
from ncclscope.foreign import open_regular
from ncclscope.ring import layout
from ncclscope.ring.place import SHARE
from ncclscope.tracing import identity

__all__ = ["DEPTH", "SLOTS", "SUFFIX", "PeerWords", "Words", "WordsFile", "digest_of"]

SUFFIX = ".words"
MAGIC = b"ncclword"
VERSION = 1
SLOTS = 128
"""Communicators that are guarded; later ones of a process are not."""
DEPTH = 1024
"""Words of a communicator, a power of two: how far ahead a peer's call is found at once."""

HEADER = struct.Struct("<8sIIIIQQQ40s")
"""magic, version, slots, depth, pid, start ticks, pid namespace, started (ns), boot id"""
SLOT = struct.Struct("<16siIQ")
"""digest, rank, number in the ring, last seq"""
_SLOTS_AT = layout.PAGE
_WORDS_AT = _SLOTS_AT + SLOTS * SLOT.size
_SIZE = _WORDS_AT + SLOTS * DEPTH * 8
_SEQ = 3
"""Place of the last seq among the eight-byte numbers of a slot."""

Words = memoryview
"""Of eight-byte numbers."""


def digest_of(key: str) -> bytes:
    """Returns what a slot knows a communicator by."""
    return blake2b(key.encode("utf-8", "replace"), digest_size=16).digest()


class WordsFile:
    """The words that this process writes.

    Args:
        ring: Its ring, beside which the file is made.

    Raises:
        RingError: There is too little space left.
        OSError: The file cannot be made.
    """

    def __init__(self, ring: Path) -> None:
        self.path = ring.with_suffix(SUFFIX)
        self._used = 0
        descriptor = os.open(
            self.path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600
        )
        try:
            system = os.fstatvfs(descriptor)
            if system.f_bavail * system.f_frsize < _SIZE * SHARE:
                raise RingError(f"too little space left in {ring.parent}")
            os.posix_fallocate(descriptor, 0, _SIZE)
            self._map = mmap.mmap(descriptor, _SIZE)
        except BaseException:
            os.unlink(self.path)
            raise
        finally:
            os.close(descriptor)
        self._numbers = memoryview(self._map).cast("Q")
        pid = os.getpid()
        identity_ = identity.start_ticks(pid), identity.pid_namespace(), time.time_ns()
        fields = VERSION, SLOTS, DEPTH, pid, *identity_, identity.boot_id().encode()
        HEADER.pack_into(self._map, 0, b"", *fields)
        self._map[: len(MAGIC)] = MAGIC

    def add(self, key: str, rank: int, number: int) -> tuple[Words, Words] | None:
        """Makes a communicator known.

        Returns:
            Its words, and its last seq as a view of one number; None when all slots are taken.
        """
        if self._used >= SLOTS:
            return None
        slot = self._used
        self._used += 1
        offset = _SLOTS_AT + slot * SLOT.size
        # The digest comes last: who finds it finds the rest.
        SLOT.pack_into(self._map, offset, b"", rank, number, 0)
        self._map[offset : offset + 16] = digest_of(key)
        return _views(self._numbers, slot)


class PeerWords:
    """The words of another process of this host, opened for reading.

    Args:
        path: The file.

    Attributes:
        pid: Whose they are.
        started_ns: When that process began to record.

    Raises:
        ValueError: They are not those of a process that runs on this host now.
        OSError: The file cannot be read.
    """

    def __init__(self, path: Path) -> None:
        descriptor = open_regular(path, follow=False)
        try:
            if os.fstat(descriptor).st_size < _SIZE:
                raise ValueError(f"{path} is too short")
            self._map = mmap.mmap(descriptor, _SIZE, prot=mmap.PROT_READ)
        finally:
            os.close(descriptor)
        self.path = path
        magic, version, slots, depth, *who = HEADER.unpack_from(self._map)
        self.pid: int = who[0]
        self.started_ns: int = who[3]
        self._ticks: int = who[1]
        self._namespace: int = who[2]
        self._boot: bytes = who[4]
        if (magic, version, slots, depth) != (MAGIC, VERSION, SLOTS, DEPTH):
            raise ValueError(f"{path} has no words of this version")
        self._numbers = memoryview(self._map).cast("Q")

    @property
    def alive(self) -> bool:
        """Whether the process that writes them runs, on this host."""
        own = identity.boot_id().encode(), identity.pid_namespace()
        if (self._boot.rstrip(b"\0"), self._namespace) != own:
            return False
        return bool(self._ticks) and self._ticks == identity.start_ticks(self.pid)

    def find(self, digest: bytes) -> tuple[int, int, Words, Words] | None:
        """Returns rank, number in the ring, words and last seq of a communicator it knows."""
        offset = self._map.find(digest, _SLOTS_AT, _WORDS_AT)
        if offset < 0 or (offset - _SLOTS_AT) % SLOT.size:
            return None
        slot = (offset - _SLOTS_AT) // SLOT.size
        _, rank, number, _ = SLOT.unpack_from(self._map, offset)
        return rank, number, *_views(self._numbers, slot)


def _views(numbers: memoryview, slot: int) -> tuple[Words, Words]:
    start = _WORDS_AT // 8 + slot * DEPTH
    seq = (_SLOTS_AT + slot * SLOT.size) // 8 + _SEQ
    return numbers[start : start + DEPTH], numbers[seq : seq + 1]
