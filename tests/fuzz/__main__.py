"""``python -m tests.fuzz --count 10000``: damage inputs at random, and ask for an answer to each.

A file of a small job, a stream, a message or another program's output is changed: bits and bytes,
cuts, copies, numbers of special size, other types and depths. Each must be answered within its
budget of time and memory, or be refused in one line. In rings of a healthy job no rank may be
named and no call be shown that was not made; of a job that hung the answer may not be OK while all
seems to be recorded. A surface and a seed give the same input again.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

from tests.fuzz.corpus import add_kept, keep
from tests.fuzz.inputs import Answer, Surface
from tests.fuzz.judges import Block, Judges, blocks
from tests.fuzz.surfaces import make_surfaces

BLOCK = 200


def main() -> int:
    """Return 1 when an input was answered as it must not be."""
    parser = argparse.ArgumentParser(prog="tests.fuzz", description=__doc__)
    parser.add_argument("--count", type=int, default=1000, help="inputs (default: 1000)")
    parser.add_argument("--seed", type=int, default=0, help="the first seed (default: 0)")
    parser.add_argument(
        "--only", default="", metavar="SURFACES", help="surfaces, with commas between them"
    )
    parser.add_argument(
        "--minutes",
        type=float,
        default=0,
        help="stop after MINUTES (default: 0, never)",
        metavar="MINUTES",
    )
    parser.add_argument("--keep", type=Path, metavar="DIR", help="where inputs go that fail")
    parser.add_argument("--again", action="store_true", help="judge each input alone")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="ncclscope-fuzz-", dir=_memory()) as folder:
        surfaces = make_surfaces(Path(folder))
        add_kept(surfaces)
        names = [name for name in options.only.split(",") if name] or list(surfaces)
        if unknown := set(names) - surfaces.keys():
            parser.error(f"no surface {', '.join(unknown)}; there are {', '.join(surfaces)}")
        return _run({name: surfaces[name] for name in names}, options)


def _run(surfaces: Mapping[str, Surface], options: argparse.Namespace) -> int:
    began = time.monotonic()
    judges = Judges(surfaces)
    counts: dict[str, Counter[str]] = {name: Counter() for name in surfaces}
    seconds: Counter[str] = Counter()
    failed = 0
    reported = began
    kept = [
        Block(name, tuple(range(-len(surface.kept), 0)))
        for name, surface in surfaces.items()
        if surface.kept
    ]
    made = blocks(surfaces, options.seed, options.count, 1 if options.again else BLOCK)
    for block in (*kept, *made):
        result = judges.judge(block)
        counts[block.surface] += result.counts
        seconds[block.surface] += result.seconds  # type: ignore[assignment]
        for seed, answer in result.failures.items():
            failed += 1
            _report(surfaces[block.surface], seed, answer, options.keep)
        now = time.monotonic()
        if now - reported > 60:
            reported = now
            _print_rate(counts, now - began, failed)
        if options.minutes and now - began > 60 * options.minutes:
            break
    judges.close()
    for name, found in counts.items():
        kinds = ", ".join(f"{kind} {count}" for kind, count in found.most_common())
        rate = sum(found.values()) / max(seconds[name], 1e-9)
        print(f"{name}: {sum(found.values())} inputs, {rate:.0f} a second: {kinds}")
    _print_rate(counts, time.monotonic() - began, failed, sum(seconds.values()))
    return int(failed > 0)


def _report(surface: Surface, seed: int, answer: Answer, folder: Path | None) -> None:
    given = surface.make(seed)
    print(
        f"{surface.name} seed {seed}, {given.base.name}, {given.change}: "
        f"{answer.kind}: {answer.text}",
        flush=True,
    )
    if folder is not None:
        keep(given, surface.name, folder / f"{surface.name}-{seed}.tar.gz", answer.text)


def _print_rate(
    counts: Mapping[str, Counter[str]], wall: float, failed: int, used: float | None = None
) -> None:
    inputs = sum(sum(found.values()) for found in counts.values())
    more = "" if used is None else f", {used:.0f} s of processor time, {inputs / used:.0f} a second"
    where = sys.stderr if used is None else sys.stdout
    print(f"{inputs} inputs in {wall:.0f} s{more}, {failed} failed", file=where, flush=True)


def _memory() -> str | None:
    return "/dev/shm" if os.path.isdir("/dev/shm") else None


if __name__ == "__main__":
    sys.exit(main())
