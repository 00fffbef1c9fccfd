"""Make NCCL report its calls to our dormant profiler plugin, in a job that runs.

From 2.31 on, NCCL's RAS can set the mask of events that its profiler plugin receives, on all ranks
of a job. A plugin that was loaded with NCCLSCOPE_ARM=1 asks for no events, and begins to record
once it receives some.
"""

from __future__ import annotations

import contextlib
import socket
import time
from collections.abc import Callable, Iterator, Sequence

from ncclscope.attach.candidate import Candidate
from ncclscope.attach.processes import find_workers
from ncclscope.attach.ras import Talk, parse_address
from ncclscope.errors import InputError
from ncclscope.untrusted import printable

MASK = 0x606
"""Collectives and sends when they are called, and again when they are launched: for the number of
launches before, and for the peers of sends."""
_LIMIT = 5.0
"""Seconds for the whole conversation; RAS answers once all processes know."""
_HOW = "start it with NCCLSCOPE_ARM=1 NCCL_PROFILER_PLUGIN=$(ncclscope plugin-path)"


@contextlib.contextmanager
def armed(pids: Sequence[int], seconds: float, say: Callable[[str], None]) -> Iterator[None]:
    """Let the job's plugins record, at first for some seconds, then until the block ends.

    Args:
        pids: Processes of the job; if empty, search for them.
        seconds: Seconds to wait before the block begins.
        say: Called with progress messages.

    Raises:
        InputError: The job has no dormant plugin, or its NCCL cannot set the mask.
    """
    address = _address(find_workers(tuple(pids)))
    set_mask(address, MASK)
    try:
        say(f"NCCL reports its calls; recording for {seconds:g} s before the ranks are sampled")
        time.sleep(seconds)
        yield
    finally:
        try:
            set_mask(address, 0)
        except InputError as error:
            say(f"the job goes on recording: {error}")


def _address(candidates: Sequence[Candidate]) -> tuple[str, int]:
    """Return the address of the job's RAS, if all processes can be armed."""
    for candidate in candidates:
        environment = candidate.environment
        if not (environment.get("NCCLSCOPE_ARM") or environment.get("NCCL_SCOPE_ARM")):
            raise InputError(f"process {candidate.pid} has no dormant profiler plugin", _HOW)
        if environment.get("NCCLSCOPE_NEXT_PROFILER"):
            raise InputError(
                f"process {candidate.pid} has another profiler plugin, which would lose its events",
                "start the job with NCCLSCOPE_DIR instead: then both receive theirs",
            )
    named = (candidate.environment.get("NCCL_RAS_ADDR") for candidate in candidates)
    return parse_address(next((one for one in named if one), None))


def set_mask(address: tuple[str, int], mask: int) -> None:
    """Set the mask of events that NCCL reports to its profiler plugin, on all ranks of a job.

    Args:
        address: Host and port of the job's RAS.
        mask: One bit for each type of event.

    Raises:
        InputError: There is no RAS, or it cannot do this.
    """
    where = f"{address[0]}:{address[1]}"
    try:
        with socket.create_connection(address, timeout=1.0) as connection:
            talk = Talk(connection, time.monotonic() + _LIMIT)
            if not talk.greet():
                raise InputError(f"the server on {where} is not NCCL's RAS", "set NCCL_RAS_ADDR")
            answer = talk.ask(f"CONTROL PROFILER_MASK {mask:#x}").strip()
    except OSError as error:
        reason = printable(error.strerror or str(error)) or "no answer in time"
        raise InputError(
            f"NCCL's RAS on {where} cannot be reached: {reason.lower()}",
            "NCCL 2.31 or later, without NCCL_RAS_ENABLE=0; NCCL_RAS_ADDR names another address",
        ) from error
    if answer != "OK":
        raise InputError(
            f"NCCL's RAS on {where} does not set the mask: {printable(answer)[:200]}",
            "NCCL 2.31 or later can",
        )
