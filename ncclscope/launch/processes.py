"""Runs a function as so many ranks, in real processes, and says how that ended.

The processes are forked, so the function may be anything: a closure, a lambda, what a
strategy has drawn; or they are new interpreters, as NCCL needs. They are watched by what their
rings record, and ended with SIGKILL when that stands still; whatever happens, none is left
behind.

What ranks return may be anything, too, so it is pickled. It comes through a file that has no
name and that only the rank's process has been given: whoever writes there is the test's own
code, running as the user who runs the test. Nothing else is ever unpickled, and all other talk
with the ranks is lines of JSON.
"""

from __future__ import annotations

import contextlib
import json
import os
import pickle
import select
import shutil
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
from ncclscope.launch.rank_process import Job, RankPlace, be_rank
from ncclscope.launch.spawn import pack, spawn
from ncclscope.ring.layout import BEAT_SECONDS

__all__ = ["START_METHODS", "Failure", "Outcome", "run_ranks"]

START_METHODS = ("fork", "spawn")
STALL_SECONDS = 10.0
TIMEOUT_SECONDS = 120.0
_GRACE_SECONDS = 1.0
"""After one rank has raised, for the others to come to where they wait for it."""
_POLL_SECONDS = 0.05
_END_SECONDS = 10.0
_END_POLL_SECONDS = 0.005


@dataclass(frozen=True)
class Failure:
    """A rank that did not come to its end.

    Attributes:
        rank: Which.
        error: The exception in a line, or how the process ended.
        trace: Where it was raised; empty for a process that just ended.
        when: Order among the ranks.
    """

    rank: int
    error: str
    trace: str = ""
    when: float = 0.0


@dataclass(frozen=True)
class Outcome:
    """How it ended.

    Attributes:
        ending: ``finished`` when every rank returned, ``failed`` when one raised or died,
            or only some skipped the test, ``skipped`` when all did, ``stalled`` when nothing
            was recorded any more, ``timeout``.
        results: What the ranks returned, where all did.
        failures: Processes that just ended, then exceptions, each in the order they happened.
        output: What each rank wrote to its standard output and error.
        waiting: Ranks that had not returned.
        skipped: Ranks that skipped the test, and why.
        seconds: How long it took.
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
) -> Outcome:
    """Calls ``function(rank, *arguments)`` in so many processes that share a process group.

    Args:
        function: What each rank does. The default process group is there when it begins.
        *arguments: Handed on.
        ranks: How many processes.
        rings: Where their rings go; None to record nothing, and to see no stall.
        backend: Of the process group.
        start_method: ``fork``, or ``spawn``, which needs a function that can be imported and
            takes the seconds that importing torch takes; None for spawn with NCCL, else fork.
        stall_after: Seconds without anything being recorded, on any rank, that count as a
            hang. The rings will show as many.
        timeout: Seconds after which the processes are ended whatever they do.
        keywords: Handed on, too.

    Raises:
        UsageError: It cannot be done in this process.
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
        # Here and not in each child: it takes a second, and a fork takes none.
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
    """The ranks of one job, while they run.

    Args:
        job: The job.
        files: Closes what is open in the end.
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
        """Starts the ranks."""
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(OSError, ValueError):
                stream.flush()
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
            # Of threads that do not come along. The child starts its own.
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
        """Waits until all ranks have returned, or will not; returns which."""
        moved, heads = self.begun, self._heads()
        # The last sign of life in a ring can be a beat old when its process is killed.
        patience = stall_after + BEAT_SECONDS
        while self.waiting:
            heard = self._listen()
            now, before, heads = time.monotonic(), heads, self._heads()
            if heard or heads != before:
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
        """Returns how many calls each ring holds."""
        from ncclscope.ring import layout
        from ncclscope.ring.reader import RingFile

        heads = {}
        for path in self.job.rings.glob(f"*{layout.SUFFIX}") if self.job.rings else ():
            with contextlib.suppress(OSError, DamagedFileError):  # it is just being made
                ring = RingFile(path)
                heads[path.name] = ring.head
                ring.close()
        return heads

    def _listen(self) -> bool:
        """Takes what ranks have to say; returns whether any had."""
        open_ones = {self.controls[rank]: rank for rank in self.waiting}
        # Asked before it is listened, so that what a process said last is heard first. That it
        # lets go of its socket would not do: what it has forked may hold it, too.
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
                self.failures.append(Failure(rank, self._ended(rank), when=time.monotonic()))
        silent = [rank for rank in over if self.controls[rank] not in ready]
        self.failures += [
            Failure(rank, self._ended(rank), when=time.monotonic()) for rank in silent
        ]
        return bool(ready or silent)

    def _take(self, rank: int, message: Mapping[str, Any]) -> None:
        if "joined" in message:
            self.joined.add(rank)
        elif "done" in message:
            self.done.add(rank)
        elif "skipped" in message:
            self.skipped[rank] = message["skipped"]
        else:
            failure = Failure(rank, message["error"], message["trace"], message["when"])
            self.failures.append(failure)

    def _end(self, rank: int) -> str | None:
        """Says how a process has ended; None where it has not."""
        # It is not reaped here, so that nobody else can have its number before the end.
        flags = os.WEXITED | os.WNOWAIT | os.WNOHANG
        try:
            found = os.waitid(os.P_PID, self.pids[rank], flags)
        except ChildProcessError:
            return "its process was waited for by somebody else"
        if found is None:
            return None
        if found.si_code == os.CLD_EXITED:
            return f"its process ended with status {found.si_status}"
        return f"its process was killed by {signal.Signals(found.si_status).name}"

    def _ended(self, rank: int) -> str:
        """Waits for a process that has let go of its socket, and says how it ended."""
        deadline = time.monotonic() + _END_SECONDS
        while time.monotonic() < deadline:
            text = self._end(rank)
            if text is not None:
                return text
            time.sleep(_POLL_SECONDS)
        return "its process stopped talking"

    def end(self) -> None:
        """Kills what has not returned, then lets the others end in order.

        Their rings then say that they did: a rank that left its peers waiting is not one that
        is busy somewhere.
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
        """Kills a process and what it has started."""
        pid = self.pids[rank]
        # Its group is there as long as the process has not been waited for.
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(pid, signal.SIGKILL)
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)

    def outcome(self, ending: str) -> Outcome:
        """Returns how it ended."""
        results = self._results() if ending == "finished" else []
        return Outcome(
            ending="failed" if ending == "finished" and self.failures else ending,
            results=results,
            # A process that just ended is noticed later than it happens: its peers' exceptions,
            # which follow from it, may have arrived before.
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
                text = f"what it returned cannot be taken over: {type(error).__name__}: {error}"
                self.failures.append(Failure(rank, text, when=time.monotonic()))
        return results if not self.failures else []


def rings_directory() -> Path:
    """Makes a place for rings in memory, where there is such a place."""
    memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    return Path(tempfile.mkdtemp(prefix="ncclscope-test-", dir=memory))


def remove(directory: Path) -> None:
    """Removes a place for rings."""
    shutil.rmtree(directory, ignore_errors=True)
