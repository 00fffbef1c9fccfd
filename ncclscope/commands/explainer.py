"""Explain a hang in the job's own log: a ``watch`` beside the program of ``ncclscope run``."""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

_END_SECONDS = 5.0
_DIAGNOSE_SECONDS = 30.0
"""Seconds that the verdict on a failed program may take: its shell waits for it."""
_INTERVAL = 0.5
_PR_SET_PDEATHSIG = 1


class Explainer:
    """Starts one watching process for each directory of rings, once there are some.

    Where several ``ncclscope run`` share a directory, as the tasks of a Slurm step do, the first of
    them explains.

    Args:
        directory: Requested directory of the rings.
        options: Options of ``ncclscope watch``.
        places: Return the directories where the rings are.
    """

    def __init__(
        self, directory: Path, options: Sequence[str], places: Callable[[], list[Path]]
    ) -> None:
        self._directory = directory
        self._options = options
        self._places = places
        self._watched: list[Path] = []
        self._first: bool | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._explained = False

    @property
    def pid(self) -> int | None:
        """Process id of the watching process, while it runs."""
        return None if self._process is None else self._process.pid

    def begin(self) -> None:
        """Begin to watch, unless nobody has recorded yet or another process watches already.

        Later rings may have found no room where the first are; then begin again, with both places.
        """
        places = self._places()
        if set(places) <= set(self._watched) or not self._is_first():
            return
        if self._process is not None:
            self._process.terminate()  # :meth:`reap` collects it, and then the next call begins
            return
        self._watched = places
        prctl = ctypes.CDLL(None).prctl

        def go_on_after_us() -> None:
            """Let the kernel continue it if this process is killed while both are stopped."""
            prctl(_PR_SET_PDEATHSIG, int(signal.SIGCONT), 0, 0, 0)

        with contextlib.suppress(OSError):
            self._process = subprocess.Popen(
                [
                    *(sys.executable, "-m", "ncclscope", "watch", *map(str, places)),
                    *("--explain", "--while-pid", str(os.getpid())),
                    *("--interval", str(_INTERVAL)),
                    *self._options,
                ],
                stdin=subprocess.DEVNULL,
                stdout=sys.stderr.fileno(),
                # The terminal's Ctrl-C is for the program.
                start_new_session=True,
                preexec_fn=go_on_after_us,
            )

    def reap(self) -> None:
        """Collect the status of the watching process, if it has ended."""
        if self._process is not None and self._process.poll() is not None:
            self._explained |= self._process.returncode == 1
            self._process = None

    def pause(self) -> None:
        """Stop watching, as the job has been stopped on purpose."""
        if self._process is not None:
            self._process.send_signal(signal.SIGSTOP)

    def go_on(self) -> None:
        """Continue watching."""
        if self._process is not None:
            self._process.send_signal(signal.SIGCONT)

    def end(self) -> bool:
        """End the watching process; return whether it has explained a divergence or hang."""
        if self._process is not None:
            self._process.terminate()
            self._process.send_signal(signal.SIGCONT)
            try:
                self._process.wait(_END_SECONDS)  # it may be writing a bundle
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
            self.reap()
        return self._explained

    def explain_end(self) -> None:
        """Print the verdict on a program that has failed, if its ranks had diverged or hung."""
        if not self._is_first():
            return
        command = [
            sys.executable,
            "-m",
            "ncclscope",
            "diagnose",
            "--unread",
            *map(str, self._places()),
        ]
        with contextlib.suppress(OSError, subprocess.TimeoutExpired):
            done = subprocess.run(
                command,
                capture_output=True,
                timeout=_DIAGNOSE_SECONDS,
                check=False,
            )
            if done.returncode == 1:
                sys.stderr.buffer.write(done.stdout)
                sys.stderr.flush()

    def _is_first(self) -> bool:
        """Return whether no other process explains this directory; asked once."""
        if self._first is None:
            self._first = True
            # The lock is held until this process ends. Without locks: rather two than none.
            with contextlib.suppress(OSError):
                lock = os.open(self._directory, os.O_RDONLY | os.O_DIRECTORY)
                try:
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError:
                    self._first = False
        return self._first
