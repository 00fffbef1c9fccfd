"""Write the transfers section of a ring; see :mod:`ncclscope.ring.layout` for the bytes.

The section is added to the end of the file with the first transfer, so that rings of processes
without transfers do not grow, and the core in C does not need to know it.
"""

from __future__ import annotations

import mmap
import os
import threading
import zlib
from collections import OrderedDict
from dataclasses import replace
from pathlib import Path
from typing import Any

from ncclscope.clock import now_ns
from ncclscope.errors import RingError
from ncclscope.model.transfer import STATES, Transfer
from ncclscope.ring import layout

_STATE_NUMBERS = {name: number for number, name in enumerate(STATES)}
_DIRECTIONS = ("send", "recv")

Key = tuple[str, str]
"""Direction, and the own engine's id of the request."""


class TransferTable:
    """The transfers of one process, in a fixed number of entries.

    Args:
        path: The ring's file, which this process writes.
        geometry: Offsets and sizes of its other sections.

    Raises:
        RingError: The file is not as its writer left it.
        OSError: The section cannot be added, such as for lack of room.
    """

    def __init__(self, path: Path, geometry: layout.Geometry) -> None:
        size = layout.MAX_TRANSFERS * layout.TRANSFER_ENTRY.size
        descriptor = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            if os.fstat(descriptor).st_size != geometry.total:
                raise RingError(f"{path} has another size than it was created with")
            os.posix_fallocate(descriptor, geometry.total, size)
            self._header = mmap.mmap(descriptor, geometry.strings)
            start = geometry.total // mmap.ALLOCATIONGRANULARITY * mmap.ALLOCATIONGRANULARITY
            self._offset = geometry.total - start
            self._buffer = mmap.mmap(descriptor, self._offset + size, offset=start)
        finally:
            os.close(descriptor)
        layout.put_word(self._header, layout.HEADER_TRANSFERS_SIZE, size)
        # Handshakes end in threads of their own. A signal handler may come while it is held.
        self._lock = threading.RLock()
        self._places: dict[Key, int] = {}
        self._known: dict[Key, Transfer] = {}
        self._ended: OrderedDict[Key, None] = OrderedDict()
        self._turn = 0
        self._lost = 0

    def find(self, direction: str, request: str) -> Transfer | None:
        """Return the newest state of an end; None if it was never recorded or no longer is."""
        return self._known.get((direction, request))

    def put(self, transfer: Transfer) -> None:
        """Record an end that begins, or begins again. It is left out if no entry is free."""
        key = transfer.direction, transfer.request
        with self._lock:
            if key not in self._places:
                if len(self._places) < layout.MAX_TRANSFERS:
                    self._places[key] = len(self._places)
                elif self._ended:
                    oldest, _ = self._ended.popitem(last=False)
                    self._places[key] = self._places.pop(oldest)
                    self._known.pop(oldest, None)
                else:
                    self._lost += 1
                    layout.put_word(self._header, layout.HEADER_TRANSFERS_LOST, self._lost)
                    return
            now = now_ns()
            self._store(key, replace(transfer, begun_ns=now, changed_ns=now))

    def change(self, direction: str, request: str, **changed: Any) -> None:
        """Record a change of an end.

        Nothing happens if the end is unknown, or has ended already.

        Args:
            direction: ``recv`` or ``send``.
            request: The own engine's id of the request.
            **changed: New values of attributes of the :class:`Transfer`.
        """
        key = direction, request
        known = self._known.get(key)
        if known is None or known.ended:
            return
        with self._lock:
            self._store(key, replace(known, changed_ns=now_ns(), **changed))

    def _store(self, key: Key, transfer: Transfer) -> None:
        self._turn += 1
        size = layout.TRANSFER_ENTRY.size
        start = self._offset + self._places[key] * size
        self._buffer[start : start + size] = pack_transfer(transfer, self._turn)
        self._known[key] = transfer
        self._ended.pop(key, None)
        if transfer.ended:
            self._ended[key] = None


def pack_transfer(transfer: Transfer, turn: int) -> bytes:
    """Return the bytes of an entry; texts that are too long lose their end.

    Args:
        transfer: The end of a transfer.
        turn: Number of the change in this process, from 1.
    """
    texts = (
        transfer.id,
        transfer.request,
        transfer.engine,
        transfer.peer,
        transfer.host,
        transfer.phase,
    )
    packed = layout.TRANSFER_ENTRY.pack(
        0,
        _STATE_NUMBERS[transfer.state],
        _DIRECTIONS.index(transfer.direction),
        transfer.port & 0xFFFF,
        turn,
        transfer.begun_ns,
        transfer.changed_ns,
        min(max(transfer.deadline_ns, 0), layout.MOST),
        min(max(transfer.bytes, 0), layout.MOST),
        min(max(transfer.blocks, 0), 0xFFFFFFFF),
        0,
        *(_cut(text, size) for text, size in zip(texts, layout.TRANSFER_TEXTS, strict=True)),
    )
    return zlib.crc32(packed[4:]).to_bytes(4, "little") + packed[4:]


def unpack_transfer(entry: bytes) -> tuple[int, Transfer] | None:
    """Return the turn and the transfer of an entry; None for an unused or damaged one."""
    if zlib.crc32(entry[4:]) != int.from_bytes(entry[:4], "little"):
        return None
    _, state, direction, port, turn, begun, changed, deadline, bytes_, blocks, _, *texts = (
        layout.TRANSFER_ENTRY.unpack(entry)
    )
    if not turn or state >= len(STATES) or direction >= len(_DIRECTIONS):
        return None
    if max(turn, begun, changed, deadline, bytes_) > layout.MOST:
        return None
    id_, request, engine, peer, host, phase = (
        text.rstrip(b"\0").decode("utf-8", "replace") for text in texts
    )
    return turn, Transfer(
        id=id_,
        engine=engine,
        direction=_DIRECTIONS[direction],
        state=STATES[state],
        request=request,
        peer=peer,
        host=host,
        port=port,
        phase=phase,
        blocks=blocks,
        bytes=bytes_,
        begun_ns=begun,
        changed_ns=changed,
        deadline_ns=deadline,
    )


def _cut(text: str, size: int) -> bytes:
    """Return a text in UTF-8 without the characters that do not fit."""
    return text.encode("utf-8", "replace")[:size].decode("utf-8", "ignore").encode()
