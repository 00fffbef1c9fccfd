"""``ncclscope prune``."""

from __future__ import annotations

import argparse
import re
from typing import TYPE_CHECKING

from ncclscope.commands.options import add_flag, add_json_option, print_json
from ncclscope.errors import UsageError

if TYPE_CHECKING:
    from ncclscope.store.pruning import Outcome

_EPILOG = """\
Looks at this user's rings and bundles in /dev/shm and the directory for
temporary files. What a living process or a run uses stays. So does an alarm
that nobody has read: a bundle, or the rings of a run that failed, hung or
diverged, until `diagnose` or `report` has read it.

  $ ncclscope prune --older 7d --dry-run        what would go
  $ ncclscope prune --older 30d --alarms        also alarms that nobody has read

exit status: 0 what could be removed is removed, 2 usage
"""
_AGE = re.compile(r"(\d{1,6}(?:\.\d*)?)([smhdw])")
_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 604_800}


class PruneCommand:
    """Remove old rings and bundles of yours from the default places."""

    def prepare_parser(self, parser: argparse.ArgumentParser) -> None:
        """Add the command's arguments to its parser."""
        parser.epilog = _EPILOG
        parser.add_argument(
            "--older",
            type=_age,
            metavar="AGE",
            help="Remove only what was last changed longer ago than AGE: 30m, 12h, 7d, 2w",
        )
        add_flag(parser, "--alarms", "Remove alarms that nobody has read as well; needs --older")
        add_flag(parser, "--dry-run", "Say what would be removed, and remove nothing")
        add_json_option(parser)

    def run(self, arguments: argparse.Namespace) -> int:
        """Remove entries, and print what became of each."""
        from ncclscope.store.pruning import prune

        if arguments.alarms and arguments.older is None:
            raise UsageError("--alarms needs an age", "prune --alarms --older 30d")
        outcomes = prune(arguments.older or 0.0, alarms=arguments.alarms, dry_run=arguments.dry_run)
        if arguments.json:
            print_json(
                {
                    "schema": 1,
                    "dry_run": arguments.dry_run,
                    "freed": sum(one.entry.size for one in outcomes if one.removed),
                    "entries": [one.to_dict() for one in outcomes],
                }
            )
        else:
            _print(outcomes, arguments.dry_run)
        return 0


def _age(text: str) -> float:
    found = _AGE.fullmatch(text)
    if found is None:
        raise argparse.ArgumentTypeError(f"{text!r} is not an age, such as 12h or 7d")
    return float(found[1]) * _UNITS[found[2]]


def _print(outcomes: list[Outcome], dry_run: bool) -> None:
    from rich.text import Text

    from ncclscope.render.console.terminal import stdout_console

    console = stdout_console()
    done = "would go" if dry_run else "removed"
    for one in outcomes:
        size = f"{one.entry.size / 1e6:8.1f} MB"
        what = done if one.removed else "kept"
        why = f": {one.why}" if one.why else ""
        console.print(Text(f"{what:8} {size}  {one.entry.path}{why}"), soft_wrap=True)
    gone = [one for one in outcomes if one.removed]
    size = f"{sum(one.entry.size for one in gone) / 1e6:.1f} MB"
    console.print(Text(f"{len(gone)} of {len(outcomes)} {done}, {size}"), soft_wrap=True)
