"""Measures and prints one table: ``python -m tests.bench [--quick]``."""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

from tests.bench import diagnosis, gloo, rings
from tests.bench.timing import Rounds, Sample

RING_BYTES = 7_200_000
SIZES = (8, 64, 512)


@dataclass(frozen=True)
class Effort:
    """How much is measured.

    Attributes:
        rounds: Of each loop.
        turns: Of each gloo program.
        count: Repetitions in a round of what takes microseconds.
        sizes: Numbers of rings to diagnose.
        repeats: How often each of them is.
    """

    rounds: int
    turns: int
    count: int
    sizes: tuple[int, ...]
    repeats: int


THOROUGH = Effort(rounds=100, turns=300, count=2000, sizes=SIZES, repeats=3)
QUICK = Effort(rounds=40, turns=60, count=500, sizes=SIZES[:2], repeats=1)


def main() -> None:
    """Measures what was asked for, in a directory that is removed afterwards."""
    parser = argparse.ArgumentParser(prog="tests.bench", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="less than half a minute")
    parser.add_argument("--only", choices=("records", "diagnose"), help="one half of it")
    parser.add_argument("--dir", type=Path, help="where to put rings (default: TMPDIR)")
    arguments = parser.parse_args()
    effort = QUICK if arguments.quick else THOROUGH
    table = Table(title="ncclscope on this machine", title_justify="left", box=None)
    table.add_column("")
    for _ in range(3):
        table.add_column("", justify="right", no_wrap=True)
    with tempfile.TemporaryDirectory(prefix="ncclscope-bench-", dir=arguments.dir) as name:
        if arguments.only != "diagnose":
            add_records(table, Path(name), effort)
        if arguments.only != "records":
            add_diagnoses(table, Path(name), effort)
    Console(highlight=False).print(table)


def add_records(table: Table, directory: Path, effort: Effort) -> None:
    """Adds what one call costs the program that makes it."""
    os.environ["NCCLSCOPE_DIR"] = str(directory / "probes")
    os.environ["TORCH_FR_BUFFER_SIZE"] = "0"
    from tests.bench import records  # reads the environment, as torch does

    say("one record")
    found, size = records.measure(directory, rounds=effort.rounds, count=effort.count)
    say("gloo programs")
    together, single = gloo.measure(directory, rounds=effort.turns)

    recorder = together[gloo.RECORDER].over(together[gloo.PLAIN])
    add_header(table, "one record in a hot loop, ns", "least", "median", "of Flight R.")
    for title, sample in found.items():
        add_sample(table, title, sample, recorder)
    add_header(table, "all_reduce of two gloo ranks, ns", "least", "median", "of Flight R.")
    add_program(table, "posted one after the other", together)
    add_program(table, "waited for one by one", single)

    add_header(table, "one call, bytes", "", "", "")
    table.add_row("in a ring, with all its parts", "", f"{size:.0f}", "")
    table.add_row("as a JSON line", "", f"{records.bytes_of_a_line()}", "")


def add_diagnoses(table: Table, directory: Path, effort: Effort) -> None:
    """Adds what a diagnosis of many rings costs."""
    title = f"diagnose, {rings.CAPACITY:,} records a ring"
    add_header(table, title, "seconds", "records a second", "most memory")
    for size in effort.sizes:
        if shutil.disk_usage(directory).free < 2 * size * RING_BYTES:
            table.add_row(f"{size} rings", "no room", "", "")
            continue
        say(f"{size} rings")
        folder = directory / f"rings-{size}"
        count = rings.make_rings(folder, size)
        costs = [diagnosis.measure(folder) for _ in range(effort.repeats)]
        shutil.rmtree(folder)
        for cost in costs:
            if cost.named != (rings.DIVERGING,):
                raise SystemExit(f"{size} rings: the verdict names {cost.named}")
        seconds = min(cost.seconds for cost in costs)
        table.add_row(
            f"{size} rings",
            f"{seconds:.2f}",
            f"{count / seconds:,.0f}",
            f"{max(cost.memory for cost in costs) >> 20} MB",
        )


def add_program(table: Table, title: str, taken: dict[str, Rounds]) -> None:
    """Adds what a call takes, and how much more it takes with each recorder."""
    plain = taken[gloo.PLAIN]
    recorder = taken[gloo.RECORDER].over(plain)
    add_sample(table, title, plain.sample())
    for name in (gloo.RECORDER, gloo.NCCLSCOPE):
        add_sample(table, f"  more with {name}", taken[name].over(plain), recorder)


def add_header(table: Table, *cells: str) -> None:
    """Adds the line above a group of lines."""
    table.add_section()
    table.add_row(*cells, style="bold")


def add_sample(table: Table, title: str, sample: Sample, recorder: Sample | None = None) -> None:
    """Adds a line of nanoseconds, compared with what Flight Recorder adds."""
    beside = f"{sample.least / recorder.least:.2f}" if recorder else ""
    table.add_row(title, f"{sample.least:,.0f}", f"{sample.median:,.0f}", beside)


def say(text: str) -> None:
    """Says what is being measured."""
    print(f"measuring {text} ...", file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
