"""``ncclscope attach``."""

from __future__ import annotations

import argparse
import os
from pathlib import Path

from ncclscope.commands.options import (
    add_flag,
    add_json_option,
    add_seconds_option,
    print_json,
    say,
)
from ncclscope.errors import UsageError

_EPILOG = """\
attach reads and changes nothing: stacks by py-spy without stopping a process, /proc, NVML, NCCL's
RAS, and the rings of a traced job. Only --native (stops each process for some tenths of a second),
--flight-recorder (makes the job write dumps) and --arm (makes it record) touch the job.

--arm is for a job on NCCL 2.31 or later that was started with NCCLSCOPE_ARM=1 and
NCCL_PROFILER_PLUGIN=$(ncclscope plugin-path): it records nothing and pays nothing until then.

Without rings a verdict is never certain: a stack shows where a rank is, not how it got there.

--redact removes folders of source files, command lines and environments, also from rings. It keeps
names of files and functions, line numbers, host names, pids, device numbers, communicator labels,
parameters of recorded calls, and the answer of NCCL's RAS.

exit status: 0 the ranks move or are idle, 1 a divergence or a hang was found, 2 no worker was found
             or none could be read, 3 the evidence does not decide
"""


class AttachCommand:
    """Examine live workers, traced or not, and name the diverging rank; injects nothing."""

    def prepare_parser(self, parser: argparse.ArgumentParser) -> None:
        """Add the command's arguments to its parser."""
        parser.epilog = _EPILOG
        parser.add_argument(
            "pids",
            nargs="*",
            type=_process,
            metavar="PID",
            help="Process ids of workers, or of launchers, in whose place the ranks that they "
            "started are examined, or a directory with their rings (default: all workers on this "
            "host, found by their title VLLM::Worker_..., by RANK in their environment, or by "
            "their ring)",
        )
        add_json_option(parser, "verdict")
        parser.add_argument(
            "-o",
            "--output",
            metavar="DIR",
            help="Write all evidence to DIR, for `ncclscope diagnose DIR` on any machine",
        )
        add_flag(parser, "--redact", "Leave folders, command lines and environments out of DIR")
        add_seconds_option(
            parser,
            "--gap",
            "Sample the processes for SECONDS (default: 2, extended to 10 while a late rank, or an "
            "answer, may still arrive); with 10 s or more, ranks that have not moved are reported "
            "as hung",
        )
        add_flag(parser, "--native", "Read C frames and NCCL's threads with pystack")
        add_flag(
            parser,
            "--flight-recorder",
            "Request torch's Flight Recorder dumps, where the job is set up for them",
        )

        parser.add_argument(
            "--kernel-log",
            metavar="FILE",
            help="Read the kernel log from FILE, the output of `dmesg` (default: /dev/kmsg)",
        )
        parser.add_argument(
            "--arm",
            type=float,
            nargs="?",
            const=5.0,
            metavar="SECONDS",
            help="Let NCCL report its calls to the dormant plugin of a running job, for SECONDS "
            "(default: 5) and while it is sampled",
        )

    def run(self, arguments: argparse.Namespace) -> int:
        """Sample the workers, then print the verdict and write the bundle."""
        from ncclscope.attach.arming import armed
        from ncclscope.attach.bundle import check_directory, redact_run, write_bundle
        from ncclscope.attach.recorded import living_pids, named_directory
        from ncclscope.attach.session import Options, sample_job
        from ncclscope.engine.verdict import diagnose
        from ncclscope.render.console.attach import render_attach
        from ncclscope.render.console.terminal import plain_text, stdout_console
        from ncclscope.render.console.verdict import print_screen

        gap = arguments.gap
        if gap is not None and not 0 <= gap <= 3600:
            raise UsageError("--gap is a number of seconds from 0 to 3600")
        if arguments.arm is not None and not 0 <= arguments.arm <= 3600:
            raise UsageError("--arm takes a number of seconds from 0 to 3600")
        if arguments.redact and not arguments.output:
            raise UsageError("--redact needs a bundle to write", "name its directory with -o DIR")
        directory = check_directory(arguments.output) if arguments.output else None
        pids: list[int] = []
        for one in arguments.pids:
            pids += living_pids(one) if isinstance(one, Path) else [one]
        if not pids and arguments.arm is None and (named := named_directory()) is not None:
            living_pids(named)  # raises if the job has ended: what else runs here is another job
        options = Options.of(
            gap,
            pids=tuple(pids),
            native=arguments.native,
            flight_recorder=arguments.flight_recorder,
            **({"kernel_log": Path(arguments.kernel_log)} if arguments.kernel_log else {}),
        )
        if arguments.arm is None:
            seen = sample_job(options, say)
        else:
            with armed(options.pids, arguments.arm, say):
                seen = sample_job(options, say)
        verdict = diagnose(seen.run)
        kept = diagnose(redact_run(seen.run)) if arguments.redact else verdict
        if arguments.json:
            print_json(verdict.to_dict())
        else:
            console = stdout_console()
            print_screen(console, render_attach(verdict, console.width), verdict)
        if directory is not None:
            screen = plain_text(render_attach(kept, 120), 120)
            failed = write_bundle(
                directory, seen, kept.to_dict(), screen, redacted=arguments.redact
            )
            for text in failed:
                say(text)
            say(f"ncclscope diagnose {directory}")
        return verdict.exit_status


def _process(text: str) -> int | Path:
    """Return a pid, or a directory with rings."""
    try:
        return int(text)
    except ValueError:
        if os.path.isdir(text):
            return Path(text)
        advice = f"; ncclscope diagnose {text} reads one" if os.path.exists(text) else ""
        kind = "a file" if advice else f"{text!r}"
        raise argparse.ArgumentTypeError(f"{kind} is no process id{advice}") from None
