"""``ncclscope attach``."""

from __future__ import annotations

import argparse
import json
import math
import sys

from ncclscope.errors import UsageError

__all__ = ["AttachCommand"]

_EPILOG = """\
It reads and changes nothing: stacks by py-spy without stopping a process, /proc, NVML, the
answer of NCCL's RAS, and rings where the job is traced. Only --native (stops each process for
some tenths of a second) and --flight-recorder (has the job write files) touch the job.

Without rings a verdict is never certain: a stack says where a rank is, not how it got there.

--redact leaves out folders of source files, command lines and environments, of rings, too. What
stays: names of files and functions, line numbers, host names, pids, device numbers, the names of
communicators, the parameters of recorded calls, and what NCCL's RAS answered.

exit status: 0 the job is seen to move or to rest, 1 a divergence or a hang was found, 2 no worker
             was found or none could be read, 3 what was seen does not tell
"""


class AttachCommand:
    """Look at living workers, traced or not, and say who stands apart; injects nothing."""

    def prepare_parser(self, parser: argparse.ArgumentParser) -> None:
        """Adds the arguments."""
        parser.epilog = _EPILOG
        parser.add_argument(
            "pids",
            nargs="*",
            type=int,
            metavar="PID",
            help="workers; without any, those that run here are found by title (VLLM::Worker_...), "
            "RANK in their environment, or a ring",
        )
        parser.add_argument("--json", action="store_true", help="one JSON document on stdout")
        parser.add_argument(
            "-o",
            "--output",
            metavar="DIR",
            help="write all that was seen there, for `ncclscope diagnose DIR` anywhere",
        )
        parser.add_argument(
            "--redact", action="store_true", help="leave paths and command lines out of that"
        )
        parser.add_argument(
            "--gap",
            type=float,
            default=None,
            metavar="SECONDS",
            help="sample for so many seconds (default: 2, and up to 10 while ranks that wait may "
            "be waiting for one that is late); what stands still for 10 s hangs",
        )
        parser.add_argument(
            "--native", action="store_true", help="C frames and NCCL's own threads, by pystack"
        )
        parser.add_argument(
            "--flight-recorder",
            action="store_true",
            help="ask for torch's Flight Recorder dumps, where the job was set up for it",
        )

    def run(self, arguments: argparse.Namespace) -> int:
        """Looks, concludes, prints."""
        from ncclscope.analysis.verdict import diagnose
        from ncclscope.attach.bundle import check_directory, redact_run, write_bundle
        from ncclscope.attach.session import Options, sample_job
        from ncclscope.render.console.attach import render_attach
        from ncclscope.render.console.plain import plain_text
        from ncclscope.render.console.terminal import stdout_console

        gap = arguments.gap
        if gap is not None and not (math.isfinite(gap) and 0 <= gap <= 3600):
            raise UsageError("--gap is a number of seconds from 0 to 3600")
        if arguments.redact and not arguments.output:
            raise UsageError("--redact is about a bundle", "name its directory with -o DIR")
        directory = check_directory(arguments.output) if arguments.output else None
        seen = sample_job(
            Options.of(
                gap,
                pids=tuple(arguments.pids),
                native=arguments.native,
                flight_recorder=arguments.flight_recorder,
            ),
            _say,
        )
        verdict = diagnose(seen.run)
        kept = diagnose(redact_run(seen.run)) if arguments.redact else verdict
        if arguments.json:
            json.dump(verdict.to_dict(), sys.stdout)
            sys.stdout.write("\n")
        else:
            console = stdout_console()
            console.print(render_attach(verdict, console.width))
        if directory is not None:
            screen = plain_text(render_attach(kept, 120), 120)
            failed = write_bundle(
                directory, seen, kept.to_dict(), screen, redacted=arguments.redact
            )
            for text in failed:
                _say(text)
            _say(f"ncclscope diagnose {directory}")
        return verdict.exit_status


def _say(text: str) -> None:
    print(f"ncclscope: {text}", file=sys.stderr, flush=True)
