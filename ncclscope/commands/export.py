"""``ncclscope export``."""

from __future__ import annotations

import argparse
import math
import re
import shutil
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from ncclscope.commands.options import add_json_option, print_json, say
from ncclscope.errors import UsageError, os_reason
from ncclscope.export.formats import FORMATS
from ncclscope.private import make_private
from ncclscope.resources import economy

if TYPE_CHECKING:
    from ncclscope.export.formats import Format, Writer
    from ncclscope.export.selection import Selection
    from ncclscope.model import Run

_EPILOG = """\
formats:
{formats}

  $ ncclscope export DIR --format perfetto -o hang.pftrace       open it at ui.perfetto.dev
  $ ncclscope export DIR --format jsonl -o trace/                and `ncclscope diagnose trace/`
  $ ncclscope export DIR --format csv --comm tp:0 --around 173 -o tables/

Selected calls keep their sequence numbers. Records that a ring has overwritten cannot be exported.

exit status: 0 the output is written, 2 usage, unreadable input, or an output that cannot be written
"""
_SPAN = re.compile(r"(\d{1,7})(?:-(\d{1,7}))?")
_SECONDS = re.compile(r"(\d+(?:\.\d*)?|\.\d+)s")


class ExportCommand:
    """Convert recorded calls to another format."""

    def prepare_parser(self, parser: argparse.ArgumentParser) -> None:
        """Add the command's arguments to its parser."""
        width = max(map(len, FORMATS))
        parser.epilog = _EPILOG.format(
            formats="\n".join(f"  {name:{width}}  {one.help}" for name, one in FORMATS.items())
        )
        parser.add_argument(
            "paths", nargs="+", metavar="PATH", help="Any input of `ncclscope diagnose`"
        )
        parser.add_argument(
            "--format",
            required=True,
            choices=list(FORMATS),
            metavar="FORMAT",
            help="Write this format; see below",
        )
        parser.add_argument(
            "-o",
            "--output",
            required=True,
            metavar="OUT",
            help="Write to OUT, a directory for a format of several files; - for stdout",
        )
        parser.add_argument(
            "--ranks",
            type=_ranks,
            default=(),
            metavar="RANKS",
            help="Export only these ranks, for example 0-3,13",
        )
        parser.add_argument(
            "--comm",
            action="append",
            default=[],
            metavar="LABEL",
            help="Export only communicators with this label or key; repeat for several",
        )
        parser.add_argument(
            "--around",
            type=_around,
            metavar="SEQ",
            help="Export only calls around sequence number SEQ on their communicator: 173, or "
            "173:20 for 20 calls on each side (default: 50)",
        )
        parser.add_argument(
            "--last",
            type=_last,
            metavar="N",
            help="Export only the last N calls of each rank, or with 2.5s the calls of the last "
            "2.5 seconds before the newest",
        )
        add_json_option(parser, "output's name and what it holds")

    @economy()
    def run(self, arguments: argparse.Namespace) -> int:
        """Read the input, select calls and write them."""
        from ncclscope.engine.damaged import readable
        from ncclscope.export.selection import Selection, select
        from ncclscope.readers import open_run
        from ncclscope.render.console.progress import progress_for

        chosen = FORMATS[arguments.format]
        target = None if arguments.output == "-" else Path(arguments.output)
        if arguments.json and target is None:
            raise UsageError("data and --json cannot both go to stdout", "name a file with -o")
        selection = _selection(arguments)
        if chosen.is_whole and selection != Selection():
            raise UsageError(
                f"{arguments.format} describes a whole run", "leave out --ranks, --comm and so on"
            )
        _check(target, chosen)
        write = chosen.writer()
        with progress_for(json=target is None):
            found = open_run(*arguments.paths)
            sound = readable(found)
            for note in sound.notes[len(found.notes) :]:
                say(note)
            run = select(sound, selection)
            if not any(rank.logs or rank.p2p for rank in (*run.ranks, *run.others)):
                raise UsageError("the input holds no recorded calls", "stacks cannot be exported")
            try:
                _write(run, write, target, chosen)
            except OSError as error:
                if target is None:
                    raise
                raise UsageError(f"{target} cannot be written: {os_reason(error)}") from None
        if target is not None:
            ranks, records = len(run.ranks), sum(rank.records for rank in run.ranks)
            if arguments.json:
                held = {"ranks": ranks, "records": records}
                print_json({"output": str(target), "format": arguments.format, **held})
            else:
                say(f"{ranks} ranks, {records} records, see {target}")
        return 0


