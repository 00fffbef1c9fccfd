"""Run a program as if it had been executed in place of this process.

Every signal that reaches this process reaches the program, once. Both stop and continue together,
and the program dies when this process is killed. As process 1 of a container, reap its orphans.
"""

from __future__ import annotations

import contextlib
import errno
import os
import select
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple, Protocol

from ncclscope.launch.sentinel import Sentinel
from ncclscope.launch.signals import (
    ENDING,
    FROM_KERNEL,
    Inherited,
    Received,
    SignalReader,
    stop_with,
)
from ncclscope.procfs import is_stopped

_TWIN_SECONDS = 0.02
"""Seconds that a scheduler may take to signal each process of a job, one after another."""
_HANGUP_SECONDS = 1.0
"""Seconds that a program which was asked to end has for that before its terminal hangs up."""
_LOOK_SECONDS = 1.0
"""Seconds between two calls of the companion's ``begin``."""
_OF_TERMINAL = frozenset({signal.SIGINT, signal.SIGQUIT, signal.SIGTSTP, signal.SIGWINCH})
_OWN = frozenset({signal.SIGPIPE, signal.SIGXFSZ, signal.SIGXCPU})
"""Signals that the kernel sends a process for what it does itself."""
_JOB_CONTROL = frozenset({signal.SIGTSTP, signal.SIGTTIN, signal.SIGTTOU})
_ENDED = frozenset(code for one in ENDING for code in (-one, 128 + one))


class Ended(NamedTuple):
    """How a program ended.

    Attributes:
        pid: Its process id.
        status: Its exit status; negative for a signal.
        interrupted: Whether somebody ended it by a signal, which it need not have died of.
        by_terminal: Whether it was interrupted by a key of the terminal.
    """

    pid: int
    status: int
    interrupted: bool
    by_terminal: bool


class Companion(Protocol):
    """A process beside the program, in a session of its own."""

    @property
    def pid(self) -> int | None:
        """Its process id, while it runs."""

    def begin(self) -> None:
        """Start it if it is time; called each second."""

    def reap(self) -> None:
        """Collect its exit status."""

    def pause(self) -> None:
        """Stop it, as the program has been stopped."""

    def go_on(self) -> None:
        """Continue it."""


