"""Read vLLM's message queues: which block is written, and which reader has not read it.

A queue is a segment of shared memory. After its blocks of data follow, for each block, one byte
that says whether it is written, and one byte for each reader that has read it. The processes note
name and geometry of their queues in their rings. Only these bytes are read, never a message.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from ncclscope.model import Rank, Run
from ncclscope.model.snapshot import QueueState
from ncclscope.untrusted import integer, number, open_regular

_NAME = re.compile(r"/?(psm_[0-9a-f]{1,32})")
_SHARED_MEMORY = Path("/dev/shm")
_MOST_QUEUES = 64
_MOST_READERS = 4096
_MOST_BLOCKS = 1024
_LARGEST = 1 << 40


def with_queues(run: Run, folder: Path = _SHARED_MEMORY) -> Run:
    """Return a run with the state of the message queues that its living processes use.

    A bundle has that of its time, perhaps of another host.

    Args:
        run: The run of rings.
        folder: Where the shared memory of this host is.
    """
    if run.snapshot is not None:
        return run
    found: dict[str, QueueState] = {}
    for rank in (*run.ranks, *run.others):
        if rank.alive is not True or rank.details.get("queues") is None:
            continue
        for about in _noted(rank):
            name = str(about.get("name"))
            if name not in found and len(found) < _MOST_QUEUES:
                state = read_queue(about, folder)
                if state is not None:
                    found[name] = state
    return replace(run, queues=tuple(found.values())) if found else run


def read_queue(about: Mapping[str, Any], folder: Path = _SHARED_MEMORY) -> QueueState | None:
    """Return the state of one queue; None if it is gone or its note is damaged.

    Args:
        about: ``name``, ``readers``, ``chunk`` (bytes of a block) and ``chunks`` of the queue.
        folder: Where the shared memory of this host is.
    """
    match = _NAME.fullmatch(str(about.get("name")))
    readers = number(about.get("readers"), _MOST_READERS)
    chunks, chunk = number(about.get("chunks"), _MOST_BLOCKS), number(about.get("chunk"), _LARGEST)
    if match is None or not (readers and chunks and chunk):
        return None
    size = chunks * (1 + readers)
    try:
        file = open_regular(folder / match[1])
    except OSError:
        return None
    try:
        data = os.pread(file, size, chunk * chunks)
    except OSError:
        return None
    finally:
        os.close(file)
    if len(data) < size:
        return None
    blocks = (data[at : at + 1 + readers] for at in range(0, size, 1 + readers))
    unread = tuple(
        tuple(reader for reader, flag in enumerate(block[1:]) if not flag) if block[0] else ()
        for block in blocks
    )
    return QueueState(str(about.get("name")), readers, unread)


def _noted(rank: Rank) -> Iterator[Mapping[str, Any]]:
    noted = rank.details.get("queues")
    for one in noted[:_MOST_QUEUES] if isinstance(noted, list) else ():
        if isinstance(one, dict) and integer(one.get("readers")) is not None:
            yield one
