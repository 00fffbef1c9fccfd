"""Start a program that lists the signals it receives, plain and under `ncclscope run`."""

from __future__ import annotations

import contextlib
import os
import shlex
import signal
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from tests.support.programs import ROOT

RUN = (sys.executable, "-m", "ncclscope", "run")
LISTENER = """
import os, signal, sys

log, handled, *_ = sys.argv[1:]
output = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT)

# One byte for each delivery: Python calls a handler once for several.
deliveries, end = os.pipe()
os.set_blocking(end, False)
signal.set_wakeup_fd(end)
for number in open(handled).read().split():
    signal.signal(int(number), lambda *_: None)
if "group" in sys.argv:
    os.setpgid(0, 0)
if "traced" in sys.argv:
    import ncclscope
    tracer = ncclscope.Tracer(os.environ.get("NCCLSCOPE_DIR", log + ".rings"), rank=0, world_size=1)
os.write(output, f"ready {os.getpid()}\\n".encode())
while True:
    for number in os.read(deliveries, 1):
        os.write(output, f"{number}\\n".encode())
        if os.path.exists(log + ".last"):
            os._exit(9)
"""
SECONDS = 60.0


def environment() -> dict[str, str]:
    path = [str(ROOT), str(ROOT / "patches"), str(ROOT / "analyzers")]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(path), "OMP_NUM_THREADS": "1"}


def eventually(condition: Callable[[], object], what: object = "") -> None:
    """Wait until a condition holds."""
    deadline = time.monotonic() + SECONDS
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.005)


def listener(folder: Path) -> str:
    """Write the program to a folder, and return its path."""
    path = folder / "signal_listener.py"
    path.write_text(LISTENER)
    return str(path)


class Job:
    """One start of the program, described by the files through which it reports.

    Args:
        folder: A folder of its own.
        program: Path of the program.
        under_run: Whether `ncclscope run` starts it.
        options: Options of `run`.
        words: Further arguments of the program.
        around: Turns the program's command line into the one to start.
    """

    def __init__(
        self,
        folder: Path,
        program: str,
        *,
        under_run: bool,
        options: Sequence[str] = (),
        words: Sequence[str] = (),
        around: Callable[[list[str]], list[str]] = lambda command: command,
    ) -> None:
        folder.mkdir(exist_ok=True)
        self._log = folder / "signals"
        self._handled = folder / "handled"
        self._read = 0
        own = [sys.executable, program, str(self._log), str(self._handled), *words]
        command = around(own)
        if under_run:
            command = [*RUN, "--dir", str(folder / "rings"), *options, "--", *command]
        self.command = command
        self.line = f"{shlex.join(command)} 2>/dev/null"

    def handles(self, *numbers: int) -> None:
        """Choose the signals that the program lists; the others have their default action."""
        self._handled.write_text(" ".join(str(int(number)) for number in numbers))

    def lines(self) -> list[str]:
        return self._log.read_text().splitlines() if self._log.exists() else []

    def starts(self) -> int:
        return sum(line.startswith("ready") for line in self.lines())

    def wait_until_ready(self, count: int = 1) -> int:
        """Wait until so many processes list signals, and return the pid of the last."""
        eventually(lambda: self.starts() >= count)
        return self.pids()[-1]

    def pids(self) -> list[int]:
        """Return the pids of all processes that list signals."""
        return [int(line.split()[1]) for line in self.lines() if line.startswith("ready")]

    def received(self) -> list[int]:
        return [int(line) for line in self.lines() if not line.startswith("ready")]

    def next_signal(self) -> int:
        """Wait for one more signal, and return its number."""
        eventually(lambda: len(self.received()) > self._read, self.received())
        self._read += 1
        return self.received()[self._read - 1]

    def rest(self) -> list[int]:
        """Return the signals that nobody waited for."""
        return self.received()[self._read :]

    def last(self) -> None:
        """Let the program end with status 9 at the next signal that it lists."""
        self._log.with_name("signals.last").touch()

    def finish(self, number: int) -> None:
        """End the program, which must not have received any other signal until then."""
        self.last()
        os.kill(self.pids()[-1], number)
        assert self.next_signal() == number
        assert self.rest() == []

    def end(self) -> None:
        """Kill what is left of it."""
        for pid in self.pids():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    @staticmethod
    def parent_of(pid: int) -> int:
        """Return the pid of a process's parent."""
        stat = Path(f"/proc/{pid}/stat").read_text()
        return int(stat.rpartition(")")[2].split()[1])
