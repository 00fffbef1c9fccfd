"""``ncclscope run``."""

from __future__ import annotations

import argparse
import contextlib
import errno
import os
import shlex
import shutil
import signal
import time
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from ncclscope.commands.explainer import Explainer
from ncclscope.commands.launchers import launcher_name
from ncclscope.commands.new_rings import NewRings
from ncclscope.commands.options import add_flag, add_hang_options, add_seconds_option, say
from ncclscope.errors import UsageError, os_reason
from ncclscope.model.metadata import LAUNCHER
from ncclscope.native import profiler
from ncclscope.private import make_private, private_home
from ncclscope.ring.place import SHARED_MEMORY, bases, temporary
from ncclscope.tracing import session
from ncclscope.tracing.launchers import record_ends

_PASSED_ON = frozenset({signal.SIGHUP, signal.SIGINT, signal.SIGTERM})
_INTERRUPTED = frozenset(code for one in _PASSED_ON for code in (-one, 128 + one))
_STALL = 20.0
_LONGEST = 86_400.0
_LOOK_SECONDS = 1.0
"""Seconds between two polls for rings, until there are some."""


class RunCommand:
    """Start a program with tracing on, one ring file per process."""

    def prepare_parser(self, parser: argparse.ArgumentParser) -> None:
        """Add the command's arguments to its parser."""
        parser.usage = "%(prog)s [OPTIONS] -- COMMAND ..."
        parser.add_argument(
            "--dir",
            metavar="DIR",
            help="Write the rings to DIR (default: a new directory in /dev/shm)",
        )
        add_flag(
            parser,
            "--no-explain",
            "Do not watch the program; by default a first divergence or hang is explained "
            "on stderr, and the program goes on",
        )
        hang = "Explain a hang after SECONDS without progress inside a collective"
        add_seconds_option(parser, "--stall", f"{hang} (default: {_STALL:g})", _STALL)
        parser.add_argument(
            "--bundle",
            type=Path,
            metavar="DIR",
            help="Save rings, stacks and verdict of a divergence or hang to a new folder in DIR "
            "(default: a directory of yours in /tmp)",
        )
        add_hang_options(parser)
        parser.add_argument(
            "program",
            nargs=argparse.REMAINDER,
            metavar="COMMAND",
            help="Program to run, with its arguments",
        )

    def run(self, arguments: argparse.Namespace) -> int:
        """Run the program and return its exit status, as a shell would."""
        command = list(arguments.program)
        if command[:1] == ["--"]:
            del command[0]
        if not command:
            raise UsageError("no command to run", "give one after --, as in: run -- torchrun ...")
        if shutil.which(command[0]) is None:
            raise UsageError(f"cannot run {command[0]}: {_why_not(command[0])}")
        options = _watch_options(arguments)
        directory = _made(arguments.dir) if arguments.dir else _default_directory()
        rings = NewRings(directory)
        if os.environ.get("NCCLSCOPE") == "0":
            say("NCCLSCOPE=0 is set: nothing will be traced")
        explainer = None if arguments.no_explain else Explainer(directory, options, rings.places)
        environment = _environment(directory, rings.reports.name)
        try:
            ended = _supervise(command, environment, explainer)
        finally:
            explained = explainer is not None and explainer.end()
        status = ended.status if ended.status >= 0 else 128 - ended.status
        untraced = rings.untraced()
        for line in untraced:
            say(line)
        if written := rings.count():
            if status and not (ended.interrupted or explained):
                run = environment["NCCLSCOPE_RUN"]
                record_ends(rings.places()[0], LAUNCHER, {ended.pid: ended.status}, run=run)
            if explainer is not None and status and not explained:
                explainer.explain_end()
            say(f"{written} ring{'s' * (written > 1)} written")
        places = rings.places() if written or untraced else []
        if places:
            say(f"ncclscope diagnose {shlex.join(map(str, places))}")
        elif not untraced:
            say("no ring was written: no Python process made a process group of two or more")
        rings.reports.close()
        return status


def _why_not(program: str) -> str:
    return "permission denied" if os.path.exists(program) else "no such file or directory"


