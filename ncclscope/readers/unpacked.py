"""Read gzip files up to where they break off."""

from __future__ import annotations

import io
import zlib
from pathlib import Path
from typing import IO, Any

from ncclscope.errors import DamagedFileError

__all__ = ["Unpacked"]


class Unpacked(io.RawIOBase):
    """The contents of a gzip file up to where it breaks off: its writer may have been killed."""

    def __init__(self, packed: IO[bytes], path: Path) -> None:
        self._packed = packed
        self._path = path
        self._member = zlib.decompressobj(wbits=31)
        self._given = False

    def readable(self) -> bool:
        """Return True."""
        return True

    def readinto(self, buffer: Any) -> int:
        """Decompress into `buffer`; return the number of bytes, 0 at the end or a break."""
        try:
            while True:
                data = self._member.unconsumed_tail or self._packed.read(1 << 16)
                if self._member.eof:  # another gzip member may follow
                    data = self._member.unused_data + data
                    self._member = zlib.decompressobj(wbits=31)
                found = self._member.decompress(data, len(buffer))
                if found:
                    self._given = True
                    buffer[: len(found)] = found
                if found or not data:
                    return len(found)
        except zlib.error as error:
            if self._given:
                return 0
            raise DamagedFileError(f"{self._path} cannot be decompressed: {error}") from None
