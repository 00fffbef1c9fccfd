"""``ncclscope watch``."""

from __future__ import annotations

import argparse
import contextlib
import functools
import resource
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from ncclscope import settings
from ncclscope.commands import options
from ncclscope.errors import NothingFoundError, UsageError
from ncclscope.launch.signals import disregard_others
from ncclscope.model.text import plural

if TYPE_CHECKING:
    from ncclscope.engine.verdict import Verdict
    from ncclscope.render.console.output import Output
    from ncclscope.watch.actions import Actions
    from ncclscope.watch.jobs import Rings
    from ncclscope.watch.poll import Poll
    from ncclscope.watch.watch import Watcher

    Metrics = Callable[[Poll, int], None]

_METRICS_SECONDS = 1.0
"""Seconds between two updates of the metrics."""
_STATUSES = {
    "ok": "the ranks agree",
    "incomplete": "ranks are missing, the others agree",
    "diverged": "the ranks differ",
    "hung": "ranks waited and their call did not complete",
    "unknown": "the records do not show whether the ranks agree",
}
_REMOTE_SECONDS = 10.0
"""Seconds that a host may take to answer."""
_FILES_PER_HOST, _OTHER_FILES = 3, 512
_LEAST_INTERVAL, _LONGEST_INTERVAL = 0.001, 60.0


_EPILOG = """\
On a terminal watch shows a live view; ? lists its keys.

marks before a rank or a communicator:
{marks}

exit status: after q, and with --until-divergence: 1 a divergence or a hang is shown, 0 none is;
             130 after Ctrl-C, 143 after SIGTERM, 129 after SIGHUP; 2 usage or unreadable input;
             with --once as of `ncclscope diagnose`
"""


class WatchCommand:
    """Watch a running job and report when its ranks diverge or hang."""

    def prepare_parser(self, parser: argparse.ArgumentParser) -> None:
        """Add the command's arguments to its parser."""
        from ncclscope.render.tui.marks import MARKS

        marks = "\n".join(f"  {mark}  {meaning}" for mark, (meaning, _) in MARKS.items() if mark)
        parser.epilog = _EPILOG.format(marks=marks)
        parser.add_argument(
            "directories",
            nargs="*",
            type=Path,
            metavar="DIR",
            help="Directory of the rings; it may appear later (default: $NCCLSCOPE_DIR). Several "
            "are watched as one system, such as prefill and decode servers",
        )
        options.add_flag(parser, "--once", "Print one verdict and exit")
        options.add_flag(
            parser, "--json", "Print one JSON document per line, whenever the status changes"
        )
        options.add_flag(
            parser,
            "--until-divergence",
            "Exit with status 1 at the first divergence or hang, else --stall seconds after "
            "all processes have ended, with the status of their records",
        )
        options.add_flag(
            parser, "--plain", "Print a line whenever the status changes, even on a terminal"
        )
        hang = "Report a hang after SECONDS without progress inside a collective (default: 10)"
        options.add_seconds_option(parser, "--stall", hang, 10.0)
        interval = "Poll the rings every SECONDS (default: 0.1)"
        options.add_seconds_option(parser, "--interval", interval, 0.1)
        parser.add_argument(
            "--bundle",
            type=Path,
            metavar="DIR",
            help="At a divergence or hang, save rings and verdict to a new folder in DIR",
        )
        options.add_hang_options(parser)
        options.add_flag(
            parser,
            "--kill",
            "At a divergence or hang, end the workers with SIGKILL, so that their supervisor "
            "restarts them",
        )
        options.add_flag(
            parser,
            "--explain",
            "At a divergence or hang, print the whole verdict on stderr, and nothing else",
        )
        parser.add_argument("--while-pid", type=int, help=argparse.SUPPRESS)  # for ncclscope run
        parser.add_argument(
            "--textfile",
            type=Path,
            metavar="FILE",
            help="Write metrics to FILE in Prometheus' text format, for node_exporter",
        )
        parser.add_argument(
            "--otlp",
            metavar="URL",
            help="Send metrics and events to an OpenTelemetry collector, such as "
            "http://localhost:4318; auto for $OTEL_EXPORTER_OTLP_ENDPOINT",
        )
        options.add_host_options(parser)

    def run(self, arguments: argparse.Namespace) -> int:
        """Poll the rings until interrupted, or until the event of ``--until-divergence``."""
        from ncclscope.readers import ring_files
        from ncclscope.ring.place import moved_text
        from ncclscope.watch.actions import Actions
        from ncclscope.watch.gpu_load import GpuLoad
        from ncclscope.watch.watch import Watcher

        if arguments.serve:
            from ncclscope.remote.pipe_server import serve_stdin

            return serve_stdin([str(directory) for directory in arguments.directories])
        directories = _directories(arguments)
        actions = Actions(arguments.bundle, arguments.on_hang, arguments.kill, _attach_screen)
        actions.check()
        if not arguments.once:
            # Exit in order on SIGTERM and SIGHUP, so that the terminal is restored.
            for number in (signal.SIGTERM, signal.SIGHUP):
                if signal.getsignal(number) is not signal.SIG_IGN:
                    signal.signal(number, _end)
        if arguments.while_pid is not None:
            disregard_others()
        with _remote_rings(arguments) as remote, _metrics(arguments) as metrics:
            gpus = GpuLoad() if remote is None else None
            watcher = Watcher(*directories, stall=arguments.stall, rings=remote, gpus=gpus)
            if arguments.once:
                return _once(watcher, arguments, metrics)
            with _output(watcher, arguments) as output:
                is_empty = remote is None and not any(map(any, map(ring_files, directories)))
                if is_empty and (moved := moved_text(directories)):
                    output.say(moved)
                try:
                    return _watch(watcher, output, actions, arguments, metrics)
                except SystemExit:
                    if not arguments.explain:
                        raise
                    return int(output.in_trouble)  # what ncclscope run wants to know


