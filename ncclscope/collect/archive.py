"""The stream that a node sends: a tar archive of plain files, packed with gzip.

Any tar reads it. It is written in the oldest common dialect (ustar), in which an entry is a
header of 512 bytes with a name and a size, so that taking it apart needs no more than what
is here, and nothing that a hostile one could do is ever interpreted: no links, no devices, no
extended headers, no name that leads elsewhere, no more bytes than were agreed upon.

A ring that is mostly empty is mostly zeros: gzip takes a thousandth of them, and where it is
unpacked they become a hole in the file again.
"""

from __future__ import annotations

import gzip
import os
import time
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from ncclscope.errors import DamagedFileError
from ncclscope.private import make_private
from ncclscope.untrusted import open_regular, printable

__all__ = ["Limits", "Packer", "UnpackedArchive", "unpack"]

_BLOCK = 512
_SLICE = 1 << 18
_LARGEST = 8 << 30
"""What the eleven octal digits of a header hold."""
_LEVEL = 1
"""Of gzip: the node belongs to a job, and zeros are packed as well by the least effort."""
_FIRST = b"\x1f\x8b\x08"
_CHATTER = 1 << 16
"""Bytes before the stream that are overlooked: what a login shell greets with."""
_DEPTH = 16
_NAME, _PREFIX = 100, 155


class Packer:
    """Writes a stream.

    Args:
        target: Where to; it is not closed.
    """

    def __init__(self, target: BinaryIO) -> None:
        self._zip = gzip.GzipFile("", "wb", _LEVEL, target, mtime=0)
        self.files = 0

    def add_bytes(self, name: str, data: bytes) -> None:
        """Add a file of these bytes.

        Raises:
            ValueError: The name is too long or no name.
        """
        self._zip.write(_header(name, len(data)))
        self._zip.write(data)
        self._pad(len(data))
        self.files += 1

    def add_file(self, name: str, path: Path) -> int:
        """Add a file from disk, which somebody may write meanwhile.

        Returns:
            Its size.

        Raises:
            DamagedFileError: It is no regular file.
            OSError: It cannot be opened.
            ValueError: It cannot be named, or is too large.
        """
        with open(open_regular(path), "rb") as file:
            size = os.fstat(file.fileno()).st_size
            self.add_stream(name, file, size)
        return size

    def add_stream(self, name: str, file: BinaryIO, size: int) -> None:
        """Add a file of this size from wherever it comes.

        Raises:
            ValueError: It cannot be named, or is too large.
        """
        self._zip.write(_header(name, size))
        left = size
        while left:
            try:
                data = file.read(min(_SLICE, left))
            except OSError:  # what has been announced has to come
                data = b""
            # One that has been cut short since is filled up: its reader finds that out.
            data = data or bytes(min(_SLICE, left))
            self._zip.write(data)
            left -= len(data)
        self._pad(size)
        self.files += 1

    def close(self) -> None:
        """End the stream; without its end it is known to be cut short."""
        self._zip.write(bytes(2 * _BLOCK))
        self._zip.close()

    def _pad(self, size: int) -> None:
        self._zip.write(bytes(-size % _BLOCK))


@dataclass(frozen=True)
class Limits:
    """How much is taken of one node.

    Attributes:
        size: Bytes of all files, unpacked.
        files: Their number.
    """

    size: int = 256 << 30
    files: int = 1 << 17


@dataclass
class UnpackedArchive:
    """What has come of one stream.

    Attributes:
        files: Whole ones.
        received: Bytes as they came, packed.
        size: Bytes of the whole files.
        complete: Whether the stream came to its end.
    """

    files: int = 0
    received: int = 0
    size: int = 0
    complete: bool = False


def unpack(
    read: Callable[[int], bytes],
    directory: Path,
    found: UnpackedArchive,
    limits: Limits | None = None,
) -> None:
    """Unpack a stream.

    Args:
        read: Gives at most so many bytes of it, and none at its end.
        directory: An empty one of our own.
        found: Told what has come, also of a stream that breaks off.
        limits: How much is taken.

    Raises:
        DamagedFileError: It is no such stream, breaks off, or holds what it must not hold.
            Files that came whole before that are there.
        OSError: A file cannot be written.
    """
    limits = limits or Limits()
    source = _Inflow(read, found)
    while True:
        header = source.take(_BLOCK)
        if not header.strip(b"\0"):
            break
        name, size = _parse(header)
        if found.files >= limits.files or found.size + size > limits.size:
            raise DamagedFileError(
                f"more than {limits.files} files or {limits.size >> 20} MB", "raise the limit"
            )
        _write(source, directory, name, size)
        source.take(-size % _BLOCK)
        found.files += 1
        found.size += size
    source.end()
    found.complete = True


