"""`ncclscope run` under an interactive shell: the keys of its terminal, and job control."""

from __future__ import annotations

import os
import pty
import select
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from ncclscope.procfs import is_stopped
from tests.support.signalled import Job, environment, eventually, listener

CTRL_C, CTRL_Z, CTRL_BACKSLASH = b"\x03", b"\x1a", b"\x1c"


class Shell:
    """An interactive bash on a terminal of its own."""

    def __init__(self) -> None:
        self.pid, self._terminal = pty.fork()
        if self.pid == 0:
            bash = ["bash", "--norc", "--noprofile", "-i"]
            os.execvpe("bash", bash, {**environment(), "PS1": "", "HISTFILE": ""})
        self.text = ""

    def type(self, keys: bytes) -> None:
        os.write(self._terminal, keys)

    def run(self, line: str) -> None:
        self.type(f"{line}\n".encode())

    def wait_for(self, text: str) -> None:
        """Wait until the terminal shows a text after the last one that was waited for."""
        deadline = time.monotonic() + 30
        while text not in self.text:
            assert select.select([self._terminal], [], [], deadline - time.monotonic())[0], (
                self.text
            )
            self.text += os.read(self._terminal, 4096).decode(errors="replace")
        self.text = self.text.partition(text)[2]

    def close(self) -> None:
        os.kill(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)
        os.close(self._terminal)


@pytest.fixture
def shell() -> Iterator[Shell]:
    shell = Shell()
    yield shell
    shell.close()


@pytest.fixture(params=[False, True], ids=["without run", "under run"])
def job(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Job]:
    job = Job(tmp_path, listener(tmp_path), under_run=request.param)
    yield job
    job.end()


def test_ctrl_z_stops_the_job_and_fg_continues_it(shell: Shell, job: Job) -> None:
    """The terminal's own default action: the program has no handler for these signals."""
    job.handles(signal.SIGCONT, signal.SIGINT, signal.SIGUSR1)
    shell.run(job.line)
    program = job.wait_until_ready()
    parent = job.parent_of(program)
    for _ in range(3):
        shell.type(CTRL_Z)
        shell.wait_for("Stopped")
        eventually(lambda: is_stopped(program))  # the shell waits for its own child alone
        assert parent == shell.pid or is_stopped(parent)
        shell.run("fg")
        eventually(lambda: not is_stopped(program))
        assert job.next_signal() == signal.SIGCONT
    shell.type(CTRL_C)
    assert job.next_signal() == signal.SIGINT
    job.finish(signal.SIGUSR1)
    shell.run("echo =$?=")
    shell.wait_for("=9=")


def test_ctrl_z_can_be_handled(shell: Shell, job: Job) -> None:
    job.handles(signal.SIGTSTP, signal.SIGQUIT, signal.SIGUSR1)
    shell.run(job.line)
    program = job.wait_until_ready()
    for key, number in ((CTRL_Z, signal.SIGTSTP), (CTRL_BACKSLASH, signal.SIGQUIT)):
        shell.type(key)
        assert job.next_signal() == number
    assert not is_stopped(program)
    assert not is_stopped(job.parent_of(program))
    job.finish(signal.SIGUSR1)
    shell.run("echo =$?=")
    shell.wait_for("=9=")


@pytest.mark.slow
def test_a_job_that_was_stopped_goes_on_in_the_background(shell: Shell, job: Job) -> None:
    job.handles(signal.SIGCONT, signal.SIGUSR1)
    shell.run(job.line)
    program = job.wait_until_ready()
    shell.type(CTRL_Z)
    shell.wait_for("Stopped")
    shell.run("bg")
    assert job.next_signal() == signal.SIGCONT
    assert not is_stopped(program)
    job.last()
    shell.run("kill -USR1 %1; wait %1; echo =$?=")
    shell.wait_for("=9=")
    assert job.rest() == [signal.SIGUSR1]


def test_ctrl_c_ends_the_loop_of_a_shell(shell: Shell, job: Job) -> None:
    """Bash ends a loop only if its command dies of SIGINT, as a status of 130 does not show."""
    job.handles(signal.SIGUSR1)
    shell.run(f"for i in 1 2 3; do {job.line}; done; echo =ended=")
    job.wait_until_ready()
    shell.type(CTRL_C)
    shell.run("echo =$?=")
    shell.wait_for("=130=")
    assert job.starts() == 1


@pytest.mark.parametrize("target", ["run", pytest.param("program", marks=pytest.mark.slow)])
def test_stop_signal_to_one_process_stops_both_and_so_does_continuing(
    shell: Shell, tmp_path: Path, target: str
) -> None:
    job = Job(tmp_path, listener(tmp_path), under_run=True)
    job.handles(signal.SIGCONT, signal.SIGUSR1)
    shell.run(job.line)
    program = job.wait_until_ready()
    run = job.parent_of(program)
    receiver = {"run": run, "program": program}[target]
    for number in (signal.SIGTSTP, signal.SIGTTIN, signal.SIGTTOU, signal.SIGTSTP):
        os.kill(receiver, number)
        eventually(lambda: is_stopped(program) and is_stopped(run))
        os.kill(receiver, signal.SIGCONT)
        eventually(lambda: not is_stopped(program) and not is_stopped(run))
        assert job.next_signal() == signal.SIGCONT
    job.finish(signal.SIGUSR1)


def test_hangup_of_the_terminal_reaches_the_leader_of_its_session(tmp_path: Path) -> None:
    ended = []
    for under_run in (False, True):
        job = Job(tmp_path / str(under_run), listener(tmp_path), under_run=under_run)
        job.handles(signal.SIGHUP, signal.SIGCONT, signal.SIGUSR1)
        pid, terminal = pty.fork()
        if pid == 0:
            os.execvpe(job.command[0], job.command, environment())
        job.wait_until_ready()
        os.close(terminal)
        found = {job.next_signal(), job.next_signal()}
        job.last()
        os.kill(pid, signal.SIGUSR1)
        assert job.next_signal() == signal.SIGUSR1
        ended.append((found, os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), job.rest()))
    assert ended[0] == ended[1] == ({signal.SIGHUP, signal.SIGCONT}, 9, [])
