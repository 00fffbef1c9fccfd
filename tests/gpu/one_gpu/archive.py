"""Keep what runs leave in a few files of limited size, each whole after every run."""

from __future__ import annotations

import io
import tarfile
import threading
from collections.abc import Iterator
from pathlib import Path

__all__ = ["Archive", "unpack"]

LIMIT = 14 << 20
"""Bytes of a file, after which another one is begun."""


class Archive:
    """Files ``NAME-1.tar``, ``NAME-2.tar`` and so on, each of which holds runs as ``RUN.tar.xz``.

    Args:
        folder: For the files.
        name: Begins their names.
    """

    def __init__(self, folder: Path, name: str) -> None:
        self._folder = folder
        self._name = name
        self._number = 1
        self._lock = threading.Lock()

    def add(self, run: str, parts: dict[str, Path]) -> None:
        """Add the files and directories of a run that exist, by the names that they get."""
        packed = io.BytesIO()
        with tarfile.open(fileobj=packed, mode="w:xz", preset=1) as inner:
            for name, path in parts.items():
                if path.exists():
                    inner.add(path, f"{run}/{name}")
        with self._lock:
            path = self._folder / f"{self._name}-{self._number}.tar"
            if path.exists() and path.stat().st_size + packed.tell() > LIMIT:
                self._number += 1
                path = self._folder / f"{self._name}-{self._number}.tar"
            member = tarfile.TarInfo(f"{run}.tar.xz")
            member.size = packed.tell()
            packed.seek(0)
            with tarfile.open(path, "a") as outer:
                outer.addfile(member, packed)


def unpack(folder: Path, target: Path) -> Iterator[tuple[str, Path]]:
    """Yield the runs that the archives below a directory hold, and where each was unpacked."""
    for path in sorted(folder.rglob("*.tar")):
        with tarfile.open(path) as outer:
            for member in outer.getmembers():
                packed = outer.extractfile(member)
                if packed is None:
                    continue
                with tarfile.open(fileobj=io.BytesIO(packed.read()), mode="r:xz") as inner:
                    inner.extractall(target, filter="data")
                run = member.name.removesuffix(".tar.xz")
                yield run, target / run
