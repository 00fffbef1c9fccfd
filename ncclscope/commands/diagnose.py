"""``ncclscope diagnose``."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from ncclscope.commands import options
from ncclscope.resources import economy

if TYPE_CHECKING:
    from ncclscope.model import Run

_EPILOG = """\
exit status: 0 the ranks agree, 1 a divergence or a hang was found, 2 usage or unreadable input,
             3 the evidence does not decide
"""


class DiagnoseCommand:
    """Name the rank that diverged from its peers, from rings, dumps and traces on disk."""

    def prepare_parser(self, parser: argparse.ArgumentParser) -> None:
        """Add the command's arguments to its parser."""
        self._parser = parser
        parser.epilog = _EPILOG
        parser.add_argument(
            "paths",
            nargs="*",
            metavar="PATH",
            help="Ring, Flight Recorder dump or trace file, or a directory or URL of them",
        )
        options.add_ray_options(parser, "Read PATH on each node of a Ray cluster")
        timeout = "Timeout per Ray node in seconds (default: 60)"
        options.add_seconds_option(parser, "--ray-timeout", timeout, 60.0)
        parser.add_argument(
            "--kernel-log",
            metavar="FILE",
            help="Read this host's kernel log from FILE, output of `dmesg` (default: /dev/kmsg)",
        )
        options.add_json_option(parser, "verdict")
        options.add_unread_option(parser)
        options.add_stall_options(parser)

    @economy()
    def run(self, arguments: argparse.Namespace) -> int:
        """Read the input, compare the ranks and print the verdict."""
        from ncclscope.collect.delivery import local_paths
        from ncclscope.engine.verdict import diagnose
        from ncclscope.render.console.attach import render_attach
        from ncclscope.render.console.progress import progress_for
        from ncclscope.render.console.terminal import stdout_console
        from ncclscope.render.console.verdict import print_screen, print_verdict

        if not arguments.paths and not arguments.ray:
            self._parser.error("the following arguments are required: PATH")
        with local_paths(() if arguments.ray else arguments.paths) as paths:
            with progress_for(json=arguments.json):
                verdict = diagnose(
                    _remote_run(arguments) if arguments.ray else _run(arguments, paths),
                    stall_seconds=arguments.stall_after,
                    live_stall_seconds=arguments.live_stall_after,
                )
            if arguments.json:
                options.print_json(verdict.to_dict())
            elif verdict.run.snapshot is not None:
                console = stdout_console()
                print_screen(console, render_attach(verdict, console.width), verdict)
            else:
                print_verdict(verdict, stdout_console())
        options.mark_read(arguments)
        return verdict.exit_status


def _run(arguments: argparse.Namespace, paths: Sequence[str]) -> Run:
    from ncclscope.attach.host.kernel_log import KMSG, with_kernel_log
    from ncclscope.attach.host.locks import with_locks
    from ncclscope.attach.host.queues import with_queues
    from ncclscope.readers import open_run

    log = Path(arguments.kernel_log) if arguments.kernel_log else KMSG
    run = with_locks(with_queues(with_kernel_log(open_run(*paths), log)))
    # The screen names what to read again, and not our copies.
    return run if paths == arguments.paths else replace(run, sources=tuple(arguments.paths))


def _remote_run(arguments: argparse.Namespace) -> Run:
    """Return a run whose rings each Ray node summarises; calls are fetched when needed."""
    from ncclscope.collect.ray_nodes import connect, members
    from ncclscope.remote.fleet import Fleet
    from ncclscope.remote.ray_client import RayClient
    from ncclscope.remote.run import open_remote_run

    options.check_seconds(arguments, "ray_timeout", 0.1, 86_400)
    ray = connect(arguments.ray_address)
    client = RayClient(ray, members(ray), arguments.paths, arguments.ray_timeout)
    return open_remote_run(Fleet(client), arguments.paths or ("--ray",))
