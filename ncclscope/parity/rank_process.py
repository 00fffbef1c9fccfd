"""One rank of a function under test, from the fork to its end."""

from __future__ import annotations

import contextlib
import ctypes
import datetime
import json
import os
import pickle
import signal
import socket
import sys
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, NoReturn

__all__ = ["Job", "be_rank"]

_PR_SET_PDEATHSIG = 1
_PATIENCE = datetime.timedelta(hours=1)
"""Of the process group: a hang is noticed by whoever watches, and looks the same until then."""


@dataclass(frozen=True)
class Job:
    """What the ranks are to do.

    Attributes:
        function: Is called in each process with its rank and the arguments.
        arguments: By position.
        keywords: By name.
        ranks: How many processes.
        backend: Of the process group.
        workplace: For results, output and the ranks' meeting.
        rings: Where rings go; None where nothing is to be recorded.
    """

    function: Callable[..., Any]
    arguments: Sequence[Any]
    ranks: int
    backend: str
    workplace: Path
    rings: Path | None
    keywords: Mapping[str, Any] = field(default_factory=dict)

    def output(self, rank: int) -> Path:
        """Where a rank's standard output and error go."""
        return self.workplace / f"rank-{rank}.out"

    def result(self, rank: int) -> Path:
        """Where what a rank returned is left."""
        return self.workplace / f"rank-{rank}.result"


def be_rank(job: Job, rank: int, control: socket.socket, parent: int) -> NoReturn:
    """Runs the function in a process that has just been forked, and ends that process."""
    status = 1
    try:
        _settle(job, rank, parent)
        try:
            _join(job, rank)
            _tell(control, {"joined": True})
            result = job.function(rank, *job.arguments, **job.keywords)
            with open(job.result(rank), "wb") as file:
                pickle.dump(result, file)
            _tell(control, {"done": True})
            status = 0
        except BaseException as error:
            _tell(control, _failure(error))
        # The others may still be in a call that this one has left, with or without an error. On
        # gloo they would stop with an error of their own if it closed its connections.
        control.recv(1)
        if status == 0 and job.rings is not None:
            _close()
    except BaseException:
        traceback.print_exc()
        status = 1
    finally:
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(OSError, ValueError):
                stream.flush()
        # What the test run has registered for its end is none of this process's business.
        os._exit(status)


def _settle(job: Job, rank: int, parent: int) -> None:
    """Makes the process one of its own, which ends when the test run does."""
    with contextlib.suppress(OSError):
        os.setpgid(0, 0)
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(1)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGALRM):
        signal.signal(number, signal.SIG_DFL)
    output = os.open(job.output(rank), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    nothing = os.open(os.devnull, os.O_RDONLY)
    for source, target in ((nothing, 0), (output, 1), (output, 2)):
        os.dup2(source, target)
    sys.stdout = os.fdopen(1, "w", buffering=1, closefd=False)
    sys.stderr = os.fdopen(2, "w", buffering=1, closefd=False)
    os.environ.update(
        RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(job.ranks), OMP_NUM_THREADS="1"
    )
    # All ranks are here, and a container's host name often leads nowhere.
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    for name in ("NCCLSCOPE", "NCCLSCOPE_DIR", "NCCL_SCOPE_DIR"):
        os.environ.pop(name, None)
    if job.rings is not None:
        os.environ["NCCLSCOPE_DIR"] = str(job.rings)


def _join(job: Job, rank: int) -> None:
    if job.rings is not None:
        # By name, as in every other process that is to be traced from its beginning.
        from ncclscope.tracing import session
        from ncclscope_patches import registry

        registry.install_all()
        session.current()  # so that a rank which posts nothing leaves a ring, too
    import torch
    import torch.distributed as dist

    # As in torch's own data loaders: OpenMP's threads did not come along.
    torch.set_num_threads(1)
    if job.backend == "nccl":
        torch.cuda.set_device(rank)
    dist.init_process_group(
        job.backend,
        init_method=(job.workplace / "meeting").as_uri(),
        rank=rank,
        world_size=job.ranks,
        timeout=_PATIENCE,
    )


def _close() -> None:
    from ncclscope.tracing import session

    tracer = session.current()
    if tracer is not None:
        tracer.close()


def _failure(error: BaseException) -> dict[str, Any]:
    """Returns what is told of an exception: only frames of the function and below."""
    trace: TracebackType | None = error.__traceback__
    while trace is not None and trace.tb_frame.f_code.co_filename == __file__:
        trace = trace.tb_next
    lines = traceback.format_exception(type(error), error, trace)
    return {
        "error": "".join(traceback.format_exception_only(type(error), error)).strip(),
        "trace": "".join(lines).rstrip(),
        "when": time.monotonic(),
    }


def _tell(control: socket.socket, message: Mapping[str, Any]) -> None:
    control.sendall(json.dumps(message).encode() + b"\n")