def _made(name: str) -> Path:
    """Create the directory for the rings, so that a mistake shows before the job starts."""
    directory = Path(name).resolve()
    try:
        make_private(directory)
        if not os.access(directory, os.W_OK | os.X_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
    except OSError as error:
        raise UsageError(f"rings cannot be written to {directory}: {os_reason(error)}") from None
    say(f"rings go to {directory}")
    return directory


def _watch_options(arguments: argparse.Namespace) -> list[str]:
    """Return the options of the ``watch`` that explains a hang."""
    for name in ("stall", "kill_after"):
        given = getattr(arguments, name)
        if given is not None and not 0 <= given <= _LONGEST:
            raise UsageError(f"--{name.replace('_', '-')} takes seconds from 0 to {_LONGEST:g}")
    bundles = arguments.bundle or _hangs()
    options = ["--stall", str(arguments.stall)]
    if bundles is not None:
        options += ["--bundle", str(bundles)]
    if arguments.on_hang:
        options += ["--on-hang", arguments.on_hang]
    if arguments.kill_after is not None:
        options += ["--kill-after", str(arguments.kill_after)]
    return options


def _hangs() -> Path | None:
    """Return the directory of bundles; None where no directory can be made."""
    for base in (temporary(), SHARED_MEMORY):
        if base is not None and (home := private_home(base)) is not None:
            return home / "hangs"
    return None


def _environment(directory: Path, reports: str) -> dict[str, str]:
    """Return our environment, extended so that each process records.

    Python installs the patches, and NCCL loads the profiler plugin in any program.

    Args:
        directory: Directory of the rings.
        reports: Socket on which a process can say that it cannot be recorded; empty for none.
    """
    bootstrap = Path(session.__file__).parent / "bootstrap"
    path = os.environ.get("PYTHONPATH")
    name = _run_name()
    return {
        **os.environ,
        **profiler.added_variables(os.environ),
        "NCCLSCOPE_DIR": str(directory),
        "NCCL_SCOPE_DIR": str(directory),
        "NCCLSCOPE_RUN": name,
        "NCCL_SCOPE_RUN": name,
        "NCCLSCOPE_REPORTS": reports,
        "NCCL_SCOPE_REPORTS": reports,
        "PYTHONPATH": f"{bootstrap}{os.pathsep}{path}" if path else str(bootstrap),
    }


def _run_name() -> str:
    """Return a name for the run, the same for all tasks of one Slurm step or one launcher."""
    step = [os.environ.get(name, "") for name in ("SLURM_JOB_ID", "SLURM_STEP_ID", "SLURM_PROCID")]
    if all(part.isdecimal() for part in step):
        return f"slurm-{step[0]}.{step[1]}"
    return launcher_name() or uuid.uuid4().hex[:16]


def _default_directory() -> Path:
    shared = launcher_name()
    name = shared or f"{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}"
    refused: list[str] = []
    for base in bases():
        home = private_home(base)
        with contextlib.suppress(OSError):
            if home is not None:
                directory = home / name
                directory.mkdir(mode=0o700, exist_ok=bool(shared))
                why = f": no directory can be made in {', '.join(refused)}" if refused else ""
                say(f"rings go to {directory.resolve()}{why}")
                return directory.resolve()
        refused.append(str(base))
    say(f"nothing may be recorded: no directory can be made in {', '.join(refused)}")
    return SHARED_MEMORY / f"ncclscope-{os.getuid()}" / name


class _Ended(NamedTuple):
    """How a program ended.

    Attributes:
        pid: Its process id.
        status: Its exit status; negative for a signal.
        interrupted: Whether somebody ended it by a signal, which it need not have died of.
    """

    pid: int
    status: int
    interrupted: bool


def _supervise(
    command: Sequence[str], environment: dict[str, str], explainer: Explainer | None
) -> _Ended:
    """Run a program, pass signals on to it, and return how it ended.

    Block the signals and wait for them, because only ``sigwaitinfo`` reports their sender: the
    terminal sends Ctrl-C to the program as well, which must not receive it twice.
    """
    awaited = _PASSED_ON | {signal.SIGCHLD}
    previous = signal.pthread_sigmask(signal.SIG_BLOCK, awaited)
    try:
        try:
            pid = os.posix_spawnp(command[0], list(command), environment, setsigmask=previous)
        except OSError as error:
            raise UsageError(f"cannot run {command[0]}: {os_reason(error)}") from error
        interrupted = False
        while True:
            received = signal.sigtimedwait(awaited, _LOOK_SECONDS)
            if received is None:
                if explainer is not None:
                    explainer.begin()
            elif received.si_signo == signal.SIGCHLD:
                ended, status = os.waitpid(pid, os.WNOHANG)
                if ended:
                    code = os.waitstatus_to_exitcode(status)
                    # A signal to the whole job may reach it first.
                    interrupted |= code in _INTERRUPTED or bool(signal.sigpending() & _PASSED_ON)
                    return _Ended(pid, code, interrupted)
            else:
                interrupted = True
                if received.si_pid:  # sent by a process, not by the terminal
                    os.kill(pid, received.si_signo)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, previous)
