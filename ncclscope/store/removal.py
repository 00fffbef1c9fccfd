"""Remove entries of the default places."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from pathlib import Path

from ncclscope.ring import layout
from ncclscope.ring.place import UNTRACED_SUFFIX
from ncclscope.store.entry import ALARM, HEALTHY, READ, RUNNING, Entry, is_locked
from ncclscope.store.home import opened

_MARKS = (ALARM, HEALTHY, READ, ".explained")
_BESIDE = (layout.SUFFIX, layout.SUFFIX + layout.MOVED_SUFFIX, ".words")
"""Suffixes of the files that belong to a ring: itself, where it moved, and the guard's note."""
_DEEPEST = 8


def remove(entry: Entry) -> None:
    """Remove a bundle, or the rings of a run with their directory.

    Raises:
        OSError: It cannot be removed, or holds files of another origin besides the rings.
    """
    with opened(entry.base, entry.parts[:-1]) as parent:
        if entry.is_bundle:
            _remove_tree(parent, entry.parts[-1], 0)
            return
        with opened(entry.base, entry.parts) as folder:
            remove_rings(folder, entry.path)
            remove_marks(folder)
        os.rmdir(entry.parts[-1], dir_fd=parent)


def remove_rings(
    folder: int, path: Path, chosen: Callable[[Path], bool] = lambda ring: True
) -> int:
    """Remove the chosen rings of a directory, and the files that belong to them.

    Args:
        folder: The directory's descriptor.
        path: The directory.
        chosen: Return whether to remove a ring.

    Returns:
        Number of rings that are left.
    """
    left = 0
    for name in os.listdir(folder):
        if not name.endswith(layout.SUFFIX):
            continue
        if not chosen(path / name):
            left += 1
            continue
        for suffix in _BESIDE:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(name.removesuffix(layout.SUFFIX) + suffix, dir_fd=folder)
    return left


def remove_marks(folder: int) -> None:
    """Remove marks, pointers to rings elsewhere, and what runs that were killed have left."""
    for name in os.listdir(folder):
        old = name.startswith(RUNNING) and not is_locked(Path(f"/proc/self/fd/{folder}", name))
        if old or name in _MARKS or name.endswith((*_BESIDE[1:], UNTRACED_SUFFIX)):
            with contextlib.suppress(FileNotFoundError):
                os.unlink(name, dir_fd=folder)


def _remove_tree(parent: int, name: str, depth: int) -> None:
    flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
    folder = os.open(name, flags, dir_fd=parent)
    try:
        with os.scandir(folder) as found:
            inside = [(one.name, one.is_dir(follow_symlinks=False)) for one in found]
        for inner, is_folder in inside:
            if is_folder and depth < _DEEPEST:
                _remove_tree(folder, inner, depth + 1)
            else:
                os.unlink(inner, dir_fd=folder)
    finally:
        os.close(folder)
    os.rmdir(name, dir_fd=parent)
