"""What one node of a job has: files that were recorded, and what its processes do now.

================== =========================================================================
file               contents
================== =========================================================================
node.json          host, time, and which processes lived then
attach.json        what was seen of the processes, where there are any
ras.txt            the answer of NCCL's RAS as it came
files/...          rings, dumps and traces, by their place below the directory
moved/...          rings that went elsewhere for want of room, or that no directory names
================== =========================================================================
"""

from __future__ import annotations

import json
import os
import socket
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

from ncclscope import settings
from ncclscope.attach.session import JobSample, Options, sample_job
from ncclscope.collect.archive import Packer
from ncclscope.collect.urls import UrlFile, is_url, url_files
from ncclscope.errors import DamagedFileError, NcclscopeError, NothingFoundError
from ncclscope.readers import input_files
from ncclscope.readers.bundle import CAPTURE_FILE
from ncclscope.readers.nodes import NODE_FILE, VERSION, describe_ring
from ncclscope.ring import layout
from ncclscope.untrusted import printable

__all__ = ["Wanted", "write_node"]


@dataclass(frozen=True)
class Wanted:
    """What is asked of a node.

    Attributes:
        paths: Directories or files; what the environment and the processes name when empty.
        look: Whether to sample the processes.
        gap: For how many seconds; as `attach` does by itself when None.
    """

    paths: tuple[str, ...] = ()
    look: bool = True
    gap: float | None = None


@dataclass
class _Sent:
    files: dict[str, Path | UrlFile] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)


def write_node(
    target: BinaryIO, wanted: Wanted, say: Callable[[str], None] = lambda text: None
) -> int:
    """Write what this node has, as a stream.

    Args:
        target: Where to.
        wanted: What is asked for.
        say: Told what is going on.

    Returns:
        The number of files, of its own description aside.

    Raises:
        NothingFoundError: There is neither a file nor a process.
    """
    sent = _Sent()
    seen = _look(wanted, sent, say) if wanted.look else None
    for name, path in _files(wanted, seen, sent.notes):
        sent.files.setdefault(name, path)
    if not sent.files and seen is None:
        why = f": {sent.notes[0]}" if sent.notes else ""
        where = ", ".join(wanted.paths) or "the environment or any process"
        raise NothingFoundError(f"nothing was found in {where} on {socket.gethostname()}{why}")
    packer = Packer(target)
    packer.add_bytes(NODE_FILE, _spelled(_describe(sent)))
    if seen is not None:
        snapshot = seen.snapshot
        packer.add_bytes(CAPTURE_FILE, _spelled(snapshot.to_dict()))
        if snapshot.ras is not None:
            packer.add_bytes("ras.txt", snapshot.ras.text.encode("utf-8", "replace"))
    for name, path in sent.files.items():
        try:
            if isinstance(path, UrlFile):
                with path.open() as file:
                    packer.add_stream(name, file, path.size)
            else:
                packer.add_file(name, path)
        except (OSError, ValueError, DamagedFileError) as error:
            say(f"{name} is left out: {error}")
    packer.close()
    target.flush()
    return packer.files - 1


def _look(wanted: Wanted, sent: _Sent, say: Callable[[str], None]) -> JobSample | None:
    """Look at the processes; a node that has none, or shows none, still has its rings."""
    try:
        return sample_job(Options.of(wanted.gap), say)
    except (NcclscopeError, OSError) as error:
        sent.notes.append(f"no process was looked at: {error}")
        return None


def _files(
    wanted: Wanted, seen: JobSample | None, notes: list[str]
) -> Iterator[tuple[str, Path | UrlFile]]:
    """Yield names in the archive and files; the same file once."""
    for number, url in enumerate(path for path in wanted.paths if is_url(path)):
        for file in url_files(url):
            yield f"files/{f'url-{number}/' if len(wanted.paths) > 1 else ''}{file.name}", file
    roots = [Path(path) for path in wanted.paths if not is_url(path)]
    if not wanted.paths and (named := settings.directory()):
        roots = [Path(named)]
    for number, root in enumerate(roots):
        base = "files" if len(roots) == 1 else f"files/{number}"
        for path in _below(root, notes):
            yield _name(base, root, path), path
    if seen is not None:
        for path in (*seen.rings, *seen.dumps):
            if not any(_is_below(path, root) for root in roots):
                yield f"moved/{path.name}", path


def _below(root: Path, notes: list[str]) -> Iterable[Path]:
    if not root.exists():
        notes.append(f"{printable(str(root))} does not exist there")
        return ()
    return input_files([root], notes)


def _name(base: str, root: Path, path: Path) -> str:
    if path == root or not _is_below(path, root):
        return f"moved/{path.name}"
    return f"{base}/{path.relative_to(root).as_posix()}"


def _is_below(path: Path, root: Path) -> bool:
    return os.path.commonpath([path.absolute(), root.absolute()]) == str(root.absolute())


def _describe(sent: _Sent) -> dict[str, Any]:
    rings = {}
    for name, path in sent.files.items():
        if isinstance(path, Path) and name.endswith(layout.SUFFIX):
            about = describe_ring(path)
            if about:
                rings[name] = about
    return {
        "ncclscope_node": VERSION,
        "host": socket.gethostname(),
        "time_ns": time.time_ns(),
        "rings": rings,
        "notes": [printable(note) for note in sent.notes],
    }


def _spelled(document: dict[str, Any]) -> bytes:
    return json.dumps(document).encode()
