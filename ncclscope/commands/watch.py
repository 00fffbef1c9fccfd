"""``ncclscope watch``."""

from __future__ import annotations

import argparse
import contextlib
import json
import signal
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from ncclscope.errors import NothingFoundError, UsageError
from ncclscope.tracing import session

if TYPE_CHECKING:
    from ncclscope.live.actions import Actions
    from ncclscope.live.watch import Look, Watcher

__all__ = ["WatchCommand"]

_REDRAWN = 0.25
"""Seconds between two pictures: an eye sees no more."""
_FILED = 1.0
"""Seconds between two text files."""
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
            help="end with status 1 at the first divergence or hang",
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

    def run(self, arguments: argparse.Namespace) -> int:
        """Looks until it is told to stop, or has found what it was to wait for."""
        from ncclscope.live.actions import Actions
        from ncclscope.live.watch import Watcher

        directory = _directory(arguments)
        actions = Actions(arguments.bundle, arguments.on_hang, arguments.kill)
        actions.check()
        watcher = Watcher(directory, stall=arguments.stall)
        if arguments.once:
            return _once(watcher, arguments)
        if not arguments.json and sys.stdout.isatty():
            output: Output = _Table(directory)
        else:
            output = _Lines(arguments.json)
        # A supervisor ends it so; the terminal is to have its cursor back.
        signal.signal(signal.SIGTERM, _end)
        with output:
            return _watch(watcher, output, actions, arguments)


def _watch(
    watcher: Watcher, output: Output, actions: Actions, arguments: argparse.Namespace
) -> int:
    troubles, filed_at = 0, 0.0
    while True:
        began = time.monotonic()
        look = watcher.look()
        troubles += look.news
        if arguments.textfile is not None and (look.changed or began - filed_at >= _FILED):
            filed_at = began
            _file(arguments.textfile, look, troubles)
        output.show(look)
        if look.news:
            for line in actions.act(look).said:
                _say(line)
        if look.in_trouble and arguments.until_divergence:
            return 1
        time.sleep(max(0.0, arguments.interval - (time.monotonic() - began)))


def _once(watcher: Watcher, arguments: argparse.Namespace) -> int:
    """Gives one verdict: of what runs, else of what is left."""
    from ncclscope.analysis.verdict import diagnose
    from ncclscope.render.console import print_verdict
    from ncclscope.render.terminal import stdout_console
    from ncclscope.sources import open_run

    if not watcher.directory.is_dir():
        raise UsageError(f"{watcher.directory} is no directory", "name the one with the rings")
    look = watcher.look()
    verdict = look.verdict
    if verdict is None:
        if not look.ranks:
            raise NothingFoundError(f"{watcher.directory}: no ring found", *watcher.notes[:1])
        verdict = diagnose(open_run(watcher.directory))
    if arguments.json:
        _print(verdict.to_dict())
    else:
        print_verdict(verdict, stdout_console())
    if arguments.textfile is not None:
        _file(arguments.textfile, look, int(look.in_trouble))
    return verdict.exit_status


class Output(contextlib.AbstractContextManager["Output"]):
    """Where looks are shown."""

    def show(self, look: Look) -> None:
        """Shows one."""
        raise NotImplementedError

    def __exit__(self, *_exception: object) -> None:
        return None


class _Lines(Output):
    """A line whenever the status changes, for programs and logs."""

    def __init__(self, as_json: bool) -> None:
        self._as_json = as_json

    def show(self, look: Look) -> None:
        from ncclscope.render.watch import one_line

        if not look.changed or look.verdict is None:
            return
        if self._as_json:
            _print({**look.verdict.to_dict(), "activity": look.activity, "time_ns": time.time_ns()})
        else:
            print(time.strftime("%H:%M:%S"), one_line(look), flush=True)


class _Table(Output):
    """A table that is drawn again and again, for a person."""

    def __init__(self, directory: Path) -> None:
        from rich.live import Live

        from ncclscope.render.terminal import stdout_console

        self._console = stdout_console()
        self._live = Live(console=self._console, auto_refresh=False, screen=False)
        self._directory = str(directory)
        self._drawn_at = 0.0

    def __enter__(self) -> _Table:
        self._live.__enter__()
        return self

    def __exit__(self, *exception: Any) -> None:
        self._live.__exit__(*exception)

    def show(self, look: Look) -> None:
        from ncclscope.render.watch import render_look

        now = time.monotonic()
        if not look.changed and now - self._drawn_at < _REDRAWN:
            return
        self._drawn_at = now
        width, height = self._console.size
        self._live.update(render_look(look, width, height, self._directory), refresh=True)


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
    if directory is None and (given := session.directory()):
        directory = Path(given)
    if directory is None:
        raise UsageError("no directory to watch", "name one, or set NCCLSCOPE_DIR")
    if directory.exists() and not directory.is_dir():
        raise UsageError(f"{directory} is no directory", "name the one with the rings")
    return directory


def _file(path: Path, look: Look, troubles: int) -> None:
    from ncclscope.live.textfile import write_textfile

    try:
        write_textfile(path, look, troubles=troubles, now=time.time())
    except OSError as error:
        session.warn_once("textfile", f"{path} cannot be written: {error.strerror or error}")


def _end(number: int, _frame: object) -> NoReturn:
    sys.exit(128 + number)


def _print(document: dict[str, Any]) -> None:
    json.dump(document, sys.stdout)
    sys.stdout.write("\n")
    sys.stdout.flush()


def _say(text: str) -> None:
    print(f"ncclscope: {text}", file=sys.stderr, flush=True)
