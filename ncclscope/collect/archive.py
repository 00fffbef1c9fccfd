"""The stream that a node sends: a tar archive of plain files, compressed with gzip.

Any tar reads it: its headers are those of ustar, from the standard library. The loop around them is
ours, because it must be safe against hostile archives. It rejects links, devices, extended headers,
paths outside the target, and more bytes than the limit.

After each file follows its statement, a JSON object in ``sums/NUMBER.json``: the file's name, the
number of bytes that could be read, and the SHA-256 digest of all that were sent. A header announces
a size, so a file that can no longer be read is filled up with zeros. The receiver cuts these off
again and renames the file to ``NAME.cut``: its readers then say that it is not read. A file that
arrives without its statement, since the stream broke off, is dropped.

An almost empty ring is mostly zeros. gzip shrinks them by a factor of 200, and unpacking turns them
into holes of a sparse file again.
"""

from __future__ import annotations

import contextlib
import gzip
import hashlib
import io
import json
import os
import tarfile
import time
import zlib
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO, NamedTuple

from ncclscope.errors import DamagedFileError
from ncclscope.private import make_private
from ncclscope.readers.nodes import CUT_SUFFIX
from ncclscope.untrusted import number, open_regular, parse_object, printable

_BLOCK = 512
_SLICE = 1 << 18
_LEVEL = 1
"""gzip level: the node's CPUs belong to the job, and zeros shrink as well at level 1."""
_FIRST = b"\x1f\x8b\x08"
_CHATTER = 1 << 16
"""Bytes before the stream that are skipped, such as a login shell's greeting."""
_DEPTH = 16
_SUMS = "sums/"
_LONGEST_SUM = 1 << 12


class Packer:
    """Writes an archive.

    Args:
        target: Binary stream to write to; it stays open.

    Attributes:
        files: Number of files so far.
        cut: Names of those that could not be read to their end.
    """

    def __init__(self, target: BinaryIO) -> None:
        self._zip = gzip.GzipFile("", "wb", _LEVEL, target, mtime=0)
        self.files = 0
        self.cut: list[str] = []

    def add_bytes(self, name: str, data: bytes) -> None:
        """Add a file with these bytes.

        Raises:
            ValueError: The name is too long or not valid.
        """
        self.add_stream(name, io.BytesIO(data), len(data))

    def add_file(self, name: str, path: Path) -> int:
        """Add a file from disk, which another process may be writing.

        Returns:
            Its size in bytes.

        Raises:
            DamagedFileError: It is not a regular file.
            OSError: It cannot be opened.
            ValueError: Its name is not valid, or it is too large.
        """
        with open(open_regular(path), "rb") as file:
            size = os.fstat(file.fileno()).st_size
            self.add_stream(name, file, size)
        return size

    def add_stream(self, name: str, file: BinaryIO, size: int) -> None:
        """Add a file from a stream.

        Args:
            name: Name in the archive.
            file: Binary stream to read.
            size: Size in bytes; a shorter stream is filled up with zeros and stated as cut.

        Raises:
            ValueError: The name is not valid, or the file is too large.
        """
        digest = hashlib.sha256()
        self._zip.write(_header(name, size))
        left, read, broken = size, 0, False
        while left:
            data = b""
            if not broken:
                # The header has announced the size, so an error cannot end the file.
                with contextlib.suppress(OSError):
                    data = file.read(min(_SLICE, left))
            read += len(data)
            broken = not data
            data = data or bytes(min(_SLICE, left))
            digest.update(data)
            self._zip.write(data)
            left -= len(data)
        self._zip.write(bytes(-size % _BLOCK))
        stated = {"name": name, "size": size, "read": read, "sha256": digest.hexdigest()}
        line = json.dumps(stated).encode() + b"\n"
        self._zip.write(_header(f"{_SUMS}{self.files}.json", len(line)))
        self._zip.write(line + bytes(-len(line) % _BLOCK))
        self.files += 1
        self.cut += [name] * (read < size)

    def close(self) -> None:
        """Write the end of the archive, without which a reader knows it as truncated."""
        self._zip.write(bytes(2 * _BLOCK))
        self._zip.close()


@dataclass(frozen=True)
class Limits:
    """Limits on what one node may send.

    Attributes:
        size: Maximum bytes of all files, uncompressed.
        files: Maximum number of files.
    """

    size: int = 256 << 30
    files: int = 1 << 17


@dataclass
class UnpackedArchive:
    """Progress of unpacking one stream.

    Attributes:
        files: Number of complete files.
        received: Compressed bytes received.
        size: Bytes of the complete files.
        complete: Whether the end of the stream arrived.
        cut: Names of the files that the node could not read to their end.
    """

    files: int = 0
    received: int = 0
    size: int = 0
    complete: bool = False
    cut: list[str] = field(default_factory=list)


