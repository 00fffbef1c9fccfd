"""Measures and prints one table: ``python -m benchmarks.runners [--quick]``."""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import statistics
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import NoReturn

from rich.console import Console
from rich.table import Table

from benchmarks.runners import (
    device,
    diagnosis,
    dispatch,
    gloo,
    guard,
    nodes,
    replays,
    rings,
    watching,
)
from benchmarks.runners.timing import Rounds, Sample

RING_BYTES = 7_700_000
RECORD_BYTES = 96
SPARSE_RECORDS = 50_000
"""Those that a sparse ring has at most."""
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
        ranks: Of the jobs whose cost is compared by ranks; the last but one by records, too.
        records: A ring in these; of the jobs that are compared by ranks, the last.
        runs: Jobs that diverge.
        remote: Ranks of the jobs whose rings are examined on their nodes.
        replicated: Those of a job whose nodes say what a few say, with ranks of their own.
    """

    rounds: int
    turns: int
    count: int
    sizes: tuple[int, ...]
    repeats: int
    ranks: tuple[int, ...]
    records: tuple[int, ...]
    runs: int
    remote: tuple[int, ...]
    replicated: int


THOROUGH = Effort(
    rounds=100,
    turns=300,
    count=2000,
    sizes=SIZES,
    repeats=3,
    ranks=(10, 100, 1000),
    records=(10_000, 100_000, 1_000_000),
    runs=20,
    remote=(1024, 8192),
    replicated=100_000,
)
QUICK = Effort(
    rounds=40,
    turns=60,
    count=500,
    sizes=SIZES[:2],
    repeats=1,
    ranks=(10, 20, 40),
    records=(10_000, 20_000, 40_000),
    runs=5,
    remote=(64, 128),
    replicated=1024,
)


def main() -> None:
    """Measure what was asked for, in a directory that is removed afterwards."""
    parser = argparse.ArgumentParser(prog="benchmarks.runners", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="less than half a minute")
    parser.add_argument(
        "--only",
        choices=(
            *("records", "cold", "diagnose", "nodes", "watch", "guard", "dispatch", "latency"),
            *("replay", "device"),
        ),
        help="one part of it",
    )
    parser.add_argument("--dir", type=Path, help="where to put rings (default: TMPDIR)")
    arguments = parser.parse_args()
    effort = QUICK if arguments.quick else THOROUGH
    table = Table(title="ncclscope on this machine", title_justify="left", box=None)
    table.add_column("")
    for _ in range(3):
        table.add_column("", justify="right", no_wrap=True)
    with tempfile.TemporaryDirectory(prefix="ncclscope-bench-", dir=arguments.dir) as name:
        parts = {
            "records": add_records,
            "cold": add_cold,
            "diagnose": add_diagnoses,
            "curves": add_curves,
            "watch": add_polls,
            "guard": add_guard,
            "nodes": add_nodes,
            "dispatch": add_dispatch,
            "replay": add_replays,
            "device": add_device,
            "latency": add_latencies,
        }
        for part, add in parts.items():
            # Twenty jobs take minutes: they are started when they are asked for.
            asked = "diagnose" if part == "curves" else part
            if asked == arguments.only or (arguments.only is None and part != "latency"):
                add(table, Path(name), effort)
    Console(highlight=False).print(table)


def add_records(table: Table, directory: Path, effort: Effort) -> None:
    """Add what one call costs the program that makes it."""
    os.environ["NCCLSCOPE_DIR"] = str(directory / "probes")
    os.environ["TORCH_FR_BUFFER_SIZE"] = "0"
    from benchmarks.runners import records  # reads the environment, as torch does

    say("one record")
    found, size = records.measure(directory, rounds=effort.rounds, count=effort.count)
    say("gloo programs")
    taken = gloo.measure(directory, rounds=effort.turns)

    recorder = taken.together[gloo.RECORDER].over(taken.together[gloo.PLAIN])
    add_header(table, "one record in a hot loop, ns", "least", "median", "of Flight R.")
    for title, sample in found.items():
        add_sample(table, title, sample, recorder)
    add_header(table, "all_reduce of two gloo ranks, ns", "least", "median", "of Flight R.")
    add_program(table, "posted one after the other", taken.together)
    add_program(table, "waited for one by one", taken.single)
    add_program(table, "posted one after the other, with a module of DDP", taken.after)
    add_header(table, "a step of DDP with eight layers, ns", "least", "median", "of Flight R.")
    add_program(table, "forward and backward", taken.step)

    add_header(table, "one call, bytes", "", "", "")
    table.add_row("in a ring, with all its parts", "", f"{size:.0f}", "")
    table.add_row("as a JSON line", "", f"{records.bytes_of_a_line()}", "")


def add_cold(table: Table, directory: Path, effort: Effort) -> None:
    """Add what probes cost a program that has used the caches between its calls."""
    os.environ["NCCLSCOPE_DIR"] = str(directory / "cold")
    os.environ["TORCH_FR_BUFFER_SIZE"] = "0"
    from benchmarks.runners import cold  # reads the environment, as torch does

    say("probes with cold caches")
    add_header(table, "a probe adds, ns, medians", "hot", "cold", "of the call, cold")
    for title, cost in cold.measure(rounds=4 * effort.rounds)[0].items():
        figures = f"{cost.hot:,.0f}", f"{cost.cold:,.0f}", f"{cost.cold / cost.call:.2f}"
        table.add_row(title, *figures)


def add_diagnoses(table: Table, directory: Path, effort: Effort) -> None:
    """Add what a diagnosis of many rings costs."""
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
        check_named(f"{size} rings", costs)
        seconds = min(cost.seconds for cost in costs)
        table.add_row(
            f"{size} rings",
            f"{seconds:.2f}",
            f"{count / seconds:,.0f}",
            f"{max(cost.memory for cost in costs) >> 20} MB",
        )


def add_curves(table: Table, directory: Path, effort: Effort) -> None:
    """Add how the cost grows with the ranks of a job, and with the records of each."""
    title = f"diagnose, {effort.records[-1]:,} records a ring, sparse"
    add_header(table, title, "processor s", "of the one above", "most memory")
    add_curve(table, directory, effort, [(ranks, effort.records[-1]) for ranks in effort.ranks])
    title = f"diagnose, {effort.ranks[-2]:,} rings, sparse"
    add_header(table, title, "processor s", "of the one above", "most memory")
    add_curve(table, directory, effort, [(effort.ranks[-2], count) for count in effort.records])


def add_curve(
    table: Table, directory: Path, effort: Effort, jobs: Sequence[tuple[int, int]]
) -> None:
    """Add jobs by their number of ranks and of records of each."""
    before = 0.0
    for ranks, records in jobs:
        title = f"{ranks:,} x {records:,}"
        size = RECORD_BYTES * (records * (rings.FULL + 4) + ranks * min(records, SPARSE_RECORDS))
        if shutil.disk_usage(directory).free < 2 * size:
            table.add_row(title, "no room", "", "")
            continue
        say(title)
        folder = directory / f"rings-{ranks}-{records}"
        rings.make_rings(folder, ranks, capacity=records, sparse=True)
        costs = [diagnosis.measure(folder) for _ in range(effort.repeats)]
        shutil.rmtree(folder)
        check_named(title, costs)
        seconds = min(cost.processor for cost in costs)
        table.add_row(
            title,
            f"{seconds:.2f}",
            f"x {seconds / before:.1f}" if before else "",
            f"{max(cost.memory for cost in costs) >> 20} MB",
        )
        before = seconds


def check_named(title: str, costs: Sequence[diagnosis.Cost]) -> None:
    """End with a message if a diagnosis does not name the rank that diverged."""
    for cost in costs:
        if cost.named != (rings.DIVERGING,):
            raise SystemExit(f"{title}: the verdict names {cost.named}")


def add_polls(table: Table, directory: Path, effort: Effort) -> None:
    """Add what polls of a living job cost the machine that it runs on, and pictures of them."""
    title = f"watch, {watching.RANKS} ranks"
    add_header(table, title, "us a poll", "median", "of a core, 10 a second")
    for calls in (0, 100, 1000):
        say(f"polls, {calls} calls a rank between two of them")
        folder = directory / f"watch-{calls}"
        taken = watching.samples(folder, calls=calls, rounds=effort.turns)
        shutil.rmtree(folder)
        table.add_row(
            f"{calls * 10:,} calls a second",
            f"{min(taken) * 1e6:,.0f}",
            f"{statistics.median(taken) * 1e6:,.0f}",
            f"{statistics.mean(taken) * 10:.2%}",
        )
    title = "its live view, all ranks move"
    add_header(table, title, "us a picture", "bytes", "of a core, 2 a second")
    for columns, lines in watching.SIZES:
        say(f"pictures of {columns} x {lines}")
        folder = directory / f"pictures-{columns}"
        drawn = watching.pictures(folder, (columns, lines), rounds=effort.turns)
        shutil.rmtree(folder)
        seconds = [one for one, _ in drawn]
        table.add_row(
            f"{columns} x {lines}",
            f"{statistics.median(seconds) * 1e6:,.0f}",
            f"{statistics.median(size for _, size in drawn):,.0f}",
            f"{statistics.mean(seconds) * 2:.2%}",
        )


def add_guard(table: Table, directory: Path, effort: Effort) -> None:
    """Add what it costs to compare each call with those of peers."""
    say("the guard")
    found = guard.measure(directory / "guarded", rounds=effort.rounds, count=500)
    add_header(table, "the guard, on top of a record, ns", "least", "median", "")
    for peers in guard.PEERS:
        add_sample(table, f"{peers} peers on the host", found[peers].over(found[-1]))
    programs = guard.measure_programs(directory, rounds=effort.turns)
    plain = programs[guard.PLAIN].sample()
    heading = "one all_reduce of two gloo ranks by the clock, us"
    add_header(table, heading, "least", "median", "of plain")
    for name, rounds in programs.items():
        sample = rounds.sample()
        least, median = f"{sample.least / 1e3:.1f}", f"{sample.median / 1e3:.1f}"
        table.add_row(name, least, median, f"{sample.median / plain.median:.2f}")


def add_dispatch(table: Table, directory: Path, effort: Effort) -> None:
    """Add what it costs that ranks compare their plans before they dispatch tokens."""
    say("the dispatcher")
    found = dispatch.measure(rounds=effort.rounds, count=20)
    title = f"dispatch and combine of {dispatch.RANKS} gloo ranks by the clock, us"
    add_header(table, title, "least", "median", "of unverified")
    for name, (bare, verified) in found.items():
        plain, sample = bare.sample(), verified.sample()
        for words, one in ((name, plain), (f"  {name}, verified", sample)):
            least, median = f"{one.least / 1e3:,.0f}", f"{one.median / 1e3:,.0f}"
            table.add_row(words, least, median, f"{one.median / plain.median:.2f}")


def add_device(table: Table, directory: Path, effort: Effort) -> None:
    """Add what it costs the host to have calls counted on the device, but for the driver."""
    say("calls that are counted on the device")
    found = device.measure(directory, rounds=effort.rounds, count=effort.count)
    add_header(table, "a call counted on the device, ns", "least", "median", "of a recorded")
    for title, sample in found.items():
        add_sample(table, title, sample, found[device.RECORDED])


def add_replays(table: Table, directory: Path, effort: Effort) -> None:
    """Add what it costs to record that a CUDA graph is replayed."""
    say("replays")
    found = replays.measure(directory, rounds=effort.rounds, count=200)
    one = found.pop(replays.ONE)
    add_header(table, "one replay of a CUDA graph, ns", "least", "median", "of one record")
    for title, sample in found.items():
        add_sample(table, title, sample, one)


def add_latencies(table: Table, directory: Path, effort: Effort) -> None:
    """Add how long a divergence goes unreported."""
    found = []
    for latency in watching.latencies(directory, runs=effort.runs):
        say(f"latency, {len(found) + 1} of {effort.runs}: {latency}")
        found.append(latency)
    title = f"from a diverging post to the report, ms, {len(found)} runs"
    add_header(table, title, "least", "median", "most")
    warned = [latency.guard for latency in found if latency.guard is not None]
    for name, seconds in (
        ("a peer posts at the same place", [latency.known for latency in found]),
        (f"the guard says so ({len(warned)} of {len(found)})", warned),
        ("ncclscope watch says so", [latency.watch for latency in found]),
    ):
        if seconds:
            numbers = (min(seconds), statistics.median(seconds), max(seconds))
            table.add_row(name, *(f"{number * 1e3:,.1f}" for number in numbers))


def add_nodes(table: Table, directory: Path, effort: Effort) -> None:
    """Add what it costs to examine rings where they are, by ranks."""
    add_header(table, f"diagnose --ray, {nodes.PER_NODE} ranks a node", "ranks", "", "")
    for ranks in effort.remote:
        say(f"a diagnosis of {ranks} ranks on their nodes")
        place = directory / f"nodes-{ranks}"
        nodes.make_nodes(place, ranks)
        here = diagnosis.measure(place)
        cost = nodes.measure(place)
        shutil.rmtree(place)
        if here.named != (rings.DIVERGING,):
            raise SystemExit(f"one machine names {here.named}")
        table.add_row("  one machine, all rings, s", f"{ranks:,}", f"{here.seconds:,.2f}", "")
        table.add_row(
            "  a node reduces its rings, ms, usual", f"{ranks:,}", f"{cost.usual * 1e3:,.0f}", ""
        )
        add_node_cost(table, ranks, cost)
    ranks = effort.replicated
    say(f"what the centre of {ranks} ranks does")
    place = directory / "nodes-replicated"
    nodes.make_nodes(place, 2 * nodes.PER_NODE)
    add_node_cost(table, ranks, nodes.measure(place, ranks))
    shutil.rmtree(place)


def add_node_cost(table: Table, ranks: int, cost: nodes.NodeCost) -> None:
    """Add what the centre of one job takes."""
    if cost.named != (rings.DIVERGING,):
        raise SystemExit(f"nodes name {cost.named}")
    for title, number in (
        ("the centre, s", f"{cost.centre:,.2f}"),
        ("the centre, MB more", f"{(cost.memory - cost.before) / 1e6:,.0f}"),
        ("summaries, bytes a rank", f"{cost.summaries / ranks:,.0f}"),
        ("all that travels, bytes a rank", f"{cost.total / ranks:,.0f}"),
        ("times that the centre asks", f"{cost.rounds}"),
    ):
        table.add_row(f"  {title}", f"{ranks:,}", number, "")


def add_program(table: Table, title: str, taken: dict[str, Rounds]) -> None:
    """Add what a call takes, and how much more it takes with each recorder."""
    plain = taken[gloo.PLAIN]
    recorder = taken[gloo.RECORDER].over(plain)
    add_sample(table, title, plain.sample())
    for name in (gloo.RECORDER, gloo.NCCLSCOPE):
        add_sample(table, f"  more with {name}", taken[name].over(plain), recorder)


def add_header(table: Table, *cells: str) -> None:
    """Add the line above a group of lines."""
    table.add_section()
    table.add_row(*cells, style="bold")


def add_sample(table: Table, title: str, sample: Sample, other: Sample | None = None) -> None:
    """Add a line of nanoseconds, compared with what another takes, such as Flight Recorder."""
    beside = f"{sample.least / other.least:.2f}" if other else ""
    table.add_row(title, f"{sample.least:,.0f}", f"{sample.median:,.0f}", beside)


def say(text: str) -> None:
    """Say what is being measured."""
    print(f"measuring {text} ...", file=sys.stderr, flush=True)


def end(number: int, _frame: FrameType | None) -> NoReturn:
    """End as after Ctrl-C: what has been written is removed on the way out."""
    raise SystemExit(128 + number)


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, end)
    try:
        main()
    except KeyboardInterrupt:
        raise SystemExit(128 + signal.SIGINT) from None
