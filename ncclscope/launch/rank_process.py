"""Process of one rank of a function under test, from start to exit."""

from __future__ import annotations

import contextlib
import ctypes
import datetime
import json
import os
import pickle
import random
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

_PR_SET_PDEATHSIG = 1
_PATIENCE = datetime.timedelta(hours=1)
"""Timeout of the process group: longer than any stall that the launcher detects."""
_BELOW_EPHEMERAL = range(10_000, 32_000)
"""Ports that the kernel gives to no connection, nor to gloo: until used, a free one stays free."""


def free_port() -> int:
    """Return a TCP port of 127.0.0.1 that nobody listens on."""
    ports = random.SystemRandom()
    while True:
        port = ports.choice(_BELOW_EPHEMERAL)
        with socket.socket() as one:
            try:
                one.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port


@dataclass(frozen=True)
class Job:
    """A function and how to run it.

    Attributes:
        function: Function to call in each process, with its rank and the arguments.
        arguments: Positional arguments.
        keywords: Keyword arguments.
        ranks: Number of processes.
        backend: Backend of the process group.
        workplace: Directory for output and the rendezvous of the ranks.
        rings: Directory of the rings; None to record nothing.
        port: A free port, for a program that makes a store of its own from MASTER_PORT.
    """

    function: Callable[..., Any]
    arguments: Sequence[Any]
    ranks: int
    backend: str
    workplace: Path
    rings: Path | None
    keywords: Mapping[str, Any] = field(default_factory=dict)
    port: int = field(default_factory=free_port)

    def output(self, rank: int) -> Path:
        """Return the file of a rank's standard output and error."""
        return self.workplace / f"rank-{rank}.out"


@dataclass(frozen=True)
class RankPlace:
    """Rank of a process, and its connection to the test run.

    Attributes:
        rank: Number of the rank.
        parent: Process id of the test run.
        control: Socket for lines of JSON.
        result: Descriptor of a nameless file for the function's result.
    """

    rank: int
    parent: int
    control: socket.socket
    result: int


def be_rank(job: Job, place: RankPlace, load: Callable[[], Job] | None = None) -> NoReturn:
    """Run the function in a new process, and end that process.

    Args:
        job: The function and how to run it.
        place: Rank and connection of this process.
        load: Returns the job with its function, if it must be imported first.
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
            _send(control, {"joined": True})
            result = job.function(rank, *job.arguments, **job.keywords)
            _finish(job)
            with open(place.result, "wb", closefd=False) as file:
                pickle.dump(result, file)
            _send(control, {"done": True})
            status = 0
        except BaseException as error:
            reason = _skip_reason(error)
            status = int(reason is None)
            _send(control, _failure(error) if reason is None else {"skipped": reason})
        # The others may still be in a call that this rank has left. On gloo they would raise if
        # this process closed its connections.
        control.recv(1)
        if status == 0 and job.rings is not None:
            _close()
    except BaseException:
        traceback.print_exc()
        status = 1
    finally:
        flush_output()
        # Skip the exit handlers that the test run has registered.
        os._exit(status)


def flush_output() -> None:
    """Write what this process has printed, as far as its streams are open."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()


def _settle(job: Job, rank: int, parent: int) -> None:
    """Detach the process from the test run, and end it when the test run ends."""
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
    # Frameworks look for them though the process group exists.
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(job.port))
    # All ranks are on this host, and a container's host name often cannot be resolved.
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
        session.current()  # so that a rank which posts nothing has a ring, too


def _join(job: Job, rank: int) -> None:
    import torch
    import torch.distributed as dist

    # As torch's data loaders do: a fork does not copy OpenMP's threads.
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
    """Wait for posted calls: on a GPU, a call returns before it has run."""
    if job.backend == "nccl":
        import torch

        torch.cuda.synchronize()


def _close() -> None:
    from ncclscope.tracing import session

    tracer = session.current()
    if tracer is not None:
        tracer.close()


def _skip_reason(error: BaseException) -> str | None:
    """Return the reason why a rank skips its test; None if it does not."""
    pytest, unittest = sys.modules.get("pytest"), sys.modules.get("unittest")
    kinds: list[type[BaseException]] = []
    if pytest is not None:
        kinds.append(pytest.skip.Exception)
    if unittest is not None:
        kinds.append(unittest.SkipTest)
    return str(error) if isinstance(error, tuple(kinds)) else None


def _failure(error: BaseException) -> dict[str, Any]:
    """Return the message about an exception, with the frames of the function and below."""
    trace: TracebackType | None = error.__traceback__
    while trace is not None and trace.tb_frame.f_code.co_filename == __file__:
        trace = trace.tb_next
    lines = traceback.format_exception(type(error), error, trace)
    return {
        "error": "".join(traceback.format_exception_only(type(error), error)).strip(),
        "trace": "".join(lines).rstrip(),
        "when": time.monotonic(),
    }


def _send(control: socket.socket, message: Mapping[str, Any]) -> None:
    control.sendall(json.dumps(message).encode() + b"\n")
