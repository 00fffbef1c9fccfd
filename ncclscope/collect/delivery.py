"""Receive from many nodes in parallel, and report why some failed.

A node that is lost, hangs or sends invalid data fails alone. If a node's stream breaks off, the
files that arrived completely are kept.
"""

from __future__ import annotations

import re
import shutil
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import AbstractContextManager, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Protocol

from ncclscope.collect.archive import Limits, UnpackedArchive, unpack
from ncclscope.collect.commands import own_command, urls
from ncclscope.collect.urls import is_url
from ncclscope.errors import DamagedFileError, InputError, NcclscopeError, UsageError, os_reason
from ncclscope.private import make_private
from ncclscope.readers.nodes import node_notes
from ncclscope.untrusted import printable

_UNFIT = re.compile(r"[^A-Za-z0-9._-]+")
_LONGEST_NAME = 100
_LONGEST_REASON = 300
_MOST_CUT = 100
_URL_SECONDS = 600.0
_URLS_AT_ONCE = 4


class NodeStream(Protocol):
    """The stream that a node sends."""

    def read(self, size: int) -> bytes:
        """Return at most `size` bytes; empty at the end.

        Raises:
            TimeoutError: The node takes too long.
        """
        ...

    def reason(self) -> str:
        """Return in one line why the node failed; empty if it succeeded."""
        ...


class Node(Protocol):
    """A node to collect from."""

    @property
    def name(self) -> str:
        """Name of the node."""
        ...

    def open(self, timeout: float) -> AbstractContextManager[NodeStream]:
        """Start the node's stream; reading raises TimeoutError after `timeout` seconds."""
        ...


@dataclass(frozen=True)
class Delivery:
    """Result of collecting from one node.

    Attributes:
        node: Name of the node.
        status: ``delivered``, ``failed`` or ``timed_out``.
        reason: Why it failed or timed out, in one line; empty if it delivered.
        folder: Folder of its files below the target; empty if there are none.
        files: Number of complete files.
        received_bytes: Compressed bytes received.
        unpacked_bytes: Bytes of the complete files.
        seconds: Duration in seconds.
        notes: The node's own notes, such as why no process was sampled.
    """

    node: str
    status: str
    reason: str = ""
    folder: str = ""
    files: int = 0
    received_bytes: int = 0
    unpacked_bytes: int = 0
    seconds: float = 0.0
    notes: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """Return the delivery as a JSON object."""
        return asdict(self)


def make_target(directory: Path) -> None:
    """Create the target directory before any node is contacted.

    Raises:
        UsageError: The directory is not empty, or cannot be created.
    """
    try:
        make_private(directory)
        if any(directory.iterdir()):
            raise UsageError(f"{directory} is not empty", "name a new directory with -o")
    except OSError as error:
        raise UsageError(
            f"{directory} cannot be used: {os_reason(error)}", "name another directory"
        ) from None


def collect(
    nodes: Sequence[Node],
    directory: Path,
    *,
    timeout: float,
    parallel: int,
    limits: Limits | None = None,
    say: Callable[[Delivery], None] = lambda delivery: None,
) -> list[Delivery]:
    """Collect from all nodes in parallel, and unpack each stream into its own folder.

    Args:
        nodes: The nodes.
        directory: Target directory; see :func:`make_target`.
        timeout: Timeout per node in seconds.
        parallel: Number of nodes to collect from at the same time.
        limits: Maximum size and number of files per node.
        say: Called with each node's result as soon as it is known.

    Returns:
        The results, in the order of the nodes.
    """
    folders = _folders(node.name for node in nodes)
    found: dict[int, Delivery] = {}
    pool = ThreadPoolExecutor(max_workers=max(1, min(parallel, len(nodes))))
    try:
        waiting: dict[Future[Delivery], int] = {
            pool.submit(_fetch, node, directory, folder, timeout, limits): number
            for number, (node, folder) in enumerate(zip(nodes, folders, strict=True))
        }
        while len(found) < len(nodes):
            done, _ = wait(waiting, return_when=FIRST_COMPLETED)
            for one in done:
                found[waiting.pop(one)] = one.result()
                say(one.result())
    finally:
        pool.shutdown(wait=True, cancel_futures=True)
    return [found[number] for number in range(len(nodes))]


@contextmanager
def local_paths(paths: Sequence[str]) -> Iterator[list[str]]:
    """Yield `paths` with a directory of copies in place of each URL; it lasts for the block.

    Raises:
        InputError: A URL cannot be read.
    """
    given = [path for path in paths if is_url(path)]
    if not given:
        yield list(paths)
        return
    with tempfile.TemporaryDirectory(prefix="ncclscope-") as folder:
        nodes = urls(given, own_command())
        for one in collect(nodes, Path(folder), timeout=_URL_SECONDS, parallel=_URLS_AT_ONCE):
            if one.status != "delivered":
                raise InputError(one.reason.removeprefix("ncclscope: "))
        yield [*(path for path in paths if not is_url(path)), folder]


def _fetch(
    node: Node, directory: Path, folder: str, timeout: float, limits: Limits | None
) -> Delivery:
    began = time.monotonic()
    # Unpack under a temporary name, so that no reader sees an incomplete folder.
    part = directory / f".{folder}.part"
    came = UnpackedArchive()
    status, reason = "delivered", ""
    try:
        part.mkdir(mode=0o700)
        with node.open(timeout) as stream:
            try:
                unpack(stream.read, part, came, limits)
            except DamagedFileError as error:
                # The node's own error explains more than how its stream broke off.
                status, reason = "failed", stream.reason() or str(error)
    except TimeoutError:
        status, reason = "timed_out", f"not finished after {timeout:g} s"
    except (NcclscopeError, OSError) as error:
        status, reason = "failed", str(error)
    if came.files and status != "delivered":
        reason += f"; {came.files} {'file' if came.files == 1 else 'files'} arrived before that"
    try:
        kept = bool(came.files and part.rename(directory / folder))
    except OSError as error:
        kept, status, reason = False, "failed", str(error)
    shutil.rmtree(part, ignore_errors=True)
    return Delivery(
        node=node.name,
        status=status,
        reason=printable(" ".join(reason.split()))[:_LONGEST_REASON],
        folder=folder if kept else "",
        files=came.files if kept else 0,
        received_bytes=came.received,
        unpacked_bytes=came.size if kept else 0,
        seconds=round(time.monotonic() - began, 3),
        notes=(*node_notes(directory / folder), *_cut_notes(came)) if kept else (),
    )


def _cut_notes(came: UnpackedArchive) -> list[str]:
    shown = [f"{printable(name)} is cut: it could not be read to its end" for name in came.cut]
    return shown[:_MOST_CUT]


def _folders(names: Iterable[str]) -> Iterator[str]:
    """Yield a unique folder name for each node, made from its name."""
    taken = set()
    for name in names:
        base = _UNFIT.sub("_", name)[:_LONGEST_NAME].lstrip(".") or "node"
        folder, number = base, 2
        while folder in taken:
            folder, number = f"{base}-{number}", number + 1
        taken.add(folder)
        yield folder
