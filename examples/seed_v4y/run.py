"""Seed 003's table, from a program that posts what its eight ranks may have posted.

    python examples/seed_v4y/run.py [DIR] [--story late]

Records eight ranks, kills them, keeps the last 10,000 calls of each as the patch behind the
seed did, and diagnoses first those windows, then the whole rings. With DIR the files are kept.
"""

from __future__ import annotations

import argparse
import signal
import subprocess
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path

from rich.console import Console
from rich.table import Table

from ncclscope import Verdict, diagnose, open_run
from ncclscope.readers.jsonl import write_trace
from ncclscope.render.console import print_verdict
from ncclscope.wording.names import shape_text

KEPT = 10_000
"""Calls that the patch behind the seed kept of each rank."""


def record(directory: Path, story: str) -> Path:
    """Run the program until it is killed; return where its rings are."""
    rings = directory / "rings"
    engine = Path(__file__).with_name("engine.py")
    ended = subprocess.run([sys.executable, engine, rings, story], check=False)
    if ended.returncode != -signal.SIGKILL:
        raise SystemExit(f"{engine.name} ended with status {ended.returncode}")
    return rings


def keep_windows(rings: Path, directory: Path) -> Path:
    """Write the last calls of each rank; return where."""
    windows = directory / "windows"
    windows.mkdir()
    for rank in open_run(rings).ranks:
        write_trace(rank, windows / f"{rank.host}-{rank.pid}.jsonl", last=KEPT)
    return windows


def side_by_side(windows: Verdict, rings: Verdict) -> Table:
    """Return what the windows count beside what was called, in the seed's columns."""
    table = Table(title=f"last {KEPT:,} calls, and all calls", title_justify="left")
    for heading in ("host", "pid", "TP rank"):
        table.add_column(heading, justify="left" if heading == "host" else "right")
    for heading in ("DP ws=2", "all", "TP ws=4", "all"):
        table.add_column(heading, justify="right")
    table.add_column("TP last call")
    pairs = zip(windows.table, rings.table, strict=True)
    for kept, called in sorted(pairs, key=lambda pair: pair[0].rank.pid):
        rank = kept.rank
        cells = [kept.cells["dp:0"], called.cells["dp:0"], kept.cells["tp:0"], called.cells["tp:0"]]
        last = kept.cells["tp:0"].last
        table.add_row(
            rank.host,
            str(rank.pid),
            rank.labels["tp"],
            *(str(cell.calls) for cell in cells),
            f"{last.op} {shape_text(last.shape)}" if last else "",
        )
    return table


def main() -> None:
    """Record, cut and print three screens."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("directory", nargs="?", type=Path, help="keep the files here")
    parser.add_argument(
        "--story",
        default="diverged",
        choices=("diverged", "late"),
        help="late: the same counts in the windows, and no divergence (default: diverged)",
    )
    arguments = parser.parse_args()
    console = Console(highlight=False, emoji=False, markup=False)
    with ExitStack() as stack:
        directory = arguments.directory
        if directory is None:
            directory = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        rings = record(directory, arguments.story)
        verdicts = []
        for path in (keep_windows(rings, directory), rings):
            console.print(f"$ ncclscope diagnose {path}", style="bold")
            verdicts.append(diagnose(open_run(path)))
            print_verdict(verdicts[-1], console)
            console.print()
        console.print(side_by_side(*verdicts))


if __name__ == "__main__":
    main()
