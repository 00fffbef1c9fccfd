"""One rank of a function under test, from the beginning of its process to its end."""

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

from ncclscope.launch.gpus import device_of

__all__ = ["Job", "RankPlace", "be_rank"]

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
        workplace: For output and the ranks' meeting.
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


@dataclass(frozen=True)
class RankPlace:
    """Which rank a process is, and how it reaches the test run.

    Attributes:
        rank: The rank.
        parent: Process id of the test run.
        control: Socket for lines of JSON.
        result: Descriptor of a file without a name, for what the function returns.
    """

    rank: int
    parent: int
    control: socket.socket
    result: int


def be_rank(job: Job, place: RankPlace, load: Callable[[], Job] | None = None) -> NoReturn:
    """Runs the function in a process that has just begun, and ends that process.

    Args:
        job: What to do.
        place: Where.
        load: Returns the job with its function, where that has to be imported first.
    """
    rank, control = place.rank, place.control
    status = 1
    try:
        _settle(job, rank, place.parent)
        try:
            _trace(job)
            if load is not None:
                job = load()
            _join(job, rank)
            _tell(control, {"joined": True})
            result = job.function(rank, *job.arguments, **job.keywords)
            _finish(job)
            with open(place.result, "wb", closefd=False) as file:
                pickle.dump(result, file)
            _tell(control, {"done": True})
            status = 0
        except BaseException as error:
            reason = _skip_reason(error)
            status = int(reason is None)
            _tell(control, _failure(error) if reason is None else {"skipped": reason})
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


def _trace(job: Job) -> None:
    if job.rings is not None:
        # By name, as in every other process that is to be traced from its beginning.
        from ncclscope.tracing import session
        from ncclscope.tracing.bootstrap import install_patches

        install_patches()
        session.current()  # so that a rank which posts nothing leaves a ring, too


def _join(job: Job, rank: int) -> None:
    import torch
    import torch.distributed as dist

    # As in torch's own data loaders: OpenMP's threads did not come along.
    torch.set_num_threads(1)
    if job.backend == "nccl":
        torch.cuda.set_device(device_of(rank, torch.cuda.device_count()))
    dist.init_process_group(
        job.backend,
        init_method=(job.workplace / "meeting").as_uri(),
        rank=rank,
        world_size=job.ranks,
        timeout=_PATIENCE,
    )


def _finish(job: Job) -> None:
    """Waits for what has been posted: on a GPU, a call that returns has not happened yet."""
    if job.backend == "nccl":
        import torch

        torch.cuda.synchronize()


def _close() -> None:
    from ncclscope.tracing import session

    tracer = session.current()
    if tracer is not None:
        tracer.close()


def _skip_reason(error: BaseException) -> str | None:
    """Returns why a rank skips its test; None where it does not."""
    pytest, unittest = sys.modules.get("pytest"), sys.modules.get("unittest")
    kinds: list[type[BaseException]] = []
    if pytest is not None:
        kinds.append(pytest.skip.Exception)
    if unittest is not None:
        kinds.append(unittest.SkipTest)
    return str(error) if isinstance(error, tuple(kinds)) else None


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
