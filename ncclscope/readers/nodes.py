"""Read the descriptions (``node.json``) that nodes add when their files are collected.

Rings of several nodes are copied at different times, and read on a machine without their
processes. So the node notes which processes were alive when it copied their rings. Otherwise the
processes of the node that was copied first would seem to have died before the others.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from ncclscope.errors import DamagedFileError
from ncclscope.model import Rank
from ncclscope.readers.ring.ranks import is_alive
from ncclscope.readers.untraced import read_untraced
from ncclscope.ring.place import UNTRACED_SUFFIX
from ncclscope.ring.reader import RingFile
from ncclscope.untrusted import integer, open_regular, parse, printable, text

NODE_FILE = "node.json"
CUT_SUFFIX = ".cut"
"""Ends the name of a file that its node could not read to the end: it is not evidence."""
VERSION = 1
_LEVELS = 8
_MOST_BYTES = 1 << 26
_MOST_NOTES, _LONGEST_NOTE = 100, 500
_HEARTBEAT_NS = 2_000_000_000
"""A process with a heartbeat in the last 2 s, two intervals, counts as alive."""


def describe_ring(path: Path) -> dict[str, Any]:
    """Return whether the process of a ring is alive; empty if the file is not a ring.

    Args:
        path: A ring, or the file of a process without a record.

    Returns:
        ``alive``: true, false, or null if unknown; ``beats``: whether its heartbeat is recent.
    """
    try:
        if path.suffix == UNTRACED_SUFFIX:
            stone = read_untraced(path)
            return {} if stone is None else {"alive": stone.alive, "beats": False}
        with RingFile(path) as ring:
            about = ring.about
            pid = integer(about.get("pid")) or 0
            alive = is_alive(about, text(about.get("host")) or "", pid)
            is_recent = abs(time.time_ns() - ring.heartbeat_ns) < _HEARTBEAT_NS
    except (DamagedFileError, OSError):
        return {}
    return {"alive": alive, "beats": is_recent and alive is not False}


class Nodes:
    """The node descriptions in the folders above files, each read once."""

    def __init__(self) -> None:
        self._known: dict[Path, Mapping[str, Any] | None] = {}

    def annotate(self, rank: Rank) -> Rank:
        """Return a rank with its node's statement of whether the process was alive."""
        path = Path(rank.source)
        for folder in list(path.parents)[:_LEVELS]:
            rings = self._rings(folder)
            if rings is None:
                continue
            about = rings.get(path.relative_to(folder).as_posix())
            if not isinstance(about, dict):
                return replace(rank, alive=None)
            alive = about.get("alive")
            details = {**rank.details, "beating": about.get("beats") is True}
            return replace(rank, alive=alive if isinstance(alive, bool) else None, details=details)
        return rank

    def of(self, path: Path) -> str:
        """Return the folder of the node that a file was collected from; empty if there is none."""
        for folder in list(path.parents)[:_LEVELS]:
            if self._rings(folder) is not None:
                return str(folder)
        return ""

    def _rings(self, folder: Path) -> Mapping[str, Any] | None:
        if folder not in self._known:
            self._known[folder] = _read(folder / NODE_FILE)
        return self._known[folder]


def node_notes(folder: Path) -> tuple[str, ...]:
    """Return a node's own notes about the files that it sent."""
    document = _document(folder / NODE_FILE) or {}
    notes = document.get("notes")
    found = notes[:_MOST_NOTES] if isinstance(notes, list) else []
    return tuple(printable(note[:_LONGEST_NOTE]) for note in found if isinstance(note, str))


def _read(path: Path) -> Mapping[str, Any] | None:
    document = _document(path)
    if document is None:
        return None
    rings = document.get("rings")
    return rings if isinstance(rings, dict) else {}


def _document(path: Path) -> Mapping[str, Any] | None:
    try:
        with open(open_regular(path), "rb") as file:
            document = parse(file.read(_MOST_BYTES))
    except (OSError, ValueError, DamagedFileError):
        return None
    if not isinstance(document, dict) or document.get("ncclscope_node") != VERSION:
        return None
    return document
