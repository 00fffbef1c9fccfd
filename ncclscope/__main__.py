"""The command line."""

from __future__ import annotations

import argparse
import errno
import importlib
import os
import sys
from collections.abc import Sequence
from typing import NoReturn, Protocol

from ncclscope import __version__
from ncclscope.errors import NcclscopeError

__all__ = ["main"]

_COMMANDS = {
    "demo": "ncclscope.commands.demo:DemoCommand",
    "run": "ncclscope.commands.run:RunCommand",
    "diagnose": "ncclscope.commands.diagnose:DiagnoseCommand",
    "diff": "ncclscope.commands.diff:DiffCommand",
    "check": "ncclscope.commands.check:CheckCommand",
    "report": "ncclscope.commands.report:ReportCommand",
    "export": "ncclscope.commands.export:ExportCommand",
    "watch": "ncclscope.commands.watch:WatchCommand",
    "attach": "ncclscope.commands.attach:AttachCommand",
    "collect": "ncclscope.commands.collect:CollectCommand",
    "doctor": "ncclscope.commands.doctor:DoctorCommand",
}

_EPILOG = """\
examples:
  $ ncclscope run -- torchrun --nproc-per-node 8 train.py     trace a job
  $ ncclscope run -- vllm serve MODEL -tp 4 -dp 2             trace vLLM
  $ ncclscope diagnose DIR                                    after a hang, a crash or a kill -9
  $ ncclscope report DIR -o hang.html                         the same as a page to send to somebody
  $ ncclscope export DIR --format perfetto -o hang.pftrace    for a timeline, tables, other tools
  $ ncclscope watch DIR                                       while the job runs
  $ ncclscope diff DIR#2 DIR#3                                where two ranks part
  $ ncclscope attach                                          a hung job that was never traced
  $ ncclscope collect --ssh HOSTS DIR -o HANG                 what all nodes have, in one place
  $ ncclscope check DIR --baseline calls.lock                 in CI

exit status: 0 the ranks agree, 1 a divergence or a hang was found, 2 usage or unreadable input,
             3 the evidence cannot tell, 70 an error of ncclscope's own
environment: NCCLSCOPE_DIR (where rings go; set means tracing is on), NCCLSCOPE=0 (off),
             NCCLSCOPE_RECORDS (records kept per process, default 65536),
             NCCLSCOPE_GUARD=warn|raise (compare each call with those of peers on this host),
             NCCLSCOPE_DEVICE_PROGRESS=1|entered (have the GPU count what it has finished)
"""


class Command(Protocol):
    """What each module of :mod:`ncclscope.commands` has one of."""

    def prepare_parser(self, parser: argparse.ArgumentParser) -> None:
        """Adds the arguments."""
        ...

    def run(self, arguments: argparse.Namespace) -> int:
        """Does it; returns the exit status."""
        ...


class OneLineParser(argparse.ArgumentParser):
    """A parser that says in one line what is wrong, and where more can be read."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: {message}; see {self.prog} --help\n")


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command.

    Args:
        arguments: The words after the program's name; ``sys.argv`` when absent.

    Returns:
        The exit status: 0 the ranks agree, 1 they do not, 2 trouble, 3 the evidence cannot tell,
        70 an error of its own.
    """
    arguments = sys.argv[1:] if arguments is None else arguments
    # The others need not be loaded when one is named.
    names = arguments[:1] if set(arguments[:1]) & _COMMANDS.keys() else list(_COMMANDS)
    try:
        return _run(names, arguments)
    except NcclscopeError as error:
        print(f"ncclscope: {error}", file=sys.stderr)
        return error.exit_status
    except BrokenPipeError:
        # The reader of the pipe has seen enough; that is no trouble.
        _silence_stdout()
        return 0
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EBADF):
            return _crashed(error)
        # Status 1 would say that the ranks differ, and the interpreter's last flush fails, too.
        _silence_stdout()
        print(f"ncclscope: the result cannot be written: {error.strerror}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("ncclscope: interrupted", file=sys.stderr)
        return 130
    except Exception as error:
        return _crashed(error)


def _run(names: Sequence[str], arguments: Sequence[str]) -> int:
    parser, commands = _parser(names)
    parsed = parser.parse_args(arguments)
    if parsed.command is None:
        parser.print_help()
        return 0
    status = commands[parsed.command].run(parsed)
    sys.stdout.flush()
    return status


def _crashed(error: Exception) -> int:
    from ncclscope.crash import EXIT_STATUS, report_crash

    print(f"ncclscope: {report_crash(error, __version__)}", file=sys.stderr)
    return EXIT_STATUS


def _silence_stdout() -> None:
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _parser(names: Sequence[str]) -> tuple[argparse.ArgumentParser, dict[str, Command]]:
    from rich_argparse import RawDescriptionRichHelpFormatter

    RawDescriptionRichHelpFormatter.highlights = []
    parser = OneLineParser(
        prog="ncclscope",
        description="Find the rank that left the common sequence of collectives, and where.",
        epilog=_EPILOG,
        formatter_class=RawDescriptionRichHelpFormatter,
    )
    parser.add_argument("-V", "--version", action="version", version=f"ncclscope {__version__}")
    subparsers = parser.add_subparsers(
        # Named, since argparse would print a usage to find the name.
        prog=parser.prog,
        dest="command",
        metavar="COMMAND",
        title="commands",
    )
    commands: dict[str, Command] = {}
    for name in names:
        module, _, attribute = _COMMANDS[name].partition(":")
        command: Command = getattr(importlib.import_module(module), attribute)()
        help = (type(command).__doc__ or "").partition("\n")[0]
        command.prepare_parser(
            subparsers.add_parser(
                name,
                help=help[0].lower() + help[1:].rstrip("."),
                description=help,
                formatter_class=RawDescriptionRichHelpFormatter,
            )
        )
        commands[name] = command
    return parser, commands


if __name__ == "__main__":
    sys.exit(main())
