"""The command line."""

from __future__ import annotations

import argparse
import contextlib
import errno
import importlib
import os
import sys
from collections.abc import Sequence
from typing import Any, NoReturn, Protocol

from ncclscope import __version__
from ncclscope.errors import NcclscopeError, UsageError
from ncclscope.untrusted import printable

_COMMANDS = (
    *("demo", "run", "diagnose", "diff", "check", "report", "export", "watch", "attach"),
    *("collect", "prune", "doctor", "mcp", "plugin-path"),
)
"""Names of commands, in the order of the help; each is a class in a module of that name."""

_FILES = ("DIR", "FILE", "OUT", "PATH")
"""Names of arguments that are files or directories."""

_EPILOG = """\
examples:
  $ ncclscope run -- torchrun --nproc-per-node 8 train.py     trace a job
  $ ncclscope run -- vllm serve MODEL -tp 4 -dp 2             trace vLLM
  $ ncclscope diagnose DIR                                    after a hang, a crash or a kill -9
  $ ncclscope report DIR -o hang.html                         the verdict as one HTML page
  $ ncclscope export DIR --format perfetto -o hang.pftrace    a timeline for ui.perfetto.dev
  $ ncclscope watch DIR                                       while the job runs
  $ ncclscope diff DIR#2 DIR#3                                compare two ranks call by call
  $ ncclscope attach                                          a hung job that was never traced
  $ ncclscope collect --ssh HOSTS DIR -o HANG                 gather the evidence of all nodes
  $ ncclscope check DIR --baseline calls.lock                 in CI

exit status: 0 the ranks agree, 1 a divergence or a hang was found, 2 usage or unreadable input,
             3 the evidence does not decide, 70 an internal error of ncclscope
environment: NCCLSCOPE_DIR (directory of the rings; setting it turns tracing on),
             NCCLSCOPE=0 (turns tracing off),
             NCCLSCOPE_RECORDS (records kept per process, default 65536),
             NCCLSCOPE_STORE_MB (MB that rings and bundles may take in /dev/shm and in /tmp),
             NCCLSCOPE_GUARD=warn|raise (compare each call with those of peers on this host),
             NCCLSCOPE_DEVICE_PROGRESS=1|entered (count finished calls on the GPU)
"""


class Command(Protocol):
    """Interface of the command class in each module of :mod:`ncclscope.commands`."""

    def prepare_parser(self, parser: argparse.ArgumentParser) -> None:
        """Add the command's arguments to its parser."""
        ...

    def run(self, arguments: argparse.Namespace) -> int:
        """Run the command and return its exit status."""
        ...