def _selection(arguments: argparse.Namespace) -> Selection:
    from ncclscope.export.selection import CONTEXT, Selection

    around, context = arguments.around or (None, CONTEXT)
    last, last_ns = arguments.last or (None, None)
    return Selection(
        ranks=arguments.ranks,
        comms=tuple(arguments.comm),
        around=around,
        context=context,
        last=last,
        last_ns=last_ns,
    )


def _check(target: Path | None, chosen: Format) -> None:
    """Refuse to overwrite anything: the target may be the evidence itself."""
    advice = "name a new one with -o"
    if target is None:
        if chosen.is_directory:
            raise UsageError("this format writes several files", "name a directory with -o")
        return
    try:
        if target.is_dir():
            if not chosen.is_directory:
                raise UsageError(f"{target} is a directory, and this format is a file", advice)
            if any(target.iterdir()):
                raise UsageError(f"{target} is not empty", advice)
        elif target.exists() or target.is_symlink():
            raise UsageError(f"{target} exists", advice)
        elif not chosen.is_directory and not target.parent.is_dir():
            raise UsageError(f"{target.parent} is not a directory", advice)
    except OSError as error:
        raise UsageError(f"{target} cannot be used: {os_reason(error)}", advice) from None


def _write(run: Run, write: Writer, target: Path | None, chosen: Format) -> None:
    """Write to a temporary file and rename it, so that no partial file is left."""
    if target is None:
        with tempfile.TemporaryDirectory(prefix="ncclscope-") as folder:
            file = Path(folder, f"export{chosen.suffix}")
            write(run, file)
            with open(file, "rb") as data:
                shutil.copyfileobj(data, sys.stdout.buffer)
        return
    if chosen.is_directory:
        make_private(target)
        write(run, target)
        return
    with tempfile.TemporaryDirectory(prefix=f".{target.name}.", dir=target.parent) as folder:
        # Keep the whole name: a final .gz selects compression.
        file = Path(folder, target.name)
        write(run, file)
        file.replace(target)


def _ranks(text: str) -> tuple[tuple[int, int], ...]:
    spans = []
    for part in re.split(r"[,\s]+", text.strip()):
        found = _SPAN.fullmatch(part)
        if found is None:
            raise argparse.ArgumentTypeError(f"{text!r} is not a list of ranks such as 0-3,13")
        spans.append((int(found[1]), int(found[2] or found[1])))
    return tuple(spans)


def _around(text: str) -> tuple[int, int]:
    from ncclscope.export.selection import CONTEXT

    found = re.fullmatch(r"(\d{1,15})(?::(\d{1,9}))?", text)
    if found is None or int(found[1]) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a call number such as 173 or 173:20")
    return int(found[1]), CONTEXT if found[2] is None else int(found[2])


def _last(text: str) -> tuple[int | None, int | None]:
    seconds = _SECONDS.fullmatch(text)
    if seconds is not None and math.isfinite(float(seconds[1])) and len(text) < 16:
        return None, int(float(seconds[1]) * 1e9)
    if text.isdecimal() and 0 < len(text) < 16 and int(text) > 0:
        return int(text), None
    raise argparse.ArgumentTypeError(
        f"{text!r} is neither a number of calls nor of seconds such as 2.5s"
    )
