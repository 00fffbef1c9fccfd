"""Send the evidence of one node: recorded files, and a snapshot of its processes.

================== =========================================================================
file               contents
================== =========================================================================
node.json          host, time, and which processes were alive then
attach.json        the process snapshot, if there are processes
ras.txt            the answer of NCCL's RAS, unchanged
files/...          rings, dumps and traces, by their path below the directory
moved/...          rings outside that directory, such as those that moved for lack of room
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
from ncclscope.ring.place import UNTRACED_SUFFIX
from ncclscope.untrusted import printable


@dataclass(frozen=True)
class Wanted:
    """What to collect from a node.

    Attributes:
        paths: Directories or files; if empty, those that the environment and processes name.
        stacks: Whether to sample the processes.
        gap: Seconds to sample for; None for the default of `attach`.
    """

    paths: tuple[str, ...] = ()
    stacks: bool = True
    gap: float | None = None


@dataclass
class _Sent:
    files: dict[str, Path | UrlFile] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)


def write_node(
    target: BinaryIO, wanted: Wanted, say: Callable[[str], None] = lambda text: None
) -> int:
    """Write this node's evidence as an archive.

    Args:
        target: Binary stream to write to.
        wanted: What to collect.
        say: Called with progress messages.

    Returns:
        The number of files, not counting ``node.json``.

    Raises:
        NothingFoundError: There is neither a file nor a process.
    """
    sent = _Sent()
    seen = _sample(wanted, sent, say) if wanted.stacks else None
    for name, path in _files(wanted, seen, sent.notes):
        sent.files.setdefault(name, path)
    if not sent.files and seen is None:
        why = f": {sent.notes[0]}" if sent.notes else ""
        where = ", ".join(wanted.paths) or "the environment or any process"
        raise NothingFoundError(f"nothing found in {where} on {socket.gethostname()}{why}")
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
    for name in packer.cut:
        say(f"{printable(name)} is cut: it could not be read to its end")
    target.flush()
    return packer.files - 1


def _sample(wanted: Wanted, sent: _Sent, say: Callable[[str], None]) -> JobSample | None:
    """Sample the processes; return None, with a note, if that fails: the rings still count."""
    try:
        return sample_job(Options.of(wanted.gap), say)
    except (NcclscopeError, OSError) as error:
        sent.notes.append(f"no process was sampled: {error}")
        return None


def _files(
    wanted: Wanted, seen: JobSample | None, notes: list[str]
) -> Iterator[tuple[str, Path | UrlFile]]:
    """Yield pairs of a name in the archive and a file."""
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
        for path in (*seen.rings, *seen.untraced, *seen.dumps):
            if not any(_is_below(path, root) for root in roots):
                yield f"moved/{path.name}", path


def _below(root: Path, notes: list[str]) -> Iterable[Path]:
    if not root.exists():
        notes.append(f"{printable(str(root))} does not exist on the node")
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
        if isinstance(path, Path) and name.endswith((layout.SUFFIX, UNTRACED_SUFFIX)):
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
