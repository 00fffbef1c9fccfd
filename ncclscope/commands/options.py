"""Options that several commands take, and output that they share."""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import shlex
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ncclscope.errors import UsageError
from ncclscope.stamp import stamped
from ncclscope.untrusted import printable

if TYPE_CHECKING:
    from ncclscope.collect.programs import ProgramNode


def add_flag(parser: argparse._ActionsContainer, name: str, help: str) -> None:
    """Add an option without a value."""
    parser.add_argument(name, action="store_true", help=help)


def add_json_option(parser: argparse._ActionsContainer, what: str = "result") -> None:
    """Add ``--json``; ``what`` names the content of the document."""
    add_flag(parser, "--json", f"Print the {what} as one JSON document on stdout")


def print_json(document: Mapping[str, Any]) -> None:
    """Print a JSON document as one line on stdout, with version and time."""
    json.dump(stamped(document), sys.stdout)
    sys.stdout.write("\n")


def say(text: str) -> None:
    """Print a message on stderr, if that is open: a result matters more than a message."""
    with contextlib.suppress(OSError, ValueError):
        print(f"ncclscope: {printable(text)}", file=sys.stderr, flush=True)


def add_seconds_option(
    parser: argparse.ArgumentParser,
    name: str,
    help: str,
    default: float | None = None,
    *,
    read: Callable[[str], float] = float,
) -> None:
    """Add an option that takes a number of seconds.

    Args:
        parser: The command's parser.
        name: Name of the option, such as ``--gap``.
        help: Its description.
        default: Seconds without the option.
        read: Read its value.
    """
    parser.add_argument(name, type=read, default=default, metavar="SECONDS", help=help)


def _seconds(text: str) -> float:
    """Return a number of seconds; negative ones and no number are a usage error."""
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if not 0 <= seconds < math.inf:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds")
    return seconds


def check_seconds(arguments: argparse.Namespace, name: str, least: float, most: float) -> None:
    """Check the value of an option of :func:`add_seconds_option`, if it is given.

    Args:
        arguments: Arguments of the command.
        name: Name of the option, as an attribute.
        least: Least number of seconds.
        most: Most seconds.

    Raises:
        UsageError: The value is not in this range.
    """
    given = getattr(arguments, name)
    if given is not None and not least <= given <= most:
        option = name.replace("_", "-")
        raise UsageError(f"--{option} must be from {least:g} to {most:g} seconds")


def add_stall_option(parser: argparse.ArgumentParser) -> None:
    """Add the seconds before a process ended above which a rank is reported as stuck."""
    add_seconds_option(
        parser,
        "--stall-after",
        "Report ranks as stuck that waited SECONDS or more before their process ended (default: 2)",
        2.0,
        read=_seconds,
    )


def add_stall_options(parser: argparse.ArgumentParser) -> None:
    """Add the thresholds in seconds above which a waiting rank is reported as stuck."""
    add_stall_option(parser)
    add_seconds_option(
        parser,
        "--live-stall-after",
        "Report ranks as stuck that have waited SECONDS or more in a process that still runs "
        "(default: 10)",
        10.0,
        read=_seconds,
    )


def add_ray_options(
    parser: argparse.ArgumentParser, help: str, where: argparse._ActionsContainer | None = None
) -> None:
    """Add the options that name a Ray cluster.

    Args:
        parser: The command's parser.
        help: Description of ``--ray``.
        where: Group of options of which only one may be given; it gets ``--ray``.
    """
    add_flag(where or parser, "--ray", help)
    add_ray_address_option(parser)


def add_ray_address_option(parser: argparse.ArgumentParser) -> None:
    """Add ``--ray-address``."""
    parser.add_argument(
        "--ray-address",
        default="auto",
        metavar="ADDRESS",
        help="Connect to the Ray cluster at ADDRESS (default: auto)",
    )


def add_unread_option(parser: argparse.ArgumentParser) -> None:
    """Add the hidden ``--unread``, for programs that read what no person sees."""
    add_flag(parser, "--unread", argparse.SUPPRESS)


def mark_read(arguments: argparse.Namespace) -> None:
    """Note that somebody has read rings or bundles in a default place: they may be pruned."""
    from ncclscope.store.entry import READ, mark

    for path in () if arguments.unread else arguments.paths:
        mark(Path(path), READ)


def add_hang_options(parser: argparse.ArgumentParser) -> None:
    """Add what to do at a divergence or hang, besides reporting it."""
    parser.add_argument(
        "--on-hang",
        default="",
        metavar="CMD",
        help="At a divergence or hang, run CMD with the verdict on stdin and the bundle's path in "
        "$NCCLSCOPE_BUNDLE",
    )
    kill = "End the workers with SIGKILL once a divergence or hang has lasted for SECONDS"
    add_seconds_option(parser, "--kill-after", kill)


def add_host_options(parser: argparse.ArgumentParser) -> None:
    """Add the options that name hosts, and how to reach them."""
    where = parser.add_mutually_exclusive_group()
    where.add_argument(
        "--ssh", metavar="HOSTS", help="Watch DIR by ssh on node1,user@node2, or on those in @FILE"
    )
    where.add_argument(
        "--slurm", metavar="JOBID", help="Watch DIR on each node of a job by srun --overlap"
    )
    add_ray_options(parser, "Watch DIR on each node of a Ray cluster", where)
    add_program_options(
        parser, "Start ncclscope on a host by CMD (default: the one that runs here)"
    )
    # What runs on a host: it serves on stdin and stdout.
    add_flag(parser, "--serve", argparse.SUPPRESS)


def add_program_options(parser: argparse.ArgumentParser, help: str) -> None:
    """Add the programs that run on a host and reach it; ``help`` describes ``--command``."""
    ssh = "Run CMD as ssh, with its options (default: ssh)"
    parser.add_argument("--command", dest="program", default="", metavar="CMD", help=help)
    parser.add_argument("--ssh-command", default="", metavar="CMD", help=ssh)


def own_program(arguments: argparse.Namespace) -> list[str]:
    """Return the words of ``--command``; none without it.

    Raises:
        UsageError: They are not a command line.
    """
    try:
        return shlex.split(arguments.program)
    except ValueError as error:
        raise UsageError(f"--command: {error}") from None


def is_remote(arguments: argparse.Namespace) -> bool:
    """Return whether other machines are watched."""
    return bool(arguments.ray) or arguments.ssh is not None or arguments.slurm is not None


def host_programs(arguments: argparse.Namespace, words: Sequence[str]) -> Sequence[ProgramNode]:
    """Return the local programs that run a command on the hosts of ``--ssh`` or ``--slurm``.

    Args:
        arguments: Options of :func:`add_host_options`.
        words: Arguments of ncclscope on each host; they may read stdin.

    Raises:
        UsageError: A name or a command line is not valid.
        InputError: Slurm does not answer.
    """
    from ncclscope.collect import commands

    command = [*(own_program(arguments) or commands.own_command()), *words]
    if arguments.ssh is not None:
        return commands.ssh(commands.hosts(arguments.ssh), command, arguments.ssh_command)
    return commands.slurm(arguments.slurm, command, stdin=True)


def hosts_text(arguments: argparse.Namespace) -> str:
    """Return the option that names the hosts, to repeat it for another command."""
    if arguments.ssh is not None:
        return f"--ssh {shlex.quote(arguments.ssh)}"
    return "--ray" if arguments.ray else f"--slurm {shlex.quote(arguments.slurm)}"
