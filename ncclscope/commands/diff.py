"""``ncclscope diff``."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from ncclscope.commands.options import add_flag, add_json_option, print_json
from ncclscope.errors import UsageError
from ncclscope.resources import economy

if TYPE_CHECKING:
    from ncclscope.model import Rank, Run

SCHEMA = 1

_EPILOG = """\
Each of A and B is a directory (a run), a file (one rank), or DIR#3 (rank 3 of
the run in DIR). Two runs are compared rank by rank. Communicators are paired by
key, or by kind (tp, dp) where keys differ. Repeated calls are shown as a loop:
"61 ×" means 61 times in a row.

  $ ncclscope diff trace#2 trace#3            two ranks of one run
  $ ncclscope diff yesterday/ today/          two runs of one program
  $ ncclscope diff yesterday#0 today#0        one rank of each

exit status: 0 the same calls, 1 they differ, 2 usage or unreadable input
"""


class DiffCommand:
    """Compare the call sequences of two ranks, or of two runs."""

    def prepare_parser(self, parser: argparse.ArgumentParser) -> None:
        """Add the command's arguments to its parser."""
        parser.epilog = _EPILOG
        parser.add_argument("a", metavar="A", help="Directory, file, or DIR#RANK")
        parser.add_argument("b", metavar="B", help="Directory, file, or DIR#RANK to compare with A")
        add_json_option(parser)
        add_flag(parser, "--ignore-shapes", "Ignore tensor sizes")
        parser.add_argument(
            "-U",
            "--unified",
            type=_lines,
            default=3,
            metavar="LINES",
            help="Show LINES equal lines around each change; a loop is one line (default: 3)",
        )

    @economy()
    def run(self, arguments: argparse.Namespace) -> int:
        """Compare two ranks or two runs and print the differences."""
        from ncclscope.model import Rank
        from ncclscope.parity.comparison import compare_ranks, compare_runs
        from ncclscope.parity.selection import open_selection
        from ncclscope.parity.sequence import Vocabulary
        from ncclscope.render.console.difference import render_difference
        from ncclscope.render.console.progress import progress_for
        from ncclscope.render.console.terminal import stdout_console

        words = Vocabulary()
        shapes = not arguments.ignore_shapes
        with progress_for(json=arguments.json):
            a, b = open_selection(arguments.a), open_selection(arguments.b)
            if isinstance(a, Rank) and isinstance(b, Rank):
                # Two ranks of one job have different sends and receives: do not compare them.
                pairs = [compare_ranks(a, b, words, shapes=shapes, p2p=a.rank == b.rank)]
            elif isinstance(a, Rank) or isinstance(b, Rank):
                one = arguments.a if isinstance(a, Rank) else arguments.b
                run = arguments.b if isinstance(a, Rank) else arguments.a
                advice = f"name a rank of it: {run}#3"
                raise UsageError(f"{one} is one rank and {run} is a run", advice)
            else:
                pairs = compare_runs(a, b, words, shapes=shapes)
        same = all(pair.same for pair in pairs)
        if arguments.json:
            document = {
                "schema": SCHEMA,
                "same": same,
                "a": _side(arguments.a, a),
                "b": _side(arguments.b, b),
                "ranks": [pair.to_dict(words.texts) for pair in pairs],
            }
            print_json(document)
        else:
            names = (arguments.a, arguments.b)
            console, context = stdout_console(), arguments.unified
            console.print(render_difference(pairs, names, words.texts, console.width, context))
        return 0 if same else 1


def _side(name: str, side: Run | Rank) -> dict[str, Any]:
    from ncclscope.model import Run

    ranks = side.ranks if isinstance(side, Run) else (side,)
    return {
        "path": name,
        "ranks": [rank.rank for rank in ranks],
        "notes": list(side.notes) if isinstance(side, Run) else [],
    }


def _lines(text: str) -> int:
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of lines")
    return min(int(text), 1 << 20)
