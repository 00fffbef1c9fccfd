"""``ncclscope watch``."""

from __future__ import annotations

import argparse
import contextlib
import json
import signal
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from ncclscope import settings
from ncclscope.commands.options import add_ray_options
from ncclscope.errors import NothingFoundError, UsageError

if TYPE_CHECKING:
    from ncclscope.analysis.verdict import Verdict
    from ncclscope.render.console.output import Output
    from ncclscope.watch.actions import Actions
    from ncclscope.watch.jobs import Rings
    from ncclscope.watch.watch import Poll, Watcher

__all__ = ["WatchCommand"]

_FILED = 1.0
"""Seconds between two text files."""
_STATUSES = {
    "ok": "the ranks agree",
    "incomplete": "ranks are missing, the others agree",
    "diverged": "the ranks differ",
    "hung": "ranks waited in vain",
    "unknown": "the records do not show whether the ranks agree",
}
_REMOTE_SECONDS = 10.0
"""How long a node may take to report; looks wait for it."""
_LEAST_INTERVAL, _LONGEST_INTERVAL = 0.001, 60.0


class WatchCommand:
    """Watch a job while it runs, and say when its ranks part or stand still."""

    def prepare_parser(self, parser: argparse.ArgumentParser) -> None:
        """Adds the arguments."""
        parser.add_argument(
            "directory",
            nargs="?",
            type=Path,
            metavar="DIR",
            help="where the rings are, or will be (default: $NCCLSCOPE_DIR)",
        )
        parser.add_argument("--once", action="store_true", help="one verdict, and end")
        parser.add_argument(
            "--json", action="store_true", help="one document a line, whenever the status changes"
        )
        parser.add_argument(
            "--until-divergence",
            action="store_true",
            help="end with status 1 at the first divergence or hang; when all processes have ended "
            "for --stall seconds, with the status of what they left",
        )
        parser.add_argument(
            "--plain",
            action="store_true",
            help="a line whenever the status changes, also on a terminal",
        )
        parser.add_argument(
            "--stall",
            type=float,
            default=10.0,
            metavar="SECONDS",
            help="no progress for so long, inside of a call, is a hang (default: 10)",
        )
        parser.add_argument(
            "--interval",
            type=float,
            default=0.1,
            metavar="SECONDS",
            help="time between two looks (default: 0.1)",
        )
        parser.add_argument(
            "--bundle",
            type=Path,
            metavar="DIR",
            help="at a divergence or hang, keep rings and verdict in a new folder in DIR",
        )
        parser.add_argument(
            "--on-hang",
            default="",
            metavar="CMD",
            help="then run this, with the verdict on stdin and $NCCLSCOPE_BUNDLE",
        )
        parser.add_argument(
            "--kill",
            action="store_true",
            help="then end the workers with SIGKILL, for a supervisor to start them anew",
        )
        parser.add_argument(
            "--textfile",
            type=Path,
            metavar="FILE",
            help="keep a Prometheus text file up to date, for node_exporter",
        )

        add_ray_options(parser, "DIR is on the nodes of a Ray cluster, whose actors report")

    def run(self, arguments: argparse.Namespace) -> int:
        """Looks until it is told to stop, or has found what it was to wait for."""
        from ncclscope.watch.actions import Actions
        from ncclscope.watch.gpu_load import GpuLoad
        from ncclscope.watch.watch import Watcher

        directory = _directory(arguments)
        actions = Actions(arguments.bundle, arguments.on_hang, arguments.kill, _attach_screen)
        actions.check()
        elsewhere = _elsewhere(arguments)
        gpus = GpuLoad() if elsewhere is None else None
        watcher = Watcher(directory, stall=arguments.stall, rings=elsewhere, gpus=gpus)
        if arguments.once:
            return _once(watcher, arguments)
        # A supervisor ends it so, or a line that goes down; the terminal is to be as it was.
        for number in (signal.SIGTERM, signal.SIGHUP):
            if signal.getsignal(number) is not signal.SIG_IGN:
                signal.signal(number, _end)
        with _output(watcher, arguments) as output:
            return _watch(watcher, output, actions, arguments)


def _watch(
    watcher: Watcher, output: Output, actions: Actions, arguments: argparse.Namespace
) -> int:
    troubles, filed_at = 0, 0.0
    while True:
        began = time.monotonic()
        poll = watcher.poll()
        troubles += poll.news
        if arguments.textfile is not None and (poll.changed or began - filed_at >= _FILED):
            filed_at = began
            _file(arguments.textfile, poll, troubles)
        output.show(poll)
        if poll.news:
            _act(actions, poll, output)
        if arguments.until_divergence:
            if poll.in_trouble:
                return 1
            if poll.over_for is not None and poll.over_for >= arguments.stall:
                return _conclude(watcher, poll, output)
        if not output.wait(arguments.interval - (time.monotonic() - began)):
            return int(output.in_trouble)


