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
from collections.abc import Callable
from pathlib import Path

from ncclscope import settings
from ncclscope.commands.explainer import Explainer
from ncclscope.commands.launchers import launcher_name
from ncclscope.commands.new_rings import NewRings
from ncclscope.commands.options import add_flag, add_hang_options, add_seconds_option, say
from ncclscope.errors import ProgramError, UsageError, os_reason
from ncclscope.launch.signals import end_with, interruptible
from ncclscope.launch.supervisor import Supervisor
from ncclscope.model.metadata import LAUNCHER
from ncclscope.model.text import plural
from ncclscope.native import profiler
from ncclscope.private import make_private, private_home
from ncclscope.ring.place import SHARED_MEMORY, bases, temporary
from ncclscope.store.run_directory import DefaultPlaces
from ncclscope.tracing import session
from ncclscope.tracing.launchers import record_ends

_STALL = 20.0
_LONGEST = 86_400.0

_EPILOG = """\
exit status: that of the program, 128 + n if signal n ended it, 127 if it is not found, 126 if it
             cannot be executed, 2 a usage error

The program receives each signal that is sent to %(prog)s, and stops and continues with it.
"""


class RunCommand:
    """Start a program with tracing on, one ring file per process."""

    def prepare_parser(self, parser: argparse.ArgumentParser) -> None:
        """Add the command's arguments to its parser."""
        parser.usage = "%(prog)s [OPTIONS] -- COMMAND ..."
        parser.epilog = _EPILOG
        parser.add_argument(
            "--dir",
            metavar="DIR",
            help="Write the rings to DIR, where they stay (default: a new directory in /dev/shm)",
        )
        add_flag(
            parser,
            "--keep",
            "Keep the rings in the default directory; without it they are removed if the program "
            "ends with status 0 and no divergence or hang was reported",
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
        with DefaultPlaces() as places:
            return self._run(arguments, places)

    def _run(self, arguments: argparse.Namespace, own: DefaultPlaces) -> int:
        command = list(arguments.program)
        if command[:1] == ["--"]:
            del command[0]
        if not command:
            raise UsageError("no command to run", "give one after --, as in: run -- torchrun ...")
        if shutil.which(command[0]) is None:
            raise _missing(command[0])
        options = _watch_options(arguments)
        said: list[str] = []
        if arguments.dir:
            directory = _made(arguments.dir)
        else:
            directory = own.enter(lambda: _default_directory(said.append), say)
        rings = NewRings(directory)
        for line in said[-1:]:
            say(line)
        if os.environ.get("NCCLSCOPE") == "0":
            say("NCCLSCOPE=0 is set: nothing will be traced")
        for line in settings.hints_once():
            say(line)
        explainer = None if arguments.no_explain else Explainer(directory, options, rings.places)
        environment = _environment(directory, rings.reports.name)
        try:
            supervisor = Supervisor(command, environment, explainer)
        except OSError as error:
            reason, missing = os_reason(error), error.errno == errno.ENOENT
            raise ProgramError(command[0], reason, is_found=not missing) from error
        ended = supervisor.wait()
        status = ended.status if ended.status >= 0 else 128 - ended.status
        with contextlib.suppress(KeyboardInterrupt), interruptible():
            explained = explainer is not None and explainer.end()
            untraced = rings.untraced()
            for line in untraced:
                say(line)
            fate = ""
            if written := rings.count():
                if status and not (ended.interrupted or explained):
                    run = environment["NCCLSCOPE_RUN"]
                    record_ends(rings.places()[0], LAUNCHER, {ended.pid: ended.status}, run=run)
                if explainer is not None and status and not explained:
                    explainer.explain_end()
                # A program that somebody ended did not fail.
                alarm = explained or (status != 0 and not ended.interrupted)
                keep = arguments.keep or status != 0
                fate = own.settle(environment["NCCLSCOPE_RUN"], alarm=alarm, keep=keep)
                say(f"{plural(written, 'ring')} {fate or 'written'}")
            places = rings.places() if written or untraced else []
            if places and not fate:
                say(f"ncclscope diagnose {shlex.join(map(str, places))}")
            elif not written and not untraced:
                say("no ring was written: no Python process made a process group of two or more")
        rings.reports.close()
        if ended.by_terminal and ended.status == -signal.SIGINT:
            end_with(signal.SIGINT)  # else a loop of a shell would go on after Ctrl-C
        return status


def _missing(program: str) -> ProgramError:
    folders = [""] if os.sep in program else os.get_exec_path()
    if any(os.path.exists(os.path.join(folder, program)) for folder in folders):
        return ProgramError(program, "permission denied", is_found=True)
    return ProgramError(program, "no such file or directory", is_found=False)


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


def _default_directory(say: Callable[[str], None]) -> Path:
    """Make a directory in the first default place that takes one; `say` receives which and why."""
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