def _watch(
    watcher: Watcher,
    output: Output,
    actions: Actions,
    arguments: argparse.Namespace,
    metrics: Sequence[Metrics],
) -> int:
    from ncclscope.watch.actions import Actions
    from ncclscope.watch.killing import why_not_kill
    from ncclscope.watch.silence import HostNews

    troubles, filed_at, since = 0, 0.0, 0.0
    limit = arguments.kill_after
    refused: set[str] = set()
    hosts = HostNews()
    while True:
        began = time.monotonic()
        poll = watcher.poll()
        for line in hosts.of(poll.silent):
            output.say(line)
        troubles += poll.news
        if poll.changed or began - filed_at >= _METRICS_SECONDS:
            filed_at = began
            for one in metrics:
                one(poll, troubles)
        output.show(poll)
        if poll.news:
            if arguments.explain:  # what ncclscope run keeps in any case
                _mark_alarm(arguments.directories)
            _act(actions, poll, output)
            since = began
        if limit is not None and poll.in_trouble and began - since >= limit:
            why = why_not_kill(poll.verdict) if poll.verdict is not None else ""
            if not why:
                _act(Actions(kill=True), poll, output)
                limit = None
            elif why not in refused:  # a later verdict may know more
                refused.add(why)
                output.say(f"--kill-after: no process is killed: {why}")
        if arguments.until_divergence:
            if poll.in_trouble:
                return 1
            if poll.over_for is not None and poll.over_for >= arguments.stall:
                return _conclude(watcher, poll, output)
        if not output.wait(arguments.interval - (time.monotonic() - began)):
            return int(output.in_trouble)


def _mark_alarm(directories: Sequence[Path]) -> None:
    from ncclscope.store.entry import ALARM, mark

    for directory in directories:
        mark(directory, ALARM)


def _act(actions: Actions, poll: Poll, output: Output) -> None:
    # The command of --on-hang may print: give it the terminal.
    with output.away() if actions.command else contextlib.nullcontext():
        messages = actions.act(poll).messages
    for line in messages:
        output.say(line)


def _conclude(watcher: Watcher, poll: Poll, output: Output) -> int:
    """Report the final verdict of a job whose processes have all ended; return its status."""
    verdict = watcher.last_word()
    if poll.verdict is None:  # the job had ended before the first poll
        output.show(replace(poll, verdict=verdict, status=verdict.status, changed=True))
    count = len(poll.ranks)
    who = f"{plural(count, 'process')} {'has' if count == 1 else 'have'}"
    output.say(f"nothing runs any more: {who} ended; {_STATUSES[verdict.status]}")
    return verdict.exit_status


def _output(watcher: Watcher, arguments: argparse.Namespace) -> Output:
    from ncclscope.render.console.output import Explanations, Lines
    from ncclscope.render.tui.terminal import is_usable

    if arguments.explain:
        return Explanations(arguments.while_pid)
    if arguments.json or arguments.plain or not is_usable():
        return Lines(as_json=arguments.json)
    from ncclscope.render.tui.view import LiveView

    return LiveView(watcher)


def _attach_screen(verdict: Verdict) -> str:
    from ncclscope.render.console.attach import render_attach
    from ncclscope.render.console.terminal import plain_text

    return plain_text(render_attach(verdict, 120), 120)