class Supervisor:
    """Starts one program and waits for its end.

    From then on all signals are blocked, as this process is about to end with the program's status.

    Args:
        command: Program and arguments.
        environment: Its environment.
        companion: Process beside it.

    Raises:
        OSError: The program cannot be started.
    """

    def __init__(
        self,
        command: Sequence[str],
        environment: Mapping[str, str],
        companion: Companion | None = None,
    ) -> None:
        self._companion = companion
        self._look_at = time.monotonic() + _LOOK_SECONDS
        self._received: set[int] = set()
        self._by_terminal = False
        self._single: list[tuple[Received, float]] = []
        """Signals that the sentinel has not received yet, and until when to wait for that."""
        self._early: list[tuple[int, float]] = []
        """Numbers of signals that only the sentinel has received yet."""
        inherited = Inherited()
        self._reader = SignalReader()
        self._sentinel = Sentinel(self._reader, command)
        try:
            self._program = _start(command, environment, inherited)
        except OSError:
            self._sentinel.close()
            inherited.restore()
            raise
        # The program was not there yet to receive what was sent to all.
        self._sentinel.ask()
        for one in self._reader.read():
            self._pass_on(one)

    def wait(self) -> Ended:
        """Pass signals on until the program has ended, and return how it ended."""
        poll = select.poll()
        poll.register(self._reader, select.POLLIN)
        if self._sentinel.pid is not None:
            poll.register(self._sentinel, select.POLLIN)
        try:
            while (status := self._collect()) is None:
                for file, event in poll.poll(self._wait_ms()):
                    if file == self._sentinel.fileno() and event & (
                        select.POLLHUP | select.POLLERR
                    ):
                        poll.unregister(file)
                self._receive()
                self._settle()
                self._look()
        finally:
            self._sentinel.close()
        self._program.returncode = status
        # A signal to the whole job may have reached the program first.
        for one in self._reader.read():
            self._note(one)
        interrupted = bool(self._received & ENDING) or status in _ENDED or -status in self._received
        return Ended(self._program.pid, status, interrupted, self._by_terminal)

    def _wait_ms(self) -> int | None:
        """Return how many milliseconds there is nothing to do."""
        until = [deadline for _, deadline in (*self._single, *self._early)]
        if self._companion is not None:
            until.append(self._look_at)
        return max(0, int(1000 * (min(until) - time.monotonic())) + 1) if until else None

    def _look(self) -> None:
        now = time.monotonic()
        if self._companion is not None and now >= self._look_at:
            self._look_at = now + _LOOK_SECONDS
            with contextlib.suppress(Exception):  # the program matters more
                self._companion.begin()

    # --- signals -----------------------------------------------------------------------------

    def _receive(self) -> None:
        """Take new signals, and pair those that the sentinel has received as well."""
        now = time.monotonic()
        for one in self._reader.read():
            self._note(one)
            if one.sender == self._sentinel.pid:
                continue
            if self._sentinel.pid is None:
                is_shared = one.origin == FROM_KERNEL and one.number in _OF_TERMINAL
                self._take_shared(one) if is_shared else self._pass_on(one)
            elif one.number != signal.SIGCHLD:
                is_hangup = one.number == signal.SIGHUP and one.origin == FROM_KERNEL
                patience = _HANGUP_SECONDS if is_hangup else _TWIN_SECONDS
                revoked = _revoked_by(one.number)
                self._single = [other for other in self._single if other[0].number not in revoked]
                self._single.append((one, now + patience))
        self._early += ((number, now + _TWIN_SECONDS) for number in self._sentinel.read())
        self._pair()
        # Only now that its own signals are read: it may have had no processor until then.
        self._early = [early for early in self._early if early[1] > now]

    def _pair(self) -> None:
        for early in list(self._early):
            for single in self._single:
                if single[0].number == early[0]:
                    self._early.remove(early)
                    self._single.remove(single)
                    self._take_shared(single[0])
                    break

    def _settle(self, *, at_once: bool = False) -> None:
        """Pass on the signals that were sent to this process alone."""
        now = time.monotonic()
        due = float("inf") if at_once else now
        if any(deadline <= due for _, deadline in self._single):
            # The sentinel may have had no processor until now.
            self._early += ((number, now + _TWIN_SECONDS) for number in self._sentinel.ask())
            self._pair()
        alone = [one for one, deadline in self._single if deadline <= due]
        self._single = [single for single in self._single if single[1] > due]
        for one in alone:
            self._pass_on(one)

    def _note(self, one: Received) -> None:
        self._received.add(one.number)
        self._by_terminal |= one.number == signal.SIGINT and one.origin == FROM_KERNEL

    def _take_shared(self, one: Received) -> None:
        """Pass a signal to the whole group on to a program that has left it.

        As the leader of the group it could not have left.
        """
        group = os.getpgrp()
        if group == os.getpid() and os.getpgid(self._program.pid) != group:
            self._pass_on(one)

    def _pass_on(self, one: Received) -> None:
        is_own = one.sender == os.getpid() or one.origin == FROM_KERNEL
        if one.number == signal.SIGCHLD or (is_own and one.number in _OWN):
            return
        if one.sender != self._program.pid:  # else it meant whoever started it
            with contextlib.suppress(PermissionError):  # sudo: the sender might not have either
                os.kill(self._program.pid, one.number)

    # --- processes ---------------------------------------------------------------------------

    def _collect(self) -> int | None:
        """Collect children that have ended, stop with the program, and return its exit status."""
        pid = self._program.pid
        while change := os.waitid(os.P_PID, pid, os.WEXITED | os.WSTOPPED | os.WNOHANG):
            if change.si_code == os.CLD_EXITED:
                return change.si_status
            if change.si_code in (os.CLD_KILLED, os.CLD_DUMPED):
                return -change.si_status
            self._stop_with_it(change.si_status)
        for other in _ended_children():
            if other == pid:
                return self._collect()
            if self._companion is not None and other == self._companion.pid:
                self._companion.reap()
            else:
                os.waitpid(other, 0)
                if other == self._sentinel.pid:
                    self._sentinel.pid = None
        return None

    def _stop_with_it(self, number: int) -> None:
        """Stop as the program has, so that a shell sees it, and continue together with it."""
        self._receive()
        self._settle(at_once=True)
        if not is_stopped(self._program.pid):
            return
        paused = self._companion if number in _JOB_CONTROL else None
        if paused is not None:
            paused.pause()
        self._sentinel.continue_with(self._program.pid)
        stop_with(number)
        self._sentinel.rest()
        if paused is not None:
            paused.go_on()


def _start(
    command: Sequence[str], environment: Mapping[str, str], inherited: Inherited
) -> subprocess.Popen[bytes]:
    def start(words: Sequence[str]) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            words, env=environment, close_fds=False, preexec_fn=inherited.prepare_child
        )

    try:
        return start(command)
    except OSError as error:
        if error.errno != errno.ENOEXEC:
            raise
        # A script without a first line, as execvp(3) starts it.
        return start(["/bin/sh", *command])


def _revoked_by(number: int) -> frozenset[signal.Signals]:
    """Return the signals that the kernel discards where they are pending, as this one arrives.

    The sentinel may so have lost a signal of which this process knows.
    """
    if number == signal.SIGCONT:
        return _JOB_CONTROL
    return frozenset({signal.SIGCONT}) if number in _JOB_CONTROL else frozenset()


def _ended_children() -> Iterator[int]:
    """Yield each child that has ended; the caller collects it before it asks for the next."""
    with contextlib.suppress(ChildProcessError):
        while ended := os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT):
            yield ended.si_pid
