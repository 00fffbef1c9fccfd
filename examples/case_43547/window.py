"""Claim (c): a table of the last 10,000 calls has a swap in it whenever a rank is late.

    python examples/case_43547/window.py [DIR] [--keep 10000]

Eight ranks make the same calls in the same order; one of them is some calls behind the others. The
last calls of each are kept, as the patch behind the issue kept them, and read by ncclscope. The
ranks and their batches are those of examples/seed_v4y. Needs no vLLM. With DIR the files are kept.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path

from rich.console import Console
from rich.table import Table
from shell import parser_of, place, say, show

from ncclscope import Verdict, diagnose, open_run
from ncclscope.model import Run
from ncclscope.readers.jsonl import write_trace

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "seed_v4y"))

from engine import Story, run

LATE = 6
"""Pid 3408431 of the issue: TP rank 2 on node-15."""
PEER = 7

LAGS = {
    0: Story(),
    1: Story(behind={LATE: 1}),
    17: Story(behind={LATE: 17}),
    72: Story(behind={LATE: 72}),
    258: Story(absent={LATE: 2}),
    444: Story(absent={LATE: 3}),
}
"""By calls that the late rank is behind: of the last step, or all of that and of one or two more.
Nobody leaves the common sequence."""


def keep_last(rings: Run, directory: Path, count: int) -> Path:
    """Write the last calls of each rank; return where."""
    directory.mkdir()
    for rank in rings.ranks:
        write_trace(rank, directory / f"{rank.host}-{rank.pid}.jsonl", last=count)
    return directory


def cells(verdict: Verdict, rank: int) -> Mapping[str, int]:
    """Return how many calls a rank has on each communicator, as the verdict's table has it."""
    (row,) = [row for row in verdict.table if row.rank.rank == rank]
    return {kind: row.cells[f"{kind}:0"].calls for kind in ("dp", "tp")}


def lead(verdict: Verdict) -> Mapping[str, int]:
    """Return how many calls the late rank has more than its peers."""
    own, theirs = cells(verdict, LATE), cells(verdict, PEER)
    return {kind: own[kind] - theirs[kind] for kind in own}


def main() -> int:
    """Print one row for each lag, and what ncclscope says of the last."""
    parser = parser_of(__doc__)
    parser.add_argument("--keep", type=int, default=10_000, help="calls kept (default: 10000)")
    parser.add_argument(
        "--lags",
        type=int,
        nargs="+",
        choices=tuple(LAGS),
        default=(0, 1, 17, 72, 444, 258),
        metavar="CALLS",
        help=f"which of {', '.join(map(str, LAGS))} (default: all)",
    )
    arguments = parser.parse_args()
    if not 1 <= arguments.keep <= 10_000:
        parser.error("--keep: between 1 and 10000, which the runs are long enough for")
    table = Table(title=f"last {arguments.keep:,} calls of rank {LATE}, against its TP peers")
    for heading in ("behind by", "DP", "TP", "sum", "DP more", "TP more", "verdict"):
        table.add_column(heading, justify="right")
    for heading in ("in truth: DP more", "TP more"):
        table.add_column(heading, justify="right")
    well = True
    with place(arguments.directory) as directory:
        for lag in arguments.lags:
            rings = directory / f"rings-{lag}"
            run(str(rings), LAGS[lag])
            whole = diagnose(open_run(rings))
            windows = keep_last(whole.run, directory / f"windows-{lag}", arguments.keep)
            kept = diagnose(open_run(windows))
            counts, truth = cells(kept, LATE), lead(whole)
            more = lead(kept)
            well &= sum(counts.values()) == arguments.keep and more["dp"] == -more["tp"]
            well &= sum(truth.values()) == -lag
            well &= kept.status == whole.status == "ok" and kept.run.window
            table.add_row(
                f"{lag} call{'s' * (lag != 1)}",
                *map(str, (*counts.values(), sum(counts.values()))),
                *(f"{more[kind]:+d}" for kind in more),
                kept.status,
                *(f"{truth[kind]:+d}" for kind in truth),
            )
        Console(highlight=False, width=120).print(table)
        say()
        say(f"The windows in which rank {LATE} is behind by {lag} calls:")
        well &= show("diagnose", windows) == 0
    say(
        f"Rank {LATE} never left the common sequence. The last {arguments.keep:,} calls show a swap"
    )
    say("all the same: what is short on one communicator is made up for on the other.")
    return 0 if well else 1


if __name__ == "__main__":
    sys.exit(main())