class OneLineParser(argparse.ArgumentParser):
    """Parser that reports a usage error in one line and points to ``--help``."""

    def __init__(self, **options: Any) -> None:
        super().__init__(add_help=False, **options)
        self.add_argument("-h", "--help", action="help", help="Show this help message and exit")

    def format_help(self) -> str:
        import shutil

        from ncclscope.fitting import fitted

        whole = self.description, self.epilog
        width = shutil.get_terminal_size().columns
        self.description, self.epilog = (text and fitted(text, width) for text in whole)
        try:
            return super().format_help()
        finally:
            self.description, self.epilog = whole

    def error(self, message: str) -> NoReturn:
        said = printable(f"{message}{self._guess(message)}")
        self.exit(2, f"{self.prog}: {said}; see {self.prog} --help\n")

    def _guess(self, message: str) -> str:
        """Return what was probably meant by a mistyped command or option, as a clause."""
        import difflib
        import re

        mistyped = re.match(r"unrecognized arguments: (-\S+)|.*invalid choice: '(\S+)'", message)
        if mistyped is None:
            return ""
        word = mistyped[1] or mistyped[2]
        known = self._known_options() if word.startswith("-") else list(_COMMANDS)
        close = difflib.get_close_matches(word.partition("=")[0], known, 1)
        return f"; did you mean {close[0]}?" if close else ""

    def _known_options(self) -> list[str]:
        """Return the options of this parser and of its commands."""
        known = list(self._option_string_actions)
        for parser in _commands_of(self).values():
            known += parser._option_string_actions
        return known


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command.

    Args:
        arguments: Command line without the program's name (default: ``sys.argv[1:]``).

    Returns:
        The exit status: 0 the ranks agree, 1 they diverge or hang, 2 usage or unreadable input,
        3 the evidence does not decide, 70 an internal error.
    """
    arguments = sys.argv[1:] if arguments is None else arguments
    for stream in (sys.stdout, sys.stderr):
        # A terminal that cannot show a character is no reason to end.
        with contextlib.suppress(AttributeError, ValueError):
            stream.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]
    # Import only the command that is named, for a short start-up time.
    if any("\0" in argument for argument in arguments):
        print("ncclscope: an argument holds a zero byte", file=sys.stderr)
        return 2
    names = arguments[:1] if set(arguments[:1]) & set(_COMMANDS) else _COMMANDS
    try:
        return _run(names, arguments)
    except NcclscopeError as error:
        # It may name a file, and names may hold anything.
        print(f"ncclscope: {printable(str(error))}", file=sys.stderr)
        return error.exit_status
    except BrokenPipeError:
        # The reader closed the pipe, as `head` does; that is no error.
        _silence_stdout()
        return 0
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EBADF):
            return _crashed(error)
        # Status 1 would report diverging ranks, and the interpreter's last flush would fail, too.
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
    if parsed.print_completion:
        return _print_completion(parser, parsed.print_completion)
    if parsed.command is None:
        parser.print_help()
        return 0
    status = commands[parsed.command].run(parsed)
    sys.stdout.flush()
    return status


def command_parsers() -> tuple[argparse.ArgumentParser, dict[str, argparse.ArgumentParser]]:
    """Return the parser of the command line, and those of its commands by name."""
    parser, _ = _parser(_COMMANDS)
    return parser, _commands_of(parser)


def _commands_of(parser: argparse.ArgumentParser) -> dict[str, argparse.ArgumentParser]:
    return {
        name: command
        for action in parser._actions
        if isinstance(action.choices, dict)
        for name, command in action.choices.items()
    }


def _print_completion(parser: argparse.ArgumentParser, shell: str) -> int:
    """Print a script that completes commands, options and names of files."""
    try:
        import shtab
    except ModuleNotFoundError:
        raise UsageError("the package shtab is missing", "pip install shtab") from None
    for command in _commands_of(parser).values():
        for action in command._actions:
            if action.metavar in _FILES:
                action.complete = shtab.FILE  # type: ignore[attr-defined]
    print(shtab.complete(parser, shell))
    return 0


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
        description="Find the rank that diverged from its peers' collectives, and the call.",
        epilog=_EPILOG,
        formatter_class=RawDescriptionRichHelpFormatter,
    )
    parser.add_argument(
        "-V",
        "--version",
        action="version",
        version=f"ncclscope {__version__}",
        help="Show the version and exit",
    )
    parser.add_argument(
        "--print-completion",
        metavar="SHELL",
        choices=("bash", "tcsh", "zsh"),
        help="Print a completion script for bash, tcsh or zsh, and exit",
    )
    subparsers = parser.add_subparsers(
        # Without a name argparse formats the usage to derive one, which is slow.
        prog=parser.prog,
        dest="command",
        metavar="COMMAND",
        title="commands",
    )
    commands: dict[str, Command] = {}
    for name in names:
        module = importlib.import_module(f"ncclscope.commands.{name.replace('-', '_')}")
        command: Command = getattr(module, f"{name.title().replace('-', '')}Command")()
        help = (type(command).__doc__ or "").partition("\n")[0]
        command.prepare_parser(
            subparsers.add_parser(
                name,
                help=help.rstrip("."),
                description=help,
                formatter_class=RawDescriptionRichHelpFormatter,
            )
        )
        commands[name] = command
    return parser, commands


if __name__ == "__main__":
    sys.exit(main())
