"""``ncclscope check``."""

from __future__ import annotations

import argparse
import json
import math
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from ncclscope.errors import UsageError
from ncclscope.resources import economy

if TYPE_CHECKING:
    from ncclscope.parity.report import Report

__all__ = ["CheckCommand"]

_EPILOG = """\
  $ ncclscope check trace/ --baseline calls.lock --update   once; commit the file
  $ ncclscope check trace/ --baseline calls.lock            in CI

The baseline is a text for people to review: what each rank posts, loops folded,
communicators by their part (tp, dp) and not by rank, one section for each
distinct sequence.

exit status: 0 as it should be, 1 the ranks or the baseline disagree,
             2 usage or unreadable input
"""


class CheckCommand:
    """Fail where ranks disagree, or post something else than a stored sequence."""

    def prepare_parser(self, parser: argparse.ArgumentParser) -> None:
        """Adds the arguments."""
        parser.epilog = _EPILOG
        parser.add_argument(
            "paths", nargs="+", metavar="PATH", help="ring or trace file, or a directory of them"
        )
        parser.add_argument(
            "--baseline", type=Path, metavar="FILE", help="the stored sequence to compare with"
        )
        parser.add_argument(
            "--update", action="store_true", help="store the run's sequence in the baseline"
        )
        parser.add_argument(
            "--ignore-shapes",
            action="store_true",
            help="sizes of tensors do not count; a baseline written so says so itself",
        )
        output = parser.add_mutually_exclusive_group()
        output.add_argument(
            "--format",
            choices=("text", "github", "junit"),
            default="text",
            help="text, text with GitHub annotations, or JUnit XML (default: text)",
        )
        output.add_argument("--json", action="store_true", help="one JSON document on stdout")
        parser.add_argument(
            "--stall-after",
            type=_seconds,
            default=2.0,
            metavar="SECONDS",
            help="ranks that waited so long before their process ended are stuck (default: 2)",
        )

    @economy()
    def run(self, arguments: argparse.Namespace) -> int:
        """Reads, compares, prints; stores where it is asked to."""
        from ncclscope.analysis.damaged import readable
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
            json.dump(report.to_dict(), sys.stdout)
            sys.stdout.write("\n")
        else:
            _print(report, arguments.format)
        return report.exit_status


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if not 0 <= seconds < math.inf:
        raise argparse.ArgumentTypeError(f"{text!r} is no number of seconds")
    return seconds


def _print(report: Report, form: str) -> None:
    from ncclscope.parity.formats import github, junit
    from ncclscope.render.console.parity import render_baseline_part, render_report
    from ncclscope.render.console.plain import plain_text
    from ncclscope.render.console.terminal import stdout_console
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
