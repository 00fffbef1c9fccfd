"""``ncclscope diagnose``."""

from __future__ import annotations

import argparse
import json
import sys

from ncclscope.commands.options import add_stall_options
from ncclscope.economy import economy

__all__ = ["DiagnoseCommand"]


class DiagnoseCommand:
    """Say who left the common sequence, from what survived on disk."""

    def prepare_parser(self, parser: argparse.ArgumentParser) -> None:
        """Adds the arguments."""
        parser.add_argument(
            "paths", nargs="+", metavar="PATH", help="ring or trace file, or a directory of them"
        )
        parser.add_argument("--json", action="store_true", help="one JSON document on stdout")
        add_stall_options(parser)

    @economy()
    def run(self, arguments: argparse.Namespace) -> int:
        """Reads, compares, prints."""
        from ncclscope.analysis.verdict import diagnose
        from ncclscope.render.attach import render_attach
        from ncclscope.render.console import print_verdict
        from ncclscope.render.progress import progress_for
        from ncclscope.render.terminal import stdout_console
        from ncclscope.sources import open_run

        with progress_for(json=arguments.json):
            verdict = diagnose(
                open_run(*arguments.paths),
                stall_seconds=arguments.stall_after,
                live_stall_seconds=arguments.live_stall_after,
            )
        if arguments.json:
            json.dump(verdict.to_dict(), sys.stdout)
            sys.stdout.write("\n")
        elif verdict.run.capture is not None:
            console = stdout_console()
            console.print(render_attach(verdict, console.width))
        else:
            print_verdict(verdict, stdout_console())
        return verdict.exit_status
