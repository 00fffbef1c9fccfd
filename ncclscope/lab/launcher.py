"""Launcher of a laboratory: starts the ranks, watches them, ends them."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import secrets
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

from ncclscope.errors import LaboratoryError
from ncclscope.lab.assignment import Assignment
from ncclscope.lab.plan import Program
from ncclscope.lab.progress import Phase, Progress, ProgressBoard
from ncclscope.launch.fork_server import ForkOrder, start
from ncclscope.ring.layout import HEARTBEAT_SECONDS

Outcome = Literal["running", "finished", "stalled", "failed"]

DEFAULT_CAPACITY = 16_384
"""Records per ring: enough for any run, and eight rings fit into a small /dev/shm."""

_POLL_SECONDS = 0.1
_START_SECONDS = 120.0
_END_SECONDS = 10.0


class Laboratory:
    """Context manager for one run of a program, which leaves nothing but the rings.

    Use it like this::

        with Laboratory(program, directory) as laboratory:
            for progress in laboratory.watch():
                print(progress.step, progress.calls)
            laboratory.kill()
        print(laboratory.outcome)

    Args:
        program: Program to run.
        directory: Directory of the rings.
        capacity: Records per ring.

    Attributes:
        outcome: Outcome so far, set by :meth:`watch`: ``running``, ``finished`` if every rank has
            finished, ``failed`` if a process died, ``stalled`` if no rank moves.
        pids: Process ids by rank, once the ranks exist.
        statuses: Exit statuses of the ranks that have ended, by rank; negative for a signal.

    Raises:
        LaboratoryError: On entering, or from :meth:`watch`: the ranks could not be run.
    """

    def __init__(
        self,
        program: Program,
        directory: str | os.PathLike[str],
        *,
        capacity: int = DEFAULT_CAPACITY,
    ) -> None:
        self.program = program
        self.directory = Path(directory).absolute()
        self.capacity = capacity
        self.outcome: Outcome = "running"
        self._killed = False
        self.pids: tuple[int, ...] = ()
        self.statuses: dict[int, int] = {}
        self._received = b""
        self._begun = time.monotonic()
        self._cleanup = contextlib.ExitStack()

    def __enter__(self) -> Laboratory:
        if not sys.platform.startswith("linux"):
            raise LaboratoryError("the laboratory runs on Linux only")
        if importlib.util.find_spec("torch") is None:
            raise LaboratoryError(
                "the laboratory's ranks need torch",
                "install it with: pip install torch; demo without options shows a recording",
            )
        with contextlib.ExitStack() as stack:
            workplace = Path(tempfile.mkdtemp(prefix="ncclscope-lab-"))
            stack.callback(shutil.rmtree, workplace, ignore_errors=True)
            self._assignment = Assignment(
                program=self.program,
                directory=self.directory,
                workplace=workplace,
                capacity=self.capacity,
                nonce=secrets.token_hex(8),
            )
            self._board = ProgressBoard.create(self._assignment.board, self.program.world_size)
            stack.callback(self._board.close)
            self._begun = time.monotonic()
            self._server, self._control = start(_order(self._assignment), self._assignment.log)
            stack.callback(self.kill)
            self._cleanup = stack.pop_all()
        return self

    def __exit__(self, *_exception: object) -> None:
        self._cleanup.close()

    def watch(
        self, stall_after: float = 3.0, interval: float = _POLL_SECONDS
    ) -> Iterator[Progress]:
        """Yield the progress of the ranks until they have ended or stalled.

        Args:
            stall_after: Report a stall after this many seconds without progress on any rank.
            interval: Seconds between two samples.

        Raises:
            LaboratoryError: A rank could not be started, or ended with an error of its own.
        """
        last = self.progress()
        moved = time.monotonic()
        while self.outcome == "running" and not self._killed:
            self._receive(interval)
            progress = self.progress()
            now = time.monotonic()
            if progress.ranks != last.ranks:
                moved = now
            last = progress
            self._check(progress)
            if progress.ready == len(progress.ranks):
                self.outcome = self._judge(now - moved, stall_after)
            yield progress

    def progress(self) -> Progress:
        """Return the progress of all ranks."""
        return Progress(time.monotonic() - self._begun, self._board.read())

    def kill(self) -> None:
        """Kill every process with SIGKILL, and wait until they are gone."""
        self._killed = True
        with contextlib.suppress(OSError):
            self._control.shutdown(socket.SHUT_WR)
        try:
            self._server.wait(_END_SECONDS)
        except subprocess.TimeoutExpired:
            # The kernel kills its children along with it.
            self._server.kill()
            self._server.wait()
        self._control.close()

    def _receive(self, seconds: float) -> None:
        """Receive messages of the fork server, waiting at most ``seconds``."""
        ready, _, _ = select.select([self._control], [], [], seconds)
        if not ready:
            return
        data = self._control.recv(65536)
        if not data:
            raise self._failure("the process that starts the ranks ended")
        *lines, self._received = (self._received + data).split(b"\n")
        for line in lines:
            message = json.loads(line)
            if "pids" in message:
                self.pids = tuple(message["pids"])
            else:
                self.statuses[message["rank"]] = message["status"]

    def _check(self, progress: Progress) -> None:
        """Check for errors that no fault causes.

        Raises:
            LaboratoryError: A rank could not start, or ended with an error of its own.
        """
        for rank, status in self.statuses.items():
            if progress.ranks[rank].phase is Phase.STARTING:
                raise self._failure(f"rank {rank} could not start", rank, status)
            if status > 0:
                raise self._failure(f"rank {rank} failed", rank, status)
        if progress.ready < len(progress.ranks) and progress.elapsed > _START_SECONDS:
            raise self._failure(f"the ranks were not ready after {_START_SECONDS:.0f} s")

    def _judge(self, quiet: float, stall_after: float) -> Outcome:
        if len(self.statuses) == self.program.world_size:
            return "failed" if any(self.statuses.values()) else "finished"
        # A ring's heartbeat can be this old when its process is killed; after one more, the records
        # themselves show the whole pause.
        if quiet <= stall_after + HEARTBEAT_SECONDS:
            return "running"
        return "failed" if any(self.statuses.values()) else "stalled"

    def _failure(
        self, what: str, rank: int | None = None, status: int | None = None
    ) -> LaboratoryError:
        """Return an error, with the reason that the process has written, if any.

        Args:
            what: What failed.
            rank: Global rank of the process; None for the fork server.
            status: Exit status of the process; negative for a signal.
        """
        reason = ""
        if rank is not None and self._assignment.error_file(rank).exists():
            reason = self._assignment.error_file(rank).read_text().strip()
        elif status is not None and status < 0:
            reason = f"killed by {signal.Signals(-status).name}"
        else:
            lines = self._assignment.log.read_text(errors="replace").split("\n")
            reason = next((line.strip() for line in reversed(lines) if line.strip()), "")
        return LaboratoryError(f"{what}: {reason}" if reason else what)


def _order(assignment: Assignment) -> ForkOrder:
    places = [assignment.program.place(rank) for rank in range(assignment.program.world_size)]
    return ForkOrder(
        function="ncclscope.lab.rank:run_rank",
        argument=assignment.to_json(),
        names=[f"lab_DP{dp_rank}_TP{tp_rank}" for dp_rank, tp_rank in places],
        workplace=str(assignment.workplace),
    )
