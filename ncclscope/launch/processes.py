"""Run a function as several ranks, in real processes, and report the outcome.

The processes are forked, so the function may be a closure, a lambda, or drawn by a strategy; or
they are new interpreters, as NCCL needs. The launcher watches their rings and kills them with
SIGKILL when no ring grows any more. No process is ever left behind.

The results of ranks are pickled, because they may be any value. They come through a nameless file
that only the rank's process holds, so only the test's own code writes there. Nothing else is
unpickled, and all other messages of the ranks are lines of JSON.
"""

from __future__ import annotations

import contextlib
import json
import os
import pickle
import select
import signal
import socket
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from ncclscope.errors import DamagedFileError, UsageError
from ncclscope.launch.gpus import SHARED, enough
from ncclscope.launch.rank_process import Job, RankPlace, be_rank, flush_output
from ncclscope.launch.spawn import pack, spawn
from ncclscope.ring.layout import HEARTBEAT_SECONDS

START_METHODS = ("fork", "spawn")
STALL_SECONDS = 10.0
TIMEOUT_SECONDS = 120.0
_GRACE_SECONDS = 1.0
"""Seconds after one rank has raised, for the others to reach the call in which they wait."""
_POLL_SECONDS = 0.05
_END_SECONDS = 10.0
_END_POLL_SECONDS = 0.005


@dataclass(frozen=True)
class Failure:
    """A rank that did not finish.

    Attributes:
        rank: Number of the rank.
        error: The exception in one line, or how the process ended.
        trace: Traceback; empty for a process that ended without an exception.
        when: Time of the failure in seconds, of a monotonic clock.
    """

    rank: int
    error: str
    trace: str = ""
    when: float = 0.0


@dataclass(frozen=True)
class Outcome:
    """Outcome of a run.

    Attributes:
        ending: ``finished`` if every rank returned, ``failed`` if one raised or died, or only
            some skipped the test, ``skipped`` if all did, ``stalled`` if no call was recorded any
            more, ``timeout``.
        results: Results of the ranks, if all returned.
        failures: Processes that ended, then exceptions, each in order of time.
        output: By rank, its standard output and error.
        waiting: Ranks that had not returned.
        skipped: By rank that skipped the test, the reason.
        seconds: Duration in seconds.
    """

    ending: str
    results: Sequence[Any]
    failures: Sequence[Failure]
    output: Mapping[int, str]
    waiting: Sequence[int]
    skipped: Mapping[int, str]
    seconds: float


def run_ranks(
    function: Callable[..., Any],
    *arguments: Any,
    ranks: int,
    rings: Path | None,
    backend: str = "gloo",
    start_method: str | None = None,
    stall_after: float = STALL_SECONDS,
    timeout: float = TIMEOUT_SECONDS,
    keywords: Mapping[str, Any] | None = None,
    before_kill: Callable[[Sequence[int]], None] = lambda pids: None,
) -> Outcome:
    """Call ``function(rank, *arguments)`` in ``ranks`` processes that share a process group.

    Args:
        function: Function of each rank; the default process group exists when it starts.
        *arguments: Positional arguments of the function.
        ranks: Number of processes.
        rings: Directory of their rings; None to record nothing, and to detect no stall.
        backend: Backend of the process group.
        start_method: ``fork``, or ``spawn``, which needs an importable function and imports torch
            again, for seconds; None for spawn with NCCL, otherwise fork.
        stall_after: Report a hang after this many seconds without a recorded call on any rank.
        timeout: Kill the processes after this many seconds.
        keywords: Keyword arguments of the function.
        before_kill: Called with the pids of the ranks that did not return in time.

    Raises:
        UsageError: This process cannot run the ranks.
    """
    method = start_method or ("spawn" if backend == "nccl" else "fork")
    _prepare(ranks, backend, method)
    with (
        tempfile.TemporaryDirectory(prefix="ncclscope-ranks-") as workplace,
        contextlib.ExitStack() as files,
    ):
        job = Job(function, arguments, ranks, backend, Path(workplace), rings, keywords or {})
        processes = _Processes(job, files)
        try:
            processes.start(method)
            ending = processes.watch(stall_after, timeout)
            if ending in ("stalled", "timeout"):
                before_kill([processes.pids[rank] for rank in processes.waiting])
        finally:
            processes.end()
        return processes.outcome(ending)