def _act(actions: Actions, poll: Poll, output: Output) -> None:
    # What a command prints is not to be printed over a picture.
    with output.away() if actions.command else contextlib.nullcontext():
        said = actions.act(poll).said
    for line in said:
        output.say(line)


def _conclude(watcher: Watcher, poll: Poll, output: Output) -> int:
    """Ends a wait for what can no longer come, with what is to be said of what was left."""
    verdict = watcher.last_word()
    if poll.verdict is None:  # it had ended before anybody looked
        output.show(replace(poll, verdict=verdict, status=verdict.status, changed=True))
    count = len(poll.ranks)
    who = "1 process has" if count == 1 else f"{count} processes have"
    output.say(f"nothing runs any more: {who} ended; {_STATUSES[verdict.status]}")
    return verdict.exit_status


def _output(watcher: Watcher, arguments: argparse.Namespace) -> Output:
    from ncclscope.render.console.output import Lines
    from ncclscope.render.tui.terminal import is_usable

    if arguments.json or arguments.plain or not is_usable():
        return Lines(as_json=arguments.json)
    from ncclscope.render.tui.view import LiveView

    return LiveView(watcher)


def _attach_screen(verdict: Verdict) -> str:
    from ncclscope.render.console.attach import render_attach
    from ncclscope.render.console.plain import plain_text

    return plain_text(render_attach(verdict, 120), 120)


def _once(watcher: Watcher, arguments: argparse.Namespace) -> int:
    """Gives one verdict: of what runs, else of what is left."""
    from ncclscope.analysis.verdict import diagnose
    from ncclscope.readers import open_run
    from ncclscope.render.console.terminal import stdout_console
    from ncclscope.render.console.verdict import print_verdict
    from ncclscope.watch.gpu_load import AGAIN_SPINNING

    if not watcher.directory.is_dir():
        raise UsageError(f"{watcher.directory} is no directory", "name the one with the rings")
    poll = watcher.poll()
    if watcher.is_undecided:
        time.sleep(AGAIN_SPINNING)
        poll = watcher.poll()
    verdict = poll.verdict
    if verdict is None:
        if not poll.ranks:
            raise NothingFoundError(f"{watcher.directory}: no ring found", *watcher.notes[:1])
        verdict = diagnose(open_run(watcher.directory))
    if arguments.json:
        _print(verdict.to_dict())
    else:
        print_verdict(verdict, stdout_console())
    if arguments.textfile is not None:
        _file(arguments.textfile, poll, int(poll.in_trouble))
    return verdict.exit_status


def _directory(arguments: argparse.Namespace) -> Path:
    for name, least, most in (
        ("stall", 0.0, 86_400.0),
        ("interval", _LEAST_INTERVAL, _LONGEST_INTERVAL),
    ):
        if not least <= getattr(arguments, name) <= most:
            raise UsageError(f"--{name} must be from {least:g} to {most:g} seconds")
    if arguments.textfile is not None and not arguments.textfile.parent.is_dir():
        raise UsageError(f"{arguments.textfile.parent} is no directory", "make it first")
    directory: Path | None = arguments.directory
    if arguments.ray:
        return directory or Path("NCCLSCOPE_DIR of each node")
    if directory is None and (given := settings.directory()):
        directory = Path(given)
    if directory is None:
        raise UsageError("no directory to watch", "name one, or set NCCLSCOPE_DIR")
    if directory.exists() and not directory.is_dir():
        raise UsageError(f"{directory} is no directory", "name the one with the rings")
    return directory


def _elsewhere(arguments: argparse.Namespace) -> Rings | None:
    """Returns the rings of a Ray cluster's nodes, where they are asked for."""
    if not arguments.ray:
        return None
    if arguments.once:
        raise UsageError("--once is for one machine", "ncclscope diagnose --ray gives one verdict")
    if arguments.bundle is not None or arguments.kill:
        raise UsageError(
            "--bundle and --kill reach this machine only",
            "--on-hang 'ncclscope collect --ray -o DIR' keeps what all nodes have",
        )
    from ncclscope.collect.ray_nodes import connect, members
    from ncclscope.remote.cursor import RemoteRings
    from ncclscope.remote.ray_client import RayClient

    ray = connect(arguments.ray_address)
    paths = [str(arguments.directory)] if arguments.directory is not None else []
    return RemoteRings(RayClient(ray, members(ray), paths, _REMOTE_SECONDS))


def _file(path: Path, poll: Poll, troubles: int) -> None:
    from ncclscope.tracing.warning import warn_once
    from ncclscope.watch.textfile import write_textfile

    try:
        write_textfile(path, poll, troubles=troubles, now=time.time())
    except OSError as error:
        warn_once("textfile", f"{path} cannot be written: {error.strerror or error}")


def _end(number: int, _frame: object) -> NoReturn:
    sys.exit(128 + number)


def _print(document: dict[str, Any]) -> None:
    json.dump(document, sys.stdout)
    sys.stdout.write("\n")
    sys.stdout.flush()
