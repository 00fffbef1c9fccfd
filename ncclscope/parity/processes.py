"""Runs a function as so many ranks, in real processes, and says how that ended.

The processes are forked, so the function may be anything: a closure, a lambda, what a
strategy has drawn. They are watched by what their rings record, and ended with SIGKILL when
that stands still; whatever happens, none is left behind.
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
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ncclscope.errors import DamagedFileError, UsageError
from ncclscope.parity.rank_process import Job, be_rank
from ncclscope.tracing.tracer import BEAT_SECONDS

__all__ = ["Failure", "Outcome", "run_ranks"]

STALL_SECONDS = 10.0
TIMEOUT_SECONDS = 120.0
_GRACE_SECONDS = 1.0
"""After one rank has raised, for the others to come to where they wait for it."""
_POLL_SECONDS = 0.05
_END_SECONDS = 10.0


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
            ``stalled`` when nothing was recorded any more, ``timeout``.
        results: What the ranks returned, where all did.
        failures: Processes that just ended, then exceptions, each in the order they happened.
        output: What each rank wrote to its standard output and error.
        waiting: Ranks that had not returned.
        seconds: How long it took.
    """

    ending: str
    results: Sequence[Any]
    failures: Sequence[Failure]
    output: Mapping[int, str]
    waiting: Sequence[int]
    seconds: float


def run_ranks(
    function: Callable[..., Any],
    *arguments: Any,
    ranks: int,
    rings: Path | None,
    backend: str = "gloo",
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
        stall_after: Seconds without anything being recorded, on any rank, that count as a
            hang. The rings will show as many.
        timeout: Seconds after which the processes are ended whatever they do.
        keywords: Handed on, too.

    Raises:
        UsageError: It cannot be done in this process.
    """
    _prepare(ranks, backend)
    with tempfile.TemporaryDirectory(prefix="ncclscope-ranks-") as workplace:
        job = Job(function, arguments, ranks, backend, Path(workplace), rings, keywords or {})
        processes = _Processes(job)
        try:
            processes.start()
            ending = processes.watch(stall_after, timeout)
        finally:
            processes.end()
        return processes.outcome(ending)


def _prepare(ranks: int, backend: str) -> None:
    if not sys.platform.startswith("linux"):
        raise UsageError("functions are run as ranks on Linux only")
    if ranks < 1:
        raise UsageError(f"{ranks} ranks cannot be run", "give one or more")
    try:
        # Here and not in each child: it takes a second, and a fork takes none.
        import torch.distributed as dist
    except ImportError:
        raise UsageError(
            "ranks need torch to join a process group", "install it with: pip install torch"
        ) from None
    if not dist.is_available():
        raise UsageError("this build of torch has no torch.distributed")
    if dist.is_initialized():
        raise UsageError(
            "this process is in a process group already, and the ranks are forked from it",
            "call torch.distributed.destroy_process_group() first",
        )
    cuda = sys.modules.get("torch.cuda")
    if backend == "nccl" and cuda is not None and cuda.is_initialized():
        raise UsageError(
            "this process has used CUDA, and its forks cannot", "use CUDA in the ranks alone"
        )


class _Processes:
    """The ranks of one job, while they run."""

    def __init__(self, job: Job) -> None:
        self.job = job
        self.pids: dict[int, int] = {}
        self.controls: dict[int, socket.socket] = {}
        self.received: dict[int, bytes] = {}
        self.joined: set[int] = set()
        self.done: set[int] = set()
        self.failures: list[Failure] = []
        self.begun = time.monotonic()

    def start(self) -> None:
        """Forks the ranks."""
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(OSError, ValueError):
                stream.flush()
        parent = os.getpid()
        for rank in range(self.job.ranks):
            ours, theirs = socket.socketpair()
            with warnings.catch_warnings():
                # Of threads that do not come along. The child starts its own.
                warnings.simplefilter("ignore", DeprecationWarning)
                pid = os.fork()
            if pid == 0:
                be_rank(self.job, rank, theirs, parent)
            theirs.close()
            self.pids[rank], self.controls[rank] = pid, ours
            with contextlib.suppress(OSError):
                os.setpgid(pid, pid)

    @property
    def waiting(self) -> list[int]:
        """Ranks that have neither returned nor failed."""
        over = self.done | {failure.rank for failure in self.failures}
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
        return "failed" if self.failures else "finished"

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
        return bool(ready)

    def _take(self, rank: int, message: Mapping[str, Any]) -> None:
        if "joined" in message:
            self.joined.add(rank)
        elif "done" in message:
            self.done.add(rank)
        else:
            failure = Failure(rank, message["error"], message["trace"], message["when"])
            self.failures.append(failure)

    def _ended(self, rank: int) -> str:
        """Waits for a process that has let go of its socket, and says how it ended."""
        pid = self.pids[rank]
        deadline = time.monotonic() + _END_SECONDS
        # It is not reaped here, so that nobody else can have its number before the end.
        while time.monotonic() < deadline:
            found = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT | os.WNOHANG)
            if found is not None:
                if found.si_code == os.CLD_EXITED:
                    return f"its process ended with status {found.si_status}"
                return f"its process was killed by {signal.Signals(found.si_status).name}"
            time.sleep(_POLL_SECONDS)
        return "its process stopped talking"

    def end(self) -> None:
        """Lets ranks end in order where all have returned, and kills what is left."""
        if self.pids and not self.waiting and not self.failures:
            for control in self.controls.values():
                with contextlib.suppress(OSError):
                    control.shutdown(socket.SHUT_WR)
            self._wait(time.monotonic() + _END_SECONDS)
        for pid in self.pids.values():
            # Its group is there as long as the process has not been waited for.
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(pid, signal.SIGKILL)
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        for pid in self.pids.values():
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, 0)
        for control in self.controls.values():
            control.close()

    def _wait(self, deadline: float) -> None:
        """Waits until the processes have ended, without reaping them."""
        for rank, control in self.controls.items():
            remaining = max(deadline - time.monotonic(), 0)
            ready, _, _ = select.select([control], [], [], remaining)
            if ready:
                self._ended(rank)

    def outcome(self, ending: str) -> Outcome:
        """Returns how it ended."""
        return Outcome(
            ending=ending,
            results=list(self._results()) if ending == "finished" else (),
            # A process that just ended is noticed later than it happens: its peers' exceptions,
            # which follow from it, may have arrived before.
            failures=sorted(self.failures, key=lambda failure: (bool(failure.trace), failure.when)),
            output={
                rank: path.read_text(errors="replace")
                for rank in self.pids
                if (path := self.job.output(rank)).exists()
            },
            waiting=self.waiting,
            seconds=time.monotonic() - self.begun,
        )

    def _results(self) -> Iterator[Any]:
        for rank in range(self.job.ranks):
            # Written a moment ago by a child of ours, in a folder that only we may enter.
            with open(self.job.result(rank), "rb") as file:
                yield pickle.load(file)


def rings_directory() -> Path:
    """Makes a place for rings in memory, where there is such a place."""
    memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    return Path(tempfile.mkdtemp(prefix="ncclscope-test-", dir=memory))


def remove(directory: Path) -> None:
    """Removes a place for rings."""
    shutil.rmtree(directory, ignore_errors=True)
