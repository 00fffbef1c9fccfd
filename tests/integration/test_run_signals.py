"""`ncclscope run` is transparent: each signal has the same outcome as without it.

Each case starts a program twice, plain and under `run`, and sends both the same signals.
"""

from __future__ import annotations

import contextlib
import functools
import os
import resource
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import psutil
import pytest

from ncclscope.procfs import is_stopped, start_ticks
from tests.support.signalled import Job, environment, eventually, listener

CAUGHT = sorted(signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP, signal.SIGCHLD})
STOPS = {signal.SIGTSTP, signal.SIGTTIN, signal.SIGTTOU}
HARMLESS = {signal.SIGCONT, signal.SIGURG, signal.SIGWINCH}
IGNORED_BY_PYTHON = {signal.SIGPIPE, signal.SIGXFSZ}
ONE_OF_EACH_KIND = [one for one in CAUGHT if one <= 31] + [signal.SIGRTMIN, signal.SIGRTMAX]
OF_LAUNCHERS = [signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTERM, signal.SIGUSR1]
SETTLED = 2.0
"""Seconds after which a process that a signal has not ended goes on."""


def unchanged(command: list[str]) -> list[str]:
    return command


def as_module(command: list[str]) -> list[str]:
    """Return `python -m NAME ...`; the program is in the current folder."""
    interpreter, program, *arguments = command
    return [interpreter, "-m", Path(program).stem, *arguments]


def in_a_shell(command: list[str]) -> list[str]:
    """Let a shell wait for the program, in place of becoming it."""
    return ["bash", "-c", '"$@"; exit $?', "bash", *command]


def by_torchrun(command: list[str]) -> list[str]:
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2"]
    return [*torchrun, "--no-python", "--", *command]


SHAPES: dict[str, tuple[Callable[[list[str]], list[str]], tuple[str, ...]]] = {
    "plain": (unchanged, ()),
    "module": (as_module, ()),
    "own group": (unchanged, ("group",)),
    "shell": (in_a_shell, ()),
    "torchrun": (by_torchrun, ()),
}


class Case(NamedTuple):
    """How a program is started and signalled.

    Attributes:
        shape: Name of what starts it.
        to: ``process`` or ``group``: whom the signals are sent to.
    """

    shape: str
    to: str


