"""On a node: answer requests that come on stdin, until it closes.

``ncclscope watch --serve`` runs this. ssh closes stdin when its client ends, in any way. Where the
network is lost, sshd may keep stdin open for hours; then the server ends for lack of requests.
"""

from __future__ import annotations

import os
import select
import sys
from collections.abc import Sequence

from ncclscope import settings
from ncclscope.errors import DamagedFileError, NcclscopeError, UsageError
from ncclscope.remote.frames import (
    FAILED,
    GREETING,
    METHODS,
    OK,
    Frame,
    FrameReader,
    spell_frame,
)
from ncclscope.remote.keeper import Keeper

IDLE_SECONDS = 300.0
"""Seconds without a request after which the server ends; the client connects again."""
_READ = 1 << 16
_LONGEST_REQUEST = 16 << 20


def serve_stdin(paths: Sequence[str]) -> int:
    """Serve on stdin and stdout; whatever else prints to stdout goes to stderr.

    Raises:
        UsageError: No directory is named, and NCCLSCOPE_DIR is not set.
    """
    if not paths and not settings.directory():
        raise UsageError("no directory to watch", "name one, or set NCCLSCOPE_DIR on the host")
    target = os.dup(1)
    sys.stdout.flush()
    os.dup2(2, 1)
    serve(paths, 0, target)
    return 0


def serve(paths: Sequence[str], source: int, target: int, idle: float = IDLE_SECONDS) -> None:
    """Answer requests until the source ends, sends something else, or is silent for too long.

    Args:
        paths: Directories of the rings; NCCLSCOPE_DIR if empty.
        source: File descriptor that requests are read from.
        target: File descriptor that answers are written to.
        idle: Seconds without a request after which to end.
    """
    keeper = Keeper(paths)
    reader = FrameReader(longest=_LONGEST_REQUEST)
    os.set_blocking(target, False)
    if not _write(target, GREETING, idle):
        return
    while select.select([source], [], [], idle)[0]:
        data = os.read(source, _READ)
        try:
            frames = reader.feed(data) if data else None
        except DamagedFileError:
            return
        if frames is None:
            return
        for frame in frames:
            if not _write(target, _answer(keeper, frame), idle):
                return


def _answer(keeper: Keeper, frame: Frame) -> bytes:
    """Return the answer to a request; a request that fails is no reason to end."""
    try:
        payload = keeper.serve(METHODS[frame.kind], frame.payload)
        return spell_frame(Frame(OK, frame.number, payload))
    except (NcclscopeError, OSError, LookupError, TypeError, ValueError, MemoryError) as error:
        reason = str(error) or type(error).__name__
        return spell_frame(Frame(FAILED, frame.number, reason.encode("utf-8", "replace")))


def _write(target: int, data: bytes, idle: float) -> bool:
    """Write all bytes; return whether the reader took them in time."""
    rest = memoryview(data)
    while rest:
        if not select.select([], [target], [], idle)[1]:
            return False
        try:
            rest = rest[os.write(target, rest) :]
        except BlockingIOError:
            continue
        except OSError:
            return False  # the reader is gone
    return True
