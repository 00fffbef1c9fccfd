"""Read and write directories through fsspec: ``s3://bucket/rings``, ``zip::file:///hang.zip``."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from ncclscope.collect.archive import Limits
from ncclscope.errors import InputError, NothingFoundError, UsageError
from ncclscope.untrusted import printable

_URL = re.compile(r"[a-z][a-z0-9+.-]*(?:://|::)", re.IGNORECASE)


def is_url(text: str) -> bool:
    """Return whether a path is a URL for fsspec."""
    return _URL.match(text) is not None


@dataclass(frozen=True)
class UrlFile:
    """A file behind a URL.

    Attributes:
        name: Path below the directory that the user named.
        size: Size in bytes.
    """

    name: str
    size: int
    _files: Any
    _path: str

    def open(self) -> AbstractContextManager[BinaryIO]:
        """Open the file for reading."""
        opened: AbstractContextManager[BinaryIO] = self._files.open(self._path, "rb")
        return opened


def url_files(url: str, limits: Limits | None = None) -> Iterator[UrlFile]:
    """Yield the files at or below a URL.

    Raises:
        InputError: The URL cannot be read, or fsspec is not installed.
        NothingFoundError: There is no file.
    """
    limits = limits or Limits()
    files, root = _open(url)
    try:
        found = files.find(root, detail=True)
    except Exception as error:
        raise InputError(_cannot(url, "read", error)) from None
    if not found:
        raise NothingFoundError(f"{printable(url)}: no file found")
    if len(found) > limits.files:
        raise InputError(f"{printable(url)} holds {len(found)} files", "name a smaller directory")
    base = root.rstrip("/")
    for path, about in sorted(found.items()):
        name = path[len(base) :].lstrip("/") if path.startswith(base) else path.lstrip("/")
        size = about.get("size")
        if isinstance(size, int) and about.get("type", "file") == "file":
            yield UrlFile(name or path.rpartition("/")[2], size, files, path)


def check_target(url: str) -> None:
    """Check that a target is reachable and empty, before any node is contacted.

    Raises:
        UsageError: The target holds files, or cannot be reached.
    """
    files, root = _open(url)
    try:
        taken = files.exists(root) and bool(files.find(root))
    except Exception as error:
        raise UsageError(_cannot(url, "used", error)) from None
    if taken:
        raise UsageError(f"{printable(url)} is not empty", "name a new directory with -o")


def store(directory: Path, url: str) -> None:
    """Copy all files below a directory to a URL.

    Raises:
        InputError: A file cannot be written.
    """
    files, root = _open(url)
    # fsspec creates file:// directories without a mode, so the umask must restrict them.
    mask = os.umask(0o077)
    try:
        for path in sorted(directory.rglob("*")):
            if path.is_file():
                target = f"{root.rstrip('/')}/{path.relative_to(directory).as_posix()}"
                files.makedirs(target.rpartition("/")[0], exist_ok=True)
                files.put_file(str(path), target)
    except Exception as error:
        raise InputError(
            _cannot(url, "written", error), f"all files are still in {directory}"
        ) from None
    finally:
        os.umask(mask)


def _open(url: str) -> tuple[Any, str]:
    try:
        from fsspec.core import url_to_fs
    except ImportError:
        raise InputError("URLs need fsspec", "pip install fsspec") from None
    try:
        files, root = url_to_fs(url)
    except Exception as error:  # each file system raises its own errors
        raise InputError(_cannot(url, "opened", error)) from None
    return files, str(root)


def _cannot(url: str, what: str, error: Exception) -> str:
    reason = " ".join(str(error).split()) or type(error).__name__
    return printable(f"{url} cannot be {what}: {reason[:200]}")
