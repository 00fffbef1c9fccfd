"""A run's processes, seen from the command: started, waited for, ended."""

from __future__ import annotations

import contextlib
import http.client
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from board import Board
from plan import Plan

__all__ = ["Cluster", "ClusterError", "workplace"]

_START_SECONDS = 180.0
_END_SECONDS = 40.0
_POLL_SECONDS = 0.1
_HERE = Path(__file__).parent


class ClusterError(Exception):
    """The processes could not be run."""


@contextlib.contextmanager
def workplace() -> Iterator[Path]:
    """Make a folder in memory, and remove it in the end."""
    memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    path = Path(tempfile.mkdtemp(prefix=f"routed-experts-{os.getpid()}-", dir=memory))
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)


class Cluster:
    """One run, as a context manager that leaves no process behind.

    Args:
        plan: Of the run.

    Attributes:
        port: Where the front listens.
        board: The processes' figures.

    Raises:
        ClusterError: On entering: the processes did not get ready.
    """

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.port = 0

    def __enter__(self) -> Cluster:
        environment = {
            **os.environ,
            # One thread each: the processes share the cores.
            **dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1"),
            "NCCLSCOPE_RECORDS": str(1 << 17),
        }
        with self.plan.log.open("ab") as log:
            self._fork_server = subprocess.Popen(
                [sys.executable, str(_HERE / "fork_server.py"), self.plan.to_json()],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                env=environment,
                start_new_session=True,
            )
        try:
            self._wait_until_ready()
        except BaseException:
            self.kill()
            raise
        self.board = Board(self.plan)
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    def _wait_until_ready(self) -> None:
        assert self._fork_server.stdout is not None
        line = self._fork_server.stdout.readline()
        if not line:
            raise ClusterError(f"the processes could not be started: {self._reason()}")
        self.port = int(line)
        deadline = time.monotonic() + _START_SECONDS
        while not self._healthy():
            if self._fork_server.poll() is not None or time.monotonic() > deadline:
                raise ClusterError(f"the engines did not get ready: {self._reason()}")
            time.sleep(_POLL_SECONDS)

    def _healthy(self) -> bool:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=_START_SECONDS)
        with contextlib.closing(connection):
            try:
                connection.request("GET", "/health")
                return connection.getresponse().status == 200
            except OSError:
                return False

    @property
    def hung(self) -> bool:
        """Whether a collective has failed.

        Raises:
            ClusterError: A process has ended, which no collective makes it do.
        """
        if self._fork_server.poll() is not None:
            raise ClusterError(self._reason())
        return self.board.total("failed") > 0

    def end(self) -> None:
        """End all processes in order.

        Raises:
            ClusterError: They did not.
        """
        assert self._fork_server.stdin is not None
        self._fork_server.stdin.close()
        try:
            status = self._fork_server.wait(_END_SECONDS)
        except subprocess.TimeoutExpired:
            status = 1
        if status:
            raise ClusterError(f"the processes did not end in order: {self._reason()}")

    def kill(self) -> None:
        """End all of them at once."""
        if self._fork_server.poll() is None:
            # Its children have asked the kernel to be killed along with it.
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._fork_server.pid, signal.SIGKILL)
        self._fork_server.wait()
        for stream in (self._fork_server.stdin, self._fork_server.stdout):
            if stream is not None:
                with contextlib.suppress(OSError):
                    stream.close()

    def _reason(self) -> str:
        """Return the last line that a process has printed."""
        lines = self.plan.log.read_text(errors="replace").splitlines()
        return next((line.strip() for line in reversed(lines) if line.strip()), "no reason given")
