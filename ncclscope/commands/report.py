"""``ncclscope report``."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from ncclscope.commands.options import (
    add_flag,
    add_json_option,
    add_stall_options,
    add_unread_option,
    mark_read,
    print_json,
    say,
)
from ncclscope.errors import UsageError, os_reason
from ncclscope.private import private_mode, replace_file
from ncclscope.resources import economy

_EPILOG = """\
The page opens without a network, in any browser, and prints. It shows the verdict and its evidence,
the calls of all ranks side by side around the first difference, the wait-for graph and a timeline.
For a bundle of `ncclscope attach -o DIR` it also shows stacks and other data sources.

--redact removes folders, command lines and environments. It keeps names of files and functions,
line numbers, host names, pids, communicator labels and parameters of calls.

exit status: 0 the ranks agree, 1 a divergence or a hang was found, 2 usage, unreadable input, or a
             page that cannot be written, 3 the evidence does not decide
"""


class ReportCommand:
    """Write the verdict and its evidence as one HTML file."""

    def prepare_parser(self, parser: argparse.ArgumentParser) -> None:
        """Add the command's arguments to its parser."""
        parser.epilog = _EPILOG
        parser.add_argument(
            "paths", nargs="+", metavar="PATH", help="Any input of `ncclscope diagnose`"
        )
        parser.add_argument(
            "-o",
            "--output",
            default="ncclscope-report.html",
            metavar="FILE",
            help="Write the page to FILE; - for stdout (default: ncclscope-report.html)",
        )
        add_flag(parser, "--redact", "Leave out folders, command lines and environments")
        add_json_option(parser, "file's name and the status")
        add_unread_option(parser)
        add_stall_options(parser)

    @economy()
    def run(self, arguments: argparse.Namespace) -> int:
        """Read the input, compare the ranks and write the page."""
        from ncclscope.engine.damaged import readable
        from ncclscope.engine.verdict import diagnose
        from ncclscope.readers import open_run
        from ncclscope.render.console.progress import progress_for
        from ncclscope.render.html.page import FIRST, render_html

        target = None if arguments.output == "-" else Path(arguments.output)
        if target is not None:
            _check(target, FIRST)
        elif arguments.json:
            raise UsageError("the page and --json cannot both go to stdout", "name a file with -o")
        with progress_for(json=target is None):
            run = readable(open_run(*arguments.paths))
            if arguments.redact:
                from ncclscope.attach.bundle import redact_run

                run = redact_run(run)
            verdict = diagnose(
                run,
                stall_seconds=arguments.stall_after,
                live_stall_seconds=arguments.live_stall_after,
            )
            page = render_html(verdict, redacted=arguments.redact)
        if target is None:
            sys.stdout.buffer.write(page.encode("utf-8"))
            mark_read(arguments)
            return verdict.exit_status
        data = page.encode("utf-8")
        replaces = target.exists()
        try:
            replace_file(target, data, private_mode(target))
        except OSError as error:
            raise UsageError(f"{target} cannot be written: {os_reason(error)}") from None
        if arguments.json:
            written = {"output": str(target), "bytes": len(data), "replaces": replaces}
            print_json({"status": verdict.status, "summary": verdict.summary, **written})
        else:
            size = f"{len(data) >> 10} KB{', replaces a report' if replaces else ''}"
            say(f"{verdict.status}, see {target} ({size})")
        mark_read(arguments)
        return verdict.exit_status


def _check(target: Path, first: str) -> None:
    """Refuse to overwrite anything but a report, before the input is read."""
    advice = "name another file with -o"
    if target.is_dir():
        raise UsageError(f"{target} is a directory", advice)
    try:
        with open(target, encoding="utf-8", errors="replace") as file:
            if file.read(len(first)) not in ("", first):
                raise UsageError(f"{target} exists and is not a report", advice)
    except FileNotFoundError:
        if not target.parent.is_dir():
            raise UsageError(f"{target.parent} is not a directory", advice) from None
    except OSError as error:
        raise UsageError(f"{target} cannot be written: {os_reason(error)}", advice) from None