def _prepare(ranks: int, backend: str, method: str) -> None:
    if not sys.platform.startswith("linux"):
        raise UsageError("functions are run as ranks on Linux only")
    if ranks < 1:
        raise UsageError(f"{ranks} ranks cannot be run", "give one or more")
    if method not in START_METHODS:
        raise UsageError(f"start_method={method!r}", f"give one of {', '.join(START_METHODS)}")
    try:
        # Import it once, before the fork: each import takes a second.
        import torch.distributed as dist
    except ImportError:
        raise UsageError(
            "ranks need torch to join a process group", "install it with: pip install torch"
        ) from None
    if not dist.is_available():
        raise UsageError("this build of torch has no torch.distributed")
    if not dist.is_backend_available(backend):
        raise UsageError(f"this build of torch has no {backend}", "use backend='gloo'")
    if backend == "nccl":
        _check_gpus(ranks, method)
    if method == "fork" and dist.is_initialized():
        raise UsageError(
            "this process is in a process group already, and the ranks are forked from it",
            "call torch.distributed.destroy_process_group() first",
        )


def _check_gpus(ranks: int, method: str) -> None:
    import torch

    if method != "spawn":
        raise UsageError("CUDA does not survive a fork", "use start_method='spawn' with nccl")
    count = torch.cuda.device_count()
    if not enough(count, ranks):
        raise UsageError(
            f"nccl needs a GPU for each of {ranks} ranks, and this machine has {count}",
            f"use fewer ranks, or backend='gloo'; NCCL 2.31 and later share a GPU where "
            f"{SHARED}=1 is set",
        )