def _once(watcher: Watcher, arguments: argparse.Namespace, metrics: Sequence[Metrics]) -> int:
    """Print one verdict, on the running job or on the records of an ended one."""
    from ncclscope.render.console.terminal import stdout_console
    from ncclscope.render.console.verdict import print_verdict
    from ncclscope.ring.place import moved_text
    from ncclscope.watch.gpu_load import AGAIN_SPINNING

    poll = watcher.poll()
    if watcher.is_undecided:
        time.sleep(AGAIN_SPINNING)
        poll = watcher.poll()
    verdict = poll.verdict
    if verdict is None:
        if not poll.ranks and not watcher.untraced:
            named = " ".join(watcher.sources)
            moved = moved_text(watcher.directories)
            advice = moved or "for a job that was not traced: ncclscope attach"
            advice = "; ".join((*watcher.notes[:1], advice))
            raise NothingFoundError(f"{named}: no ring found", advice)
        verdict = watcher.last_word()
    if arguments.json:
        _print(verdict.to_dict())
    else:
        print_verdict(verdict, stdout_console())
    for one in metrics:
        one(poll, int(poll.in_trouble))
    return verdict.exit_status


def _directories(arguments: argparse.Namespace) -> list[Path]:
    options.check_seconds(arguments, "stall", 0.0, 86_400.0)
    options.check_seconds(arguments, "interval", _LEAST_INTERVAL, _LONGEST_INTERVAL)
    options.check_seconds(arguments, "kill_after", 0.0, 86_400.0)
    if arguments.textfile is not None and not arguments.textfile.parent.is_dir():
        raise UsageError(f"{arguments.textfile.parent} is not a directory", "create it first")
    directories: list[Path] = list(arguments.directories)
    if options.is_remote(arguments):
        return directories or [Path("NCCLSCOPE_DIR of each node")]
    if not directories and (given := settings.directory()):
        directories = [Path(given)]
    if not directories:
        raise UsageError("no directory to watch", "name one, or set NCCLSCOPE_DIR")
    for directory in directories:
        if not directory.is_dir() and (arguments.once or directory.exists()):
            raise UsageError(f"{directory} is not a directory", "name the one with the rings")
    return directories


@contextlib.contextmanager
def _remote_rings(arguments: argparse.Namespace) -> Iterator[Rings | None]:
    """Yield the rings of the hosts that the options name; None if they name none.

    Raises:
        UsageError: Another option is for one machine only, or a name is not valid.
        InputError: Ray or Slurm does not answer.
    """
    if not options.is_remote(arguments):
        yield None
        return
    if arguments.bundle is not None or arguments.kill or arguments.kill_after is not None:
        raise UsageError(
            "--bundle and --kill reach this machine only",
            f"--on-hang 'ncclscope collect {options.hosts_text(arguments)} -o DIR' collects from "
            "all nodes",
        )
    from ncclscope.remote.rings import RemoteRings

    paths = [str(directory) for directory in arguments.directories]
    if arguments.ray:
        if arguments.once:
            raise UsageError(
                "--once is for one machine", "ncclscope diagnose --ray gives one verdict"
            )
        from ncclscope.collect.ray_nodes import connect, members
        from ncclscope.remote.ray_client import RayClient

        ray = connect(arguments.ray_address)
        yield RemoteRings(RayClient(ray, members(ray), paths, _REMOTE_SECONDS))
        return
    from ncclscope.remote.program_client import ProgramClient

    nodes = options.host_programs(arguments, ("watch", "--serve", "--", *paths))
    _allow_files(_OTHER_FILES + _FILES_PER_HOST * len(nodes))
    with contextlib.closing(ProgramClient(nodes, _REMOTE_SECONDS)) as client:
        yield RemoteRings(client)


def _allow_files(count: int) -> None:
    """Raise the limit of open files if it is lower than needed, as far as allowed."""
    files, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    if files < count:
        wanted = count if most == resource.RLIM_INFINITY else min(count, most)
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, most))


@contextlib.contextmanager
def _metrics(arguments: argparse.Namespace) -> Iterator[list[Metrics]]:
    """Yield what takes the metrics of a poll, and the number of troubles so far."""
    from ncclscope.tracing.warning import warn_once
    from ncclscope.watch.textfile import write_textfile

    def write(poll: Poll, troubles: int) -> None:
        try:
            write_textfile(arguments.textfile, poll, troubles=troubles, now=time.time())
        except OSError as error:
            reason = error.strerror or error
            warn_once("textfile", f"{arguments.textfile} cannot be written: {reason}")

    found: list[Metrics] = [write] if arguments.textfile is not None else []
    if arguments.otlp is None:
        yield found
        return
    from ncclscope.watch.otlp import OtlpSender

    sender = OtlpSender(arguments.otlp, functools.partial(warn_once, "otlp"))
    try:
        yield [
            *found,
            lambda poll, troubles: sender.write(poll, troubles=troubles, now=time.time()),
        ]
    finally:
        sender.close()


def _end(number: int, _frame: object) -> NoReturn:
    sys.exit(128 + number)


def _print(document: dict[str, Any]) -> None:
    options.print_json(document)
    sys.stdout.flush()
