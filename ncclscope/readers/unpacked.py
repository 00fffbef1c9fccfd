"""Read gzip files up to where they break off."""

from __future__ import annotations

import io
import zlib
from pathlib import Path
from typing import IO, Any

from ncclscope.errors import DamagedFileError
from ncclscope.readers.budget import Budget

_PIECE = 1 << 13
_CHECK_EVERY = 1 << 10


class Unpacked(io.RawIOBase):
    """The contents of a gzip file up to where it breaks off: its writer may have been killed.

    Args:
        packed: The file, at its beginning.
        path: Its path, for messages.
        budget: Limits the time; None for no limit.
    """

    def __init__(self, packed: IO[bytes], path: Path, budget: Budget | None = None) -> None:
        self._packed = packed
        self._path = path
        self._budget = budget
        self._member = zlib.decompressobj(wbits=31)
        self._ahead = b""
        self._members = 0
        self._given = False

    def readable(self) -> bool:
        """Return True."""
        return True

    def readinto(self, buffer: Any) -> int:
        """Decompress into `buffer`; return the number of bytes, 0 at the end or a break."""
        try:
            while True:
                if self._member.eof:  # another gzip member may follow
                    self._members += 1
                    if self._budget is not None and not self._members % _CHECK_EVERY:
                        self._budget.check(f"{self._members} gzip members")
                    self._ahead = self._member.unused_data
                    self._member = zlib.decompressobj(wbits=31)
                # Read only after what is there is used up: a file may have any number of members.
                data = self._ahead or self._packed.read(_PIECE)
                found = self._member.decompress(data, len(buffer))
                self._ahead = self._member.unconsumed_tail
                if found:
                    self._given = True
                    buffer[: len(found)] = found
                if found or not data:
                    return len(found)
        except zlib.error as error:
            if self._given:
                return 0
            raise DamagedFileError(f"{self._path} cannot be decompressed: {error}") from None