def _write(source: _Inflow, directory: Path, name: str, size: int) -> None:
    path = directory / name
    make_private(path.parent)
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        with open(os.open(path, flags, 0o600), "wb") as file:
            left = size
            while left:
                data = source.take(min(_SLICE, left))
                if data.count(0) == len(data):
                    file.seek(len(data), os.SEEK_CUR)  # a hole
                else:
                    file.write(data)
                left -= len(data)
            file.truncate(size)
    except FileExistsError:
        raise DamagedFileError(f"it holds {printable(name)} twice") from None
    except BaseException:
        path.unlink(missing_ok=True)  # half of a file proves nothing
        raise


class _Inflow:
    """Bytes of a stream, unpacked as they are asked for."""

    def __init__(self, read: Callable[[int], bytes], found: UnpackedArchive) -> None:
        self._read = read
        self._found = found
        self._unzip = zlib.decompressobj(wbits=31)
        self._packed = self._begin()
        self._ready = b""

    def take(self, size: int) -> bytes:
        """Return exactly so many bytes."""
        parts = []
        while size:
            if not self._ready:
                self._ready = self._inflate()
                if not self._ready:
                    raise DamagedFileError("the stream broke off")
            part, self._ready = self._ready[:size], self._ready[size:]
            parts.append(part)
            size -= len(part)
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def end(self) -> None:
        """Go to the end, where the checksum is."""
        while data := self._inflate():
            if data.strip(b"\0"):
                raise DamagedFileError("there is more behind the end of the archive")
        if not self._unzip.eof:
            raise DamagedFileError("the stream broke off")

    def _begin(self) -> bytes:
        """Find the beginning behind what a shell may have printed."""
        data = self._next()
        while (place := data.find(_FIRST)) < 0 or place > _CHATTER:
            more = self._next() if len(data) <= _CHATTER else b""
            if not more:
                said = printable(data[:200].decode("utf-8", "replace").strip().split("\n")[0])
                raise DamagedFileError(f"no archive came, but {said!r}" if said else "nothing came")
            data += more
        return data[place:]

    def _inflate(self) -> bytes:
        while not self._unzip.eof:
            try:
                data = self._unzip.decompress(self._packed, _SLICE)
            except zlib.error as error:
                raise DamagedFileError(f"the stream is damaged: {error}") from None
            self._packed = self._unzip.unconsumed_tail
            if data:
                return data
            if not self._packed and not self._unzip.eof:
                self._packed = self._next()
                if not self._packed:
                    return b""
        return b""

    def _next(self) -> bytes:
        data = self._read(_SLICE)
        self._found.received += len(data)
        return data


def _header(name: str, size: int) -> bytes:
    if size >= _LARGEST:
        raise ValueError(f"it has {size >> 20} MB, more than an archive takes")
    _check(name)
    spelled = name.encode()
    prefix = b""
    if len(spelled) > _NAME:
        cut = spelled.find(b"/", len(spelled) - _NAME - 1)
        prefix, spelled = spelled[:cut], spelled[cut + 1 :]
        if cut < 0 or not spelled or len(prefix) > _PREFIX:
            raise ValueError("its name is too long for an archive")
    fields = (
        spelled.ljust(_NAME, b"\0"),
        b"0000600\0" + b"0000000\0" * 2,
        b"%011o\0" % size,
        b"%011o\0" % int(time.time()),
        b" " * 8,
        b"0",
        bytes(100),
        b"ustar\x0000",
        bytes(64 + 16),
        prefix.ljust(_PREFIX, b"\0"),
        bytes(12),
    )
    block = b"".join(fields)
    return block[:148] + b"%06o\0 " % sum(block) + block[156:]


def _parse(header: bytes) -> tuple[str, int]:
    """Return name and size of an entry.

    Raises:
        DamagedFileError: It is something else than a plain file of a decent name.
    """
    try:
        told = int(header[148:156].strip(b" \0"), 8)
        size = int(header[124:136].strip(b" \0"), 8)
    except ValueError:
        raise DamagedFileError("the archive is damaged") from None
    if told != sum(header[:148]) + sum(header[156:]) + 8 * 32 or size < 0:
        raise DamagedFileError("the archive is damaged")
    spelled = header[:_NAME].partition(b"\0")[0]
    prefix = header[345 : 345 + _PREFIX].partition(b"\0")[0]
    try:
        name = (prefix + b"/" + spelled if prefix else spelled).decode()
        _check(name)
    except ValueError:
        shown = printable((prefix + spelled).decode("utf-8", "replace"))
        raise DamagedFileError(f"it holds an entry named {shown!r}") from None
    if header[156:157] not in (b"0", b"\0"):
        raise DamagedFileError(f"{name} in it is a link or no file")
    return name, size


def _check(name: str) -> None:
    """Raise ValueError for a name that is none below a directory."""
    parts = name.split("/")
    if len(parts) > _DEPTH or any(part in ("", ".", "..") for part in parts):
        raise ValueError("its name leads elsewhere")
    if not name.isprintable() or "\\" in name:
        raise ValueError("its name cannot be printed")
