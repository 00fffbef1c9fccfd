"""The command line."""

from __future__ import annotations

import argparse
import importlib
import os
import sys
from collections.abc import Sequence
from typing import Protocol

from ncclscope import __version__
from ncclscope.errors import NcclscopeError

__all__ = ["main"]

_COMMANDS = {
    "demo": "ncclscope.commands.demo:DemoCommand",
    "run": "ncclscope.commands.run:RunCommand",
    "diagnose": "ncclscope.commands.diagnose:DiagnoseCommand",
    "diff": "ncclscope.commands.diff:DiffCommand",
    "check": "ncclscope.commands.check:CheckCommand",
}

_EPILOG = """\
examples:
  $ ncclscope run -- torchrun --nproc-per-node 8 train.py     trace a job
  $ ncclscope run -- vllm serve MODEL -tp 4 -dp 2             trace vLLM
  $ ncclscope diagnose DIR                                    after a hang, a crash or a kill -9
  $ ncclscope diff DIR#2 DIR#3                                where two ranks part
  $ ncclscope check DIR --baseline calls.lock                 in CI

exit status: 0 the ranks agree, 1 a divergence or a hang was found, 2 usage or unreadable input
environment: NCCLSCOPE_DIR (where rings go; set means tracing is on), NCCLSCOPE=0 (off),
             NCCLSCOPE_RECORDS (records kept per process, default 65536)
"""


class Command(Protocol):
    """What each module of :mod:`ncclscope.commands` has one of."""

    def prepare_parser(self, parser: argparse.ArgumentParser) -> None:
        """Adds the arguments."""
        ...

    def run(self, arguments: argparse.Namespace) -> int:
        """Does it; returns the exit status."""
        ...


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command.

    Args:
        arguments: The words after the program's name; ``sys.argv`` when absent.

    Returns:
        The exit status: 0 the ranks agree, 1 they do not, 2 trouble.
    """
    parser, commands = _parser()
    parsed = parser.parse_args(arguments)
    if parsed.command is None:
        parser.print_help()
        return 0
    try:
        return commands[parsed.command].run(parsed)
    except NcclscopeError as error:
        print(f"ncclscope: {error}", file=sys.stderr)
        return error.exit_status
    except BrokenPipeError:
        # The reader of the pipe has seen enough; that is no trouble.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except KeyboardInterrupt:
        print("ncclscope: interrupted", file=sys.stderr)
        return 130


def _parser() -> tuple[argparse.ArgumentParser, dict[str, Command]]:
    from rich_argparse import RawDescriptionRichHelpFormatter

    RawDescriptionRichHelpFormatter.highlights = []
    parser = argparse.ArgumentParser(
        prog="ncclscope",
        description="Find the rank that left the common sequence of collectives, and where.",
        epilog=_EPILOG,
        formatter_class=RawDescriptionRichHelpFormatter,
    )
    parser.add_argument("-V", "--version", action="version", version=f"ncclscope {__version__}")
    subparsers = parser.add_subparsers(dest="command", metavar="COMMAND", title="commands")
    commands: dict[str, Command] = {}
    for name, place in _COMMANDS.items():
        module, _, attribute = place.partition(":")
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