class Started:
    """The leader of a process group: a job, or the `run` that starts it.

    Args:
        folder: A folder of its own.
        case: How it is started.
        handled: Signals that the program lists.
        options: Options of `run`; None to start it without.
    """

    def __init__(
        self, folder: Path, case: Case, handled: Sequence[int], options: Sequence[str] | None
    ) -> None:
        self._to = case.to
        self.harmless = HARMLESS if case.shape == "shell" else HARMLESS | IGNORED_BY_PYTHON
        """Signals that do nothing to the leader if it does not handle them."""
        around, words = SHAPES[case.shape]
        is_watched = options is not None and not options
        self.job = Job(
            folder / "job",
            listener(folder),
            under_run=options is not None,
            options=options or (),
            words=(*words, *(("traced",) if is_watched else ())),
            around=around,
        )
        self.job.handles(*handled)

        def lead() -> None:
            os.setpgid(0, 0)
            resource.setrlimit(resource.RLIMIT_CORE, (0, 0))

        self.process = subprocess.Popen(
            self.job.command,
            cwd=folder,
            env=environment(),
            stderr=subprocess.DEVNULL,
            preexec_fn=lead,
        )
        self.job.wait_until_ready(2 if case.shape == "torchrun" else 1)
        if is_watched:
            children = psutil.Process(self.process.pid).children
            eventually(lambda: any("watch" in one.cmdline() for one in children()))

    def send(self, number: int) -> None:
        (os.killpg if self._to == "group" else os.kill)(self.process.pid, number)

    def end(self) -> None:
        """Kill what is left."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait(30)
        self.job.end()


@contextlib.contextmanager
def started(
    folder: Path, case: Case, handled: Sequence[int], options: Sequence[str] | None
) -> Iterator[Started]:
    start = Started(folder, case, handled, options)
    try:
        yield start
    finally:
        start.end()


# --- a program that handles all signals ----------------------------------------------------------


@pytest.mark.parametrize(
    ("shape", "to", "options"),
    [
        ("plain", "process", ["--no-explain"]),
        ("plain", "group", []),
        pytest.param("own group", "group", [], marks=pytest.mark.slow),
        pytest.param("plain", "process", [], marks=pytest.mark.slow),
        pytest.param("module", "process", [], marks=pytest.mark.slow),
        pytest.param("module", "group", ["--no-explain"], marks=pytest.mark.slow),
        pytest.param("own group", "process", ["--no-explain"], marks=pytest.mark.slow),
    ],
)
def test_program_receives_each_signal_once(
    tmp_path: Path, shape: str, to: str, options: list[str]
) -> None:
    with started(tmp_path, Case(shape, to), CAUGHT, options) as start:
        for number in CAUGHT:
            start.send(number)
            assert start.job.next_signal() == number
            assert start.job.rest() == []
        start.job.last()
        os.kill(start.process.pid, signal.SIGUSR2)  # passed on after any second delivery
        assert start.process.wait(30) == 9
        assert start.job.received() == [*CAUGHT, signal.SIGUSR2]


# --- default actions -----------------------------------------------------------------------------


class Outcome(NamedTuple):
    """What a signal did.

    Attributes:
        status: Exit status of the started process, as a shell has it; None if it went on.
        stopped: Whether it was stopped until SIGCONT.
        alive: How many of the programs went on.
    """

    status: int | None
    stopped: bool
    alive: int


def outcome(start: Started, number: int, expected: Outcome | None) -> Outcome:
    """Send a signal to a job, and return what it did."""
    mark = _mark_beside(number)
    start.send(number)
    stops = number in STOPS
    if stops:
        eventually(lambda: is_stopped(start.process.pid))
        start.send(signal.SIGCONT)
        eventually(lambda: not is_stopped(start.process.pid))
    goes_on = (
        stops or number in start.harmless or (expected is not None and expected.status is None)
    )
    try:
        status = start.process.wait(0 if goes_on else SETTLED if expected is None else 30)
    except subprocess.TimeoutExpired:
        status = None
    alive = sum(_answers(start, pid, mark) for pid in start.job.pids())
    if goes_on:
        assert start.process.poll() is None
    if status is not None and status < 0:
        status = 128 - status
    return Outcome(status, stops, alive)


def _mark_beside(number: int) -> int:
    return signal.SIGUSR1 if number == signal.SIGUSR2 else signal.SIGUSR2


def _answers(start: Started, pid: int, mark: int) -> bool:
    """Return whether a program handles a signal, which a dead one does not."""
    listed = start.job.received().count(mark)
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, mark)
    eventually(lambda: start.job.received().count(mark) > listed or not start_ticks(pid))
    return start.job.received().count(mark) > listed


@functools.cache
def outcome_without_run(case: Case, number: int) -> Outcome:
    with (
        tempfile.TemporaryDirectory() as folder,
        started(Path(folder), case, [_mark_beside(number)], None) as start,
    ):
        return outcome(start, number, None)


QUICK = [
    ("plain", "process", signal.SIGTERM, "watched"),
    ("plain", "group", signal.SIGINT, "unwatched"),
    ("plain", "process", signal.SIGTSTP, "unwatched"),
    ("module", "process", signal.SIGUSR1, "unwatched"),
    ("own group", "group", signal.SIGHUP, "unwatched"),
    ("shell", "process", signal.SIGUSR1, "unwatched"),
    ("shell", "group", signal.SIGQUIT, "unwatched"),
]
TABLE = [
    (shape, to, number, watched)
    for shape in SHAPES
    for to in ("process", "group")
    for number in (OF_LAUNCHERS if shape == "torchrun" else ONE_OF_EACH_KIND)
    for watched in ("watched", "unwatched")
]


@pytest.mark.parametrize(
    ("shape", "to", "number", "watched"),
    [pytest.param(*row, marks=() if row in QUICK else pytest.mark.slow) for row in TABLE],
)
def test_outcome_is_the_same_as_without_run(
    tmp_path: Path, shape: str, to: str, number: int, watched: str
) -> None:
    if shape == "torchrun":
        pytest.importorskip("torch")
    case = Case(shape, to)
    expected = outcome_without_run(case, number)
    options = [] if watched == "watched" else ["--no-explain"]
    with started(tmp_path, case, [_mark_beside(number)], options) as start:
        assert outcome(start, number, expected) == expected
