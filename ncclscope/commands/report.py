"""``ncclscope report``."""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
import tempfile
from pathlib import Path

from ncclscope.commands.options import add_stall_options
from ncclscope.errors import UsageError
from ncclscope.private import private_mode
from ncclscope.resources import economy

__all__ = ["ReportCommand"]

_EPILOG = """\
The page opens without a network, in any browser, and prints. It holds the verdict, how each
statement is known, the calls of all ranks side by side around the first difference, who waits for
whom, and the last seconds; of a bundle of `ncclscope attach -o DIR` also stacks and witnesses.

--redact leaves out folders, command lines and environments. What stays: names of files and
functions, line numbers, host names, pids, the names of communicators, parameters of calls.

exit status: that of `ncclscope diagnose`: 0 the ranks agree, 1 a divergence or a hang was found,
             2 usage, unreadable input, or a page that cannot be written
"""


class ReportCommand:
    """Write the verdict and what it rests on as one HTML file."""

    def prepare_parser(self, parser: argparse.ArgumentParser) -> None:
        """Adds the arguments."""
        parser.epilog = _EPILOG
        parser.add_argument(
            "paths", nargs="+", metavar="PATH", help="what `ncclscope diagnose` reads"
        )
        parser.add_argument(
            "-o",
            "--output",
            default="ncclscope-report.html",
            metavar="FILE",
            help="the page, - for stdout (default: ncclscope-report.html)",
        )
        parser.add_argument(
            "--redact", action="store_true", help="leave folders and command lines out"
        )
        add_stall_options(parser)

    @economy()
    def run(self, arguments: argparse.Namespace) -> int:
        """Reads, compares, writes."""
        from ncclscope.analysis.damaged import readable
        from ncclscope.analysis.verdict import diagnose
        from ncclscope.readers import open_run
        from ncclscope.render.console.progress import progress_for
        from ncclscope.render.html.page import FIRST, render_html

        target = None if arguments.output == "-" else Path(arguments.output)
        if target is not None:
            _check(target, FIRST)
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
            sys.stdout.write(page)
            return verdict.exit_status
        data = page.encode("utf-8")
        try:
            _write(target, data)
        except OSError as error:
            reason = (error.strerror or str(error)).lower()
            raise UsageError(f"{target} cannot be written: {reason}") from None
        print(f"ncclscope: {verdict.status}, see {target} ({len(data) >> 10} KB)", file=sys.stderr)
        return verdict.exit_status


def _check(target: Path, first: str) -> None:
    """Refuses to write over anything but a page of ours, before time is spent on reading."""
    advice = "name another file with -o"
    if target.is_dir():
        raise UsageError(f"{target} is a directory", advice)
    try:
        with open(target, encoding="utf-8", errors="replace") as file:
            if file.read(len(first)) not in ("", first):
                raise UsageError(f"{target} exists and is no report", advice)
    except FileNotFoundError:
        if not target.parent.is_dir():
            raise UsageError(f"{target.parent} is no directory", advice) from None
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise UsageError(f"{target} cannot be written: {reason}", advice) from None


def _write(target: Path, data: bytes) -> None:
    """Puts the page there whole or not at all."""
    descriptor, name = tempfile.mkstemp(prefix=f".{target.name}.", dir=target.parent)
    try:
        with open(descriptor, "wb") as file:
            file.write(data)
        os.chmod(name, private_mode(target))
        os.replace(name, target)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(name)
        raise
