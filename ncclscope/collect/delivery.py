"""Many nodes at once: what each delivered, and why some did not.

A node that is gone, hangs or sends nonsense costs its own delivery and no other. Of one whose
stream broke off, the files that had come whole are kept.
"""

from __future__ import annotations

import re
import shutil
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Protocol

from ncclscope.collect.archive import Limits, UnpackedArchive, unpack
from ncclscope.errors import DamagedFileError, NcclscopeError, UsageError
from ncclscope.private import make_private
from ncclscope.readers.nodes import node_notes
from ncclscope.untrusted import printable

__all__ = ["Delivery", "Node", "NodeStream", "collect", "make_target"]

_UNFIT = re.compile(r"[^A-Za-z0-9._-]+")
_LONGEST_NAME = 100
_LONGEST_REASON = 300


class NodeStream(Protocol):
    """What a node sends."""

    def read(self, size: int) -> bytes:
        """Return at most so many bytes; none at the end.

        Raises:
            TimeoutError: The node takes too long.
        """
        ...

    def reason(self) -> str:
        """Say why it ended as it did, in a line; nothing where it ended well."""
        ...


class Node(Protocol):
    """A node that can be asked."""

    @property
    def name(self) -> str:
        """What it is called."""
        ...

    def open(self, timeout: float) -> AbstractContextManager[NodeStream]:
        """Has it send, for so many seconds at most."""
        ...


@dataclass(frozen=True)
class Delivery:
    """What came of one node.

    Attributes:
        node: Its name.
        status: ``delivered``, ``failed`` or ``timed_out``.
        reason: Why it is not the first of these, in a line.
        folder: Where its files are, below the target; empty where there are none.
        files: How many came whole.
        received_bytes: What travelled.
        unpacked_bytes: What it was.
        seconds: How long it took.
        notes: What the node says of it, such as why no process was looked at.
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
        """Return it in a form for JSON."""
        return asdict(self)


def make_target(directory: Path) -> None:
    """Make the directory that everything goes to, before anybody is asked.

    Raises:
        UsageError: It is not empty, or cannot be made.
    """
    try:
        make_private(directory)
        if any(directory.iterdir()):
            raise UsageError(f"{directory} is not empty", "name a new directory with -o")
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise UsageError(f"{directory} cannot be used: {reason}", "name another") from None


def collect(
    nodes: Sequence[Node],
    directory: Path,
    *,
    timeout: float,
    parallel: int,
    limits: Limits | None = None,
    say: Callable[[Delivery], None] = lambda delivery: None,
) -> list[Delivery]:
    """Ask all nodes and unpack what they send, each into a folder of its own.

    Args:
        nodes: Whom to ask.
        directory: Where to; see :func:`make_target`.
        timeout: Seconds for each of them.
        parallel: How many are asked at a time.
        limits: How much is taken of each.
        say: Told of each that is done.

    Returns:
        What came of each, in their order.
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


def _fetch(
    node: Node, directory: Path, folder: str, timeout: float, limits: Limits | None
) -> Delivery:
    began = time.monotonic()
    # Nobody reads what has come by halves: it gets its name when it is there.
    part = directory / f".{folder}.part"
    came = UnpackedArchive()
    status, reason = "delivered", ""
    try:
        part.mkdir(mode=0o700)
        with node.open(timeout) as stream:
            try:
                unpack(stream.read, part, came, limits)
            except DamagedFileError as error:
                # What the node says of itself explains more than what is missing of its stream.
                status, reason = "failed", stream.reason() or str(error)
    except TimeoutError:
        status, reason = "timed_out", f"no end after {timeout:g} s"
    except (NcclscopeError, OSError) as error:
        status, reason = "failed", str(error)
    if came.files and status != "delivered":
        reason += f"; {came.files} files had come"
    try:
        kept = _keep(part, directory / folder) if came.files else False
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
        notes=node_notes(directory / folder) if kept else (),
    )


def _keep(part: Path, folder: Path) -> bool:
    part.rename(folder)
    return True


def _folders(names: Iterable[str]) -> Iterator[str]:
    """Yield names of folders: those of the nodes, as far as they can be names of files."""
    taken = set()
    for name in names:
        base = _UNFIT.sub("_", name)[:_LONGEST_NAME].lstrip(".") or "node"
        folder, number = base, 2
        while folder in taken:
            folder, number = f"{base}-{number}", number + 1
        taken.add(folder)
        yield folder