def unpack(
    read: Callable[[int], bytes],
    directory: Path,
    found: UnpackedArchive,
    limits: Limits | None = None,
) -> None:
    """Unpack a stream.

    Args:
        read: Return at most the given number of bytes of the stream; empty at its end.
        directory: An empty private directory to write to.
        found: Progress, updated also if the stream breaks off.
        limits: Maximum size and number of files.

    Raises:
        DamagedFileError: The stream is not an archive, breaks off, or holds a forbidden entry.
            Files that arrived completely before that are kept.
        OSError: A file cannot be written.
    """
    limits = limits or Limits()
    source = _Inflow(read, found)
    newest: _Arrived | None = None
    try:
        while (header := source.take(_BLOCK)).strip(b"\0"):
            name, size = _parse(header)
            if newest is not None and name.startswith(_SUMS) and size <= _LONGEST_SUM:
                _check_sum(source.take(size), directory, newest, found)
                newest = None
            else:
                if found.files >= limits.files or found.size + size > limits.size:
                    raise DamagedFileError(
                        f"more than {limits.files} files or {limits.size >> 20} MB",
                        "raise the limit",
                    )
                digest = _write(source, directory, name, size)
                newest = _Arrived(name, size, digest)
                found.files += 1
                found.size += size
            source.take(-size % _BLOCK)
        source.end()
    except BaseException:
        if newest is not None:  # it may be filled up with zeros
            (directory / newest.name).unlink(missing_ok=True)
            found.files -= 1
            found.size -= newest.size
        raise
    found.complete = True


class _Arrived(NamedTuple):
    """A file of which the statement has not arrived, and its SHA-256 digest."""

    name: str
    size: int
    digest: str


def _check_sum(data: bytes, directory: Path, file: _Arrived, found: UnpackedArchive) -> None:
    """Compare a file with its statement; rename it if it was cut.

    Raises:
        DamagedFileError: It is not the file that was sent.
    """
    stated = parse_object(data)
    if (stated.get("name"), stated.get("sha256")) != (file.name, file.digest):
        raise DamagedFileError(f"{printable(file.name)} is not as it was sent")
    read = number(stated.get("read"), file.size)
    if read < file.size:
        path = directory / file.name
        os.truncate(path, read)
        path.rename(path.with_name(path.name + CUT_SUFFIX))
        found.cut.append(file.name)


def _write(source: _Inflow, directory: Path, name: str, size: int) -> str:
    """Write a file and return its SHA-256 digest."""
    path = directory / name
    digest = hashlib.sha256()
    make_private(path.parent)
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        with open(os.open(path, flags, 0o600), "wb") as file:
            left = size
            while left:
                data = source.take(min(_SLICE, left))
                digest.update(data)
                if data.count(0) == len(data):
                    file.seek(len(data), os.SEEK_CUR)  # leave a hole in a sparse file
                else:
                    file.write(data)
                left -= len(data)
            file.truncate(size)
    except FileExistsError:
        raise DamagedFileError(f"it contains {printable(name)} twice") from None
    except BaseException:
        path.unlink(missing_ok=True)  # an incomplete file is no evidence
        raise
    return digest.hexdigest()


class _Inflow:
    """A stream, decompressed on demand."""

    def __init__(self, read: Callable[[int], bytes], found: UnpackedArchive) -> None:
        self._read = read
        self._found = found
        self._unzip = zlib.decompressobj(wbits=31)
        self._packed = self._begin()
        self._ready = b""

    def take(self, size: int) -> bytes:
        """Return exactly `size` bytes."""
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
        """Read to the end of the stream, so that zlib verifies the checksum."""
        while data := self._inflate():
            if data.strip(b"\0"):
                raise DamagedFileError("data follows the end of the archive")
        if not self._unzip.eof:
            raise DamagedFileError("the stream broke off")

    def _begin(self) -> bytes:
        """Skip output of a login shell; return the data from the archive's beginning on."""
        data = self._next()
        while (place := data.find(_FIRST)) < 0 or place > _CHATTER:
            more = self._next() if len(data) <= _CHATTER else b""
            if not more:
                text = printable(data[:200].decode("utf-8", "replace").strip().split("\n")[0])
                raise DamagedFileError(
                    f"received {text!r} instead of an archive" if text else "received no data"
                )
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
    _check(name)
    info = tarfile.TarInfo(name)
    info.size, info.mode, info.mtime = size, 0o600, int(time.time())
    try:
        return info.tobuf(tarfile.USTAR_FORMAT)
    except ValueError:  # it has eleven octal digits for the size, and 255 bytes for the name
        raise ValueError("its name or its size exceeds the limit of the archive format") from None


def _parse(header: bytes) -> tuple[str, int]:
    """Return name and size (bytes) of an entry.

    Raises:
        DamagedFileError: The entry is not a plain file with a safe name.
    """
    try:
        info = tarfile.TarInfo.frombuf(header, "utf-8", "surrogateescape")
    except tarfile.HeaderError:
        raise DamagedFileError("the archive is damaged") from None
    try:
        _check(info.name)
    except ValueError:
        shown = printable(info.name)
        raise DamagedFileError(f"it contains an entry with the unsafe name {shown!r}") from None
    if info.type not in (tarfile.REGTYPE, tarfile.AREGTYPE):
        raise DamagedFileError(f"its entry {info.name} is a link or not a regular file")
    if info.size < 0:
        raise DamagedFileError("the archive is damaged")
    return info.name, info.size


def _check(name: str) -> None:
    """Raise ValueError unless a name is a path below the target directory."""
    parts = name.split("/")
    if len(parts) > _DEPTH or any(part in ("", ".", "..") for part in parts):
        raise ValueError("its name is not a path below the target directory")
    if not name.isprintable() or "\\" in name:
        raise ValueError("its name has unprintable characters")
