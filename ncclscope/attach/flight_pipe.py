"""Request Flight Recorder dumps from a running job.

With ``TORCH_NCCL_DEBUG_INFO_PIPE_FILE`` set, torch creates a FIFO for each rank and dumps when
something is written to it. The job writes files then, so this happens only on request. The
write does not block: it fails if no process reads the FIFO.
"""

from __future__ import annotations

import errno
import os
import stat
import time
from collections.abc import Mapping
from pathlib import Path

from ncclscope.dump_files import dump_files, stamp
from ncclscope.errors import os_reason

PIPE_VARIABLE = "TORCH_NCCL_DEBUG_INFO_PIPE_FILE"
LIMIT = 15.0
"""Seconds that torch itself allows for a dump (TORCH_NCCL_WAIT_TIMEOUT_DUMP_MILSEC)."""
_SETTLED = 0.3
"""A dump counts as complete when it has not grown for this many seconds."""


def pipe_of(environment: Mapping[str, str], rank: int) -> Path | None:
    """Return a rank's FIFO, or None if its environment names none."""
    prefix = environment.get(PIPE_VARIABLE)
    return Path(f"{prefix}{rank}.pipe") if prefix else None


def ask_for_dump(environment: Mapping[str, str], rank: int, *, limit: float = LIMIT) -> Path | str:
    """Request a dump from one rank and wait for the file.

    Args:
        environment: Environment variables of the rank's process.
        rank: Its global rank.
        limit: Seconds to wait for the file.

    Returns:
        The dump file, or the reason why there is none.
    """
    pipe = pipe_of(environment, rank)
    if pipe is None:
        return f"{PIPE_VARIABLE} was not set when the job was started"
    before = {file: stamp(file) for file in dump_files(environment, rank)}
    failure = _poke(pipe)
    if failure:
        return failure
    deadline = time.monotonic() + limit
    while time.monotonic() < deadline:
        for file, old in before.items():
            new = stamp(file)
            if new and new != old and time.time() - new[0] / 1e9 > _SETTLED:
                return file
        time.sleep(0.05)
    return f"rank {rank} wrote no dump within {limit:g} s"


def _poke(pipe: Path) -> str:
    """Write one byte to a FIFO; return why that failed, or an empty text."""
    try:
        descriptor = os.open(pipe, os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        if error.errno == errno.ENXIO:
            return f"no process reads {pipe}"
        return f"{pipe}: {os_reason(error)}"
    try:
        if not stat.S_ISFIFO(os.fstat(descriptor).st_mode):
            return f"{pipe} is not a FIFO"
        os.write(descriptor, b"1")
    except OSError as error:
        return f"{pipe}: {os_reason(error)}"
    finally:
        os.close(descriptor)
    return ""
