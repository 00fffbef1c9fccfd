"""`ncclscope run` beside a program: stops, kills, process 1, and what a program inherits."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import psutil
import pytest

from ncclscope.attach.processes import describe
from ncclscope.procfs import is_stopped, start_ticks
from tests.support.signalled import RUN, Job, environment, eventually, listener

USR1, USR2 = signal.SIGUSR1, signal.SIGUSR2
QUEUED = signal.SIGRTMIN
"""A second one that comes at once is delivered, too; of others it would be one."""


@contextlib.contextmanager
def running(
    job: Job, *prefix: str, lead: Callable[[], object] = os.setsid
) -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen(
        [*prefix, *job.command],
        env=environment(),
        stderr=subprocess.DEVNULL,
        preexec_fn=lead,
    )
    try:
        job.wait_until_ready()
        yield process
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait(30)
        job.end()


@pytest.fixture
def job(tmp_path: Path) -> Job:
    return Job(tmp_path, listener(tmp_path), under_run=True)


def test_no_process_of_run_is_taken_for_a_rank(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    """A launcher such as srun starts each rank under a `run` of its own."""
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "2")
    job.handles(USR1)
    with running(job) as process:
        alike = [describe(one.pid) for one in psutil.Process(process.pid).children()]
        program = describe(job.pids()[0])
        (sentinel,) = (one for one in alike if one.words == program.words and one != program)

        assert (sentinel.integer("RANK"), program.integer("RANK")) == (None, 0)


# --- stops and kills of `run` itself --------------------------------------------------------------


@pytest.mark.parametrize("option", [None, pytest.param("--no-explain", marks=pytest.mark.slow)])
def test_stops_of_run_invent_no_signal_and_lose_none(tmp_path: Path, option: str | None) -> None:
    """Longer ones outlast each of its timeouts, and short ones interrupt any system call."""
    options = [option] if option else []
    job = Job(tmp_path, listener(tmp_path), under_run=True, options=options)
    job.handles(*(signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}))
    with running(job) as process:
        for pause in (1.5, *(0.0001 * step for step in range(200))):
            os.kill(process.pid, signal.SIGSTOP)
            time.sleep(pause)
            if pause > 1:
                os.kill(process.pid, USR1)
            os.kill(process.pid, signal.SIGCONT)
            time.sleep(pause / 10)
        os.kill(process.pid, USR2)
        eventually(lambda: USR2 in job.received())
        job.last()
        os.kill(process.pid, USR2)
        assert process.wait(30) == 9
    assert set(job.received()) == {USR1, signal.SIGCONT, USR2}
    assert [one for one in job.received() if one != signal.SIGCONT] == [USR1, USR2, USR2]


@pytest.mark.slow
def test_stop_and_continue_storms_leave_the_job_running(job: Job) -> None:
    job.handles(USR1)
    with running(job) as process:
        program = job.pids()[0]
        for step in range(200):
            target = (process.pid, program)[step % 2]
            os.kill(target, signal.SIGTSTP if step % 3 else signal.SIGSTOP)
            time.sleep(0.0002 * (step % 50))
            os.kill(target, signal.SIGCONT)
        os.kill(process.pid, signal.SIGCONT)
        eventually(lambda: not is_stopped(process.pid) and not is_stopped(program))
        job.last()
        os.kill(process.pid, USR1)
        assert process.wait(30) == 9
    assert job.received() == [USR1]


def test_killing_run_kills_the_program(job: Job) -> None:
    job.handles(USR1)
    with running(job) as process:
        (program,) = job.pids()
        relatives = [program, *(child.pid for child in psutil.Process(process.pid).children())]
        process.kill()
        assert process.wait(30) == -signal.SIGKILL
        eventually(lambda: not any(map(start_ticks, relatives)))


def test_program_that_is_stopped_alone_stops_run_until_it_goes_on(job: Job) -> None:
    job.handles(USR1)
    with running(job) as process:
        (program,) = job.pids()
        for _ in range(5):
            os.kill(program, signal.SIGSTOP)
            eventually(lambda: is_stopped(process.pid))
            os.kill(program, signal.SIGCONT)
            eventually(lambda: not is_stopped(process.pid))
        job.finish(USR1)
        assert process.wait(30) == 9


@pytest.mark.slow
@pytest.mark.parametrize(
    ("stop", "rests"), [(signal.SIGTSTP, True), (signal.SIGSTOP, False)], ids=["asked", "forced"]
)
def test_watching_process_rests_while_the_job_is_suspended(
    tmp_path: Path, stop: int, rests: bool
) -> None:
    """A program that SIGSTOP stopped may be why the others hang, so that is still watched."""
    job = Job(tmp_path, listener(tmp_path), under_run=True, words=["traced"])
    job.handles(USR1)
    with running(job, lead=os.setpgrp) as process:
        children = psutil.Process(process.pid).children
        eventually(lambda: any("watch" in one.cmdline() for one in children()))
        (watch,) = (one.pid for one in children() if "watch" in one.cmdline())
        os.kill(job.pids()[0], stop)
        eventually(lambda: is_stopped(process.pid))
        if rests:
            eventually(lambda: is_stopped(watch))
        assert is_stopped(watch) is rests
        os.kill(process.pid, signal.SIGCONT)
        eventually(lambda: not is_stopped(process.pid) and not is_stopped(watch))
        job.finish(USR1)
        assert process.wait(30) == 9


# --- signals to many processes at once ------------------------------------------------------------


def test_watching_process_that_rests_ends_when_run_is_killed(tmp_path: Path) -> None:
    job = Job(tmp_path, listener(tmp_path), under_run=True, words=["traced"])
    job.handles(USR1)
    with running(job, lead=os.setpgrp) as process:
        children = psutil.Process(process.pid).children
        eventually(lambda: any("watch" in one.cmdline() for one in children()))
        (watch,) = (one for one in children() if "watch" in one.cmdline())
        os.kill(job.pids()[0], signal.SIGTSTP)
        eventually(lambda: is_stopped(process.pid) and is_stopped(watch.pid))
        process.kill()
        eventually(lambda: not watch.is_running())


def by_name(pattern: str) -> Callable[[int], None]:
    def send(_leader: int) -> None:
        if shutil.which("pkill") is None:
            pytest.skip("pkill is not installed")
        subprocess.run(["pkill", f"-{int(QUEUED)}", "-f", pattern], check=True)

    return send


def to_each_process(leader: int) -> None:
    """As Slurm signals each process of a step."""
    for one in sorted(psutil.pids()):
        with contextlib.suppress(ProcessLookupError):
            if os.getsid(one) == leader:
                os.kill(one, QUEUED)


@pytest.mark.parametrize("receivers", ["each process", "the program's name", "the name of run"])
def test_signal_to_many_processes_reaches_the_program_once(
    job: Job, tmp_path: Path, receivers: str
) -> None:
    send = {
        "each process": to_each_process,
        "the program's name": by_name(f"signal_listener.py {tmp_path}"),
        "the name of run": by_name(f"ncclscope run .*{tmp_path}"),
    }[receivers]
    job.handles(QUEUED, USR2)
    with running(job) as process:
        send(process.pid)
        assert job.next_signal() == QUEUED
        job.last()
        os.kill(process.pid, USR2)
        assert process.wait(30) == 9
        assert job.received() == [QUEUED, USR2]


def test_signal_of_the_program_to_its_parent_does_not_come_back(tmp_path: Path) -> None:
    program = """
        import os, signal, sys, time
        signal.signal(signal.SIGUSR1, lambda *_: sys.exit(3))
        os.kill(os.getppid(), signal.SIGUSR1)
        time.sleep(0.5)
    """
    command = [*RUN, "--dir", str(tmp_path), "--", sys.executable, "-c", textwrap.dedent(program)]
    assert subprocess.run(command, env=environment(), timeout=60).returncode == 0


# --- what a program inherits ----------------------------------------------------------------------


MASKS = ("grep", "-E", "^(Shd|Sig[^Q])", "/proc/self/status")


@pytest.mark.parametrize(
    "inherited",
    [
        "pass",
        "signal.signal(signal.SIGCHLD, signal.SIG_IGN)",
        pytest.param("signal.signal(signal.SIGHUP, signal.SIG_IGN)", marks=pytest.mark.slow),
        pytest.param("signal.signal(signal.SIGINT, signal.SIG_IGN)", marks=pytest.mark.slow),
        "signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM, signal.SIGUSR1})",
    ],
)
def test_program_begins_with_the_signals_that_run_inherited(tmp_path: Path, inherited: str) -> None:
    start = f"import os, signal, sys; {inherited}; signal.signal(13, 0); signal.signal(25, 0); "
    shown = [
        subprocess.run(
            [sys.executable, "-c", f"{start}os.execvp(sys.argv[1], sys.argv[1:])", *command],
            env=environment(),
            stdout=subprocess.PIPE,
            timeout=60,
            check=True,
        ).stdout
        for command in (MASKS, (*RUN, "--dir", str(tmp_path), "--", *MASKS))
    ]
    assert shown[0] == shown[1]


@pytest.mark.slow
def test_alarm_that_was_set_before_rings_in_the_program(tmp_path: Path) -> None:
    start = "import os, signal, sys; signal.alarm(3); os.execvp(sys.argv[1], sys.argv[1:])"
    command = [*RUN, "--dir", str(tmp_path), "--", "sleep", "60"]
    done = subprocess.run([sys.executable, "-c", start, *command], env=environment(), timeout=30)
    assert done.returncode == 128 + signal.SIGALRM


def test_script_without_a_first_line_is_run_by_sh(tmp_path: Path) -> None:
    script = tmp_path / "script"
    script.write_text("exit 7\n")
    script.chmod(0o700)
    done = subprocess.run([*RUN, "--dir", str(tmp_path), "--", str(script)], env=environment())
    assert done.returncode == 7


# --- process 1 ------------------------------------------------------------------------------------


def in_a_namespace(command: Sequence[str]) -> list[str]:
    return ["unshare", "--pid", "--fork", "--kill-child", "--mount-proc", *command]


@pytest.fixture
def namespaces() -> None:
    done = subprocess.run(in_a_namespace(["true"]), capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"no namespace can be made here: {done.stderr.strip()}")


@pytest.mark.usefixtures("namespaces")
def test_process_1_reaps_orphans_and_ends_with_the_program(tmp_path: Path) -> None:
    program = """
        import os, subprocess, sys, time
        assert os.getppid() == 1
        for _ in range(20):
            subprocess.run(["sh", "-c", "sleep 0.05 & sleep 100 >/dev/null 2>&1 & exit 0"])
        deadline = time.monotonic() + 20
        def stat(pid):
            try:
                return open(f"/proc/{pid}/stat").read().rpartition(")")[2].split()[:2]
            except OSError:
                return "", ""
        def states():
            pids = [name for name in os.listdir("/proc") if name.isdecimal()]
            return [state for pid in pids for state, parent in [stat(pid)] if parent == "1"]
        while len(found := states()) != 22 or "Z" in found:  # we, the sentinel, and 20 sleepers
            assert time.monotonic() < deadline, found
            time.sleep(0.05)
        os.kill(os.getpid(), 9)
    """
    command = [*RUN, "--dir", str(tmp_path), "--", sys.executable, "-c", textwrap.dedent(program)]
    done = subprocess.run(
        in_a_namespace(command), env=environment(), capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 128 + signal.SIGKILL, done.stderr


@pytest.mark.usefixtures("namespaces")
def test_process_1_passes_signals_on(job: Job) -> None:
    handled = [signal.SIGHUP, signal.SIGINT, USR1, signal.SIGTSTP, signal.SIGRTMIN]
    job.handles(*handled, USR2)
    with running(job, *in_a_namespace([])) as outer:
        (run,) = psutil.Process(outer.pid).children()
        for number in handled:
            os.kill(run.pid, number)
            assert job.next_signal() == number
        os.kill(run.pid, signal.SIGTERM)
        assert outer.wait(30) == 128 + signal.SIGTERM
        assert job.rest() == []
