"""Read rings that a bundle holds compressed, as ``NAME.ring.gz``."""

from __future__ import annotations

import tempfile
import zlib
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import IO, BinaryIO

from ncclscope.errors import DamagedFileError
from ncclscope.model import Rank
from ncclscope.private import PACKED_SUFFIX
from ncclscope.readers.budget import Budget
from ncclscope.readers.ring.ranks import read_ring
from ncclscope.ring import layout
from ncclscope.untrusted import open_regular

RING_SUFFIX = layout.SUFFIX + PACKED_SUFFIX
_PIECE = 1 << 16
_MOST_GROWTH = 64
"""A ring full of records shrinks to a tenth; only holes, which take no space, shrink further."""
_GROWTH_FREE = 64 << 20


def read_packed_ring(path: Path) -> Rank:
    """Read a compressed ring; see :func:`~ncclscope.readers.ring.ranks.read_ring`.

    It is expanded to a temporary file, which has no name while it is read.

    Raises:
        DamagedFileError: The file is damaged, no ring, or grows beyond its budget.
        OSError: It cannot be read, or there is no room to expand it.
    """
    with (
        open(open_regular(path, follow=False), "rb") as packed,
        tempfile.NamedTemporaryFile(prefix="ncclscope-", suffix=layout.SUFFIX) as plain,
    ):
        _expand(packed, plain.file, path)
        try:
            rank = read_ring(Path(plain.name))
        except DamagedFileError as error:
            said = (text.replace(plain.name, str(path)) for text in (error.message, error.help))
            raise DamagedFileError(*said) from None
    again = None if rank.again is None else partial(read_packed_ring, path)
    return replace(rank, source=str(path), again=again)


def _expand(packed: BinaryIO, plain: IO[bytes], path: Path) -> None:
    """Write the contents of a gzip file with one member; zeros become holes."""
    size = packed.seek(0, 2)
    packed.seek(0)
    budget = Budget(str(path), size)
    left = _GROWTH_FREE + _MOST_GROWTH * size
    member = zlib.decompressobj(wbits=31)
    ahead = b""
    while not member.eof:
        ahead = ahead or packed.read(_PIECE)
        try:
            data = member.decompress(ahead, _PIECE)
        except zlib.error as error:
            raise DamagedFileError(f"{path} cannot be decompressed: {error}") from None
        if not data and not ahead:
            raise DamagedFileError(f"{path} is truncated")
        ahead = member.unconsumed_tail
        budget.check()
        if data.count(0) == len(data):
            plain.seek(len(data), 1)
            continue
        left -= len(data)
        if left < 0:
            raise budget.too_large("nothing that can be used")
        plain.write(data)
    plain.truncate()
    plain.flush()
