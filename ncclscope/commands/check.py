"""``ncclscope check``."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from ncclscope.commands.options import add_flag, add_json_option, add_stall_option, print_json
from ncclscope.errors import UsageError
from ncclscope.resources import economy

if TYPE_CHECKING:
    from ncclscope.parity.report import Report

_EPILOG = """\
  $ ncclscope check trace/ --baseline calls.lock --update   once; commit the file
  $ ncclscope check trace/ --baseline calls.lock            in CI

The baseline is a text for review: the calls of each rank, with repeated calls
as loops, communicators by kind (tp, dp) and not by rank, and one section for
each distinct sequence.

exit status: 0 the ranks and the baseline agree, 1 they disagree, or ranks hang,
             2 usage or unreadable input, 3 the evidence does not decide, or is
             incomplete, as without a rank
"""


class CheckCommand:
    """Fail if the ranks diverge from each other or from a stored baseline."""

    def prepare_parser(self, parser: argparse.ArgumentParser) -> None:
        """Add the command's arguments to its parser."""
        parser.epilog = _EPILOG
        parser.add_argument(
            "paths", nargs="+", metavar="PATH", help="Ring or trace file, or a directory of them"
        )
        parser.add_argument(
            "--baseline", type=Path, metavar="FILE", help="Compare with the sequence stored in FILE"
        )
        add_flag(parser, "--update", "Store the run's sequence in the baseline")
        add_flag(
            parser,
            "--ignore-shapes",
            "Ignore tensor sizes; a baseline written with this option records it",
        )
        output = parser.add_mutually_exclusive_group()
        output.add_argument(
            "--format",
            choices=("text", "github", "junit"),
            default="text",
            help="Print text, text with GitHub annotations, or JUnit XML (default: text)",
        )
        add_json_option(output)
        add_stall_option(parser)

    @economy()
    def run(self, arguments: argparse.Namespace) -> int:
        """Compare the run with its baseline and print the result; with ``--update`` store it."""
        from ncclscope.engine.damaged import readable
        from ncclscope.parity.report import check_run
        from ncclscope.readers import open_run
        from ncclscope.render.console.progress import progress_for

        if arguments.update and arguments.baseline is None:
            raise UsageError("--update needs a file to write", "name it with --baseline FILE")
        with progress_for(json=arguments.json):
            report = check_run(
                readable(open_run(*arguments.paths)),
                arguments.baseline,
                update=arguments.update,
                shapes=not arguments.ignore_shapes,
                stall_seconds=arguments.stall_after,
            )
        if arguments.json:
            print_json(report.to_dict())
        else:
            _print(report, arguments.format)
        return report.exit_status


def _print(report: Report, form: str) -> None:
    from ncclscope.parity.formats import github, junit
    from ncclscope.render.console.parity import render_baseline_part, render_report
    from ncclscope.render.console.terminal import plain_text, stdout_console
    from ncclscope.render.console.verdict import render_verdict

    if form == "junit":
        verdict = plain_text(render_verdict(report.verdict, 100))
        baseline = plain_text(render_baseline_part(report, 100)) if report.baseline else ""
        sys.stdout.write(junit(report, verdict, baseline))
        return
    if form == "github":
        sys.stdout.write(github(report))
    console = stdout_console()
    console.print(render_report(report, console.width))