class _Processes:
    """Running ranks of one job.

    Args:
        job: The job.
        files: Closes sockets and files at the end.
    """

    def __init__(self, job: Job, files: contextlib.ExitStack) -> None:
        self.job = job
        self.files = files
        self.pids: dict[int, int] = {}
        self.controls: dict[int, socket.socket] = {}
        self.results: dict[int, IO[bytes]] = {}
        self.received: dict[int, bytes] = {}
        self.joined: set[int] = set()
        self.done: set[int] = set()
        self.failures: list[Failure] = []
        self.skipped: dict[int, str] = {}
        self.begun = time.monotonic()

    def start(self, method: str) -> None:
        """Start the ranks."""
        flush_output()
        packed = None
        if method == "spawn":
            packed = self._nameless()
            pack(self.job, packed)
        for rank in range(self.job.ranks):
            ours, theirs = socket.socketpair()
            self.controls[rank] = self.files.enter_context(ours)
            self.results[rank] = self._nameless()
            place = RankPlace(rank, os.getpid(), theirs, self.results[rank].fileno())
            with theirs:
                self.pids[rank] = pid = (
                    self._fork(place) if packed is None else spawn(self.job, place, packed)
                )
            with contextlib.suppress(OSError):
                os.setpgid(pid, pid)

    def _nameless(self) -> IO[bytes]:
        return self.files.enter_context(tempfile.TemporaryFile(dir=self.job.workplace))

    def _fork(self, place: RankPlace) -> int:
        with warnings.catch_warnings():
            # It warns of threads that the fork does not copy. The child starts its own.
            warnings.simplefilter("ignore", DeprecationWarning)
            pid = os.fork()
        if pid == 0:
            be_rank(self.job, place)
        return pid

    @property
    def waiting(self) -> list[int]:
        """Ranks that have neither returned nor failed nor skipped."""
        over = self.done | {failure.rank for failure in self.failures} | self.skipped.keys()
        return [rank for rank in self.pids if rank not in over]

    def watch(self, stall_after: float, timeout: float) -> str:
        """Wait until all ranks have returned, hang or fail; return the ending.

        Args:
            stall_after: Report a stall after this many seconds without a recorded call.
            timeout: Give up after this many seconds.
        """
        moved, heads = self.begun, self._heads()
        # A ring's heartbeat can be this old when its process is killed.
        patience = stall_after + HEARTBEAT_SECONDS
        while self.waiting:
            received = self._receive()
            now, before, heads = time.monotonic(), heads, self._heads()
            if received or heads != before:
                moved = now
            quiet = now - moved
            if self.failures and quiet > _GRACE_SECONDS:
                return "failed"
            everybody = len(self.joined) == self.job.ranks
            if self.job.rings is not None and everybody and quiet > patience:
                return "stalled"
            if now - self.begun > timeout:
                return "timeout"
        if len(self.skipped) == self.job.ranks:
            return "skipped"
        return "failed" if self.failures or self.skipped else "finished"

    def _heads(self) -> Mapping[str, int]:
        """Return the number of records of each ring, by file name."""
        from ncclscope.ring import layout
        from ncclscope.ring.reader import RingFile

        heads = {}
        for path in self.job.rings.glob(f"*{layout.SUFFIX}") if self.job.rings else ():
            with contextlib.suppress(OSError, DamagedFileError):  # it is being created
                ring = RingFile(path)
                heads[path.name] = ring.head
                ring.close()
        return heads

    def _receive(self) -> bool:
        """Receive messages of ranks; return whether there were any."""
        open_ones = {self.controls[rank]: rank for rank in self.waiting}
        # Check for ended processes first, so that their last message is read before. A closed
        # socket is no proof of the end: a child of the rank may hold it open, too.
        over = [rank for rank in open_ones.values() if self._end(rank) is not None]
        ready, _, _ = select.select(list(open_ones), [], [], _POLL_SECONDS)
        for control in ready:
            rank = open_ones[control]
            try:
                data = control.recv(1 << 16)
            except OSError:
                data = b""
            *lines, self.received[rank] = (self.received.get(rank, b"") + data).split(b"\n")
            for line in lines:
                self._take(rank, json.loads(line))
            if not data:
                self._fail(rank, self._ended(rank))
        silent = [rank for rank in over if self.controls[rank] not in ready]
        for rank in silent:
            self._fail(rank, self._ended(rank))
        return bool(ready or silent)

    def _fail(self, rank: int, text: str) -> None:
        self.failures.append(Failure(rank, text, when=time.monotonic()))

    def _take(self, rank: int, message: Mapping[str, Any]) -> None:
        if "joined" in message:
            self.joined.add(rank)
        elif "done" in message:
            self.done.add(rank)
        elif "skipped" in message:
            self.skipped[rank] = message["skipped"]
        else:
            self.failures.append(Failure(rank, **message))

    def _end(self, rank: int) -> str | None:
        """Return how a process has ended; None while it runs."""
        # Do not reap it yet, so that its process id is not reused.
        flags = os.WEXITED | os.WNOWAIT | os.WNOHANG
        try:
            found = os.waitid(os.P_PID, self.pids[rank], flags)
        except ChildProcessError:
            return "another part of the program has reaped its process"
        if found is None:
            return None
        if found.si_code == os.CLD_EXITED:
            return f"its process ended with status {found.si_status}"
        return f"its process was killed by {signal.Signals(found.si_status).name}"

    def _ended(self, rank: int) -> str:
        """Wait for a process that has closed its socket, and return how it ended."""
        deadline = time.monotonic() + _END_SECONDS
        while time.monotonic() < deadline:
            text = self._end(rank)
            if text is not None:
                return text
            time.sleep(_POLL_SECONDS)
        return "its process closed its connection"

    def end(self) -> None:
        """Kill the ranks that have not returned, then let the others exit.

        The rings of the others then record an orderly end, so that a rank which left its peers
        waiting is not taken for one that is busy elsewhere.
        """
        for rank in self.waiting:
            self._kill(rank)
        orderly = [rank for rank in self.pids if rank in self.done or rank in self.skipped]
        for rank in orderly:
            with contextlib.suppress(OSError):
                self.controls[rank].shutdown(socket.SHUT_WR)
        deadline = time.monotonic() + _END_SECONDS
        while any(self._end(rank) is None for rank in orderly) and time.monotonic() < deadline:
            time.sleep(_END_POLL_SECONDS)
        for rank in self.pids:
            self._kill(rank)
        for pid in self.pids.values():
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, 0)

    def _kill(self, rank: int) -> None:
        """Kill a process and its children."""
        pid = self.pids[rank]
        # The process group exists until the process is reaped.
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(pid, signal.SIGKILL)
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)

    def outcome(self, ending: str) -> Outcome:
        """Return the outcome of the run."""
        results = self._results() if ending == "finished" else []
        return Outcome(
            ending="failed" if ending == "finished" and self.failures else ending,
            results=results,
            # The end of a process is noticed late: exceptions of its peers, which follow from it,
            # may have arrived before.
            failures=sorted(self.failures, key=lambda failure: (bool(failure.trace), failure.when)),
            output={
                rank: path.read_text(errors="replace")
                for rank in self.pids
                if (path := self.job.output(rank)).exists()
            },
            waiting=self.waiting,
            skipped=self.skipped,
            seconds=time.monotonic() - self.begun,
        )

    def _results(self) -> list[Any]:
        results = []
        for rank, file in self.results.items():
            file.seek(0)
            try:
                results.append(pickle.load(file))
            except Exception as error:
                self._fail(rank, f"its result cannot be unpickled: {type(error).__name__}: {error}")
        return results if not self.failures else []


def rings_directory() -> Path:
    """Create a temporary directory for rings, in shared memory if the machine has it."""
    memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    return Path(tempfile.mkdtemp(prefix="ncclscope-test-", dir=memory))
