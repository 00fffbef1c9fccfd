"""``python -m tests.fuzz --count 10000``: damage inputs at random, and ask for a verdict on each.

One file of a healthy job, or of one that hung, is changed: bits and bytes, cuts, copies of other
parts, numbers of special size. Each must be answered within its budget of time and memory, or be
refused in one line. In rings of a healthy job no rank may be named; of one that hung the answer
may not be OK while all seems to be recorded. A seed gives the same inputs again.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from tests.fuzz.judge import FAILURES, judge
from tests.fuzz.mutation import mutate
from tests.fuzz.specimens import make_specimens


def main() -> int:
    """Return 1 when an input was answered as it must not be."""
    parser = argparse.ArgumentParser(prog="tests.fuzz", description=__doc__)
    parser.add_argument("--count", type=int, default=1000, help="inputs (default: 1000)")
    parser.add_argument("--seed", type=int, default=0, help="of the first (default: 0)")
    parser.add_argument("--only", default="", metavar="FORMAT", help="rings, jsonl or dumps")
    parser.add_argument("--minutes", type=float, default=0, help="stop after so many")
    parser.add_argument("--keep", type=Path, metavar="DIR", help="where inputs go that fail")
    options = parser.parse_args()
    begun, counts, failed = time.monotonic(), Counter[str](), 0
    with tempfile.TemporaryDirectory(prefix="ncclscope-fuzz-", dir=_memory()) as folder:
        home = Path(folder)
        specimens = [
            one for one in make_specimens(home / "specimens") if options.only in ("", one.format)
        ]
        for seed in range(options.seed, options.seed + options.count):
            if options.minutes and time.monotonic() - begun > 60 * options.minutes:
                break
            specimen = specimens[seed % len(specimens)]
            with mutate(specimen, seed, home / "input") as (directory, change):
                answer = judge(specimen, directory)
                counts[f"{specimen.format}: {answer.kind}"] += 1
                if answer.kind not in FAILURES:
                    continue
                failed += 1
                print(f"seed {seed}, {specimen.name}, {change}: {answer.kind}: {answer.text}")
                if options.keep is not None:
                    directory.rename(options.keep / f"{seed}-{specimen.name}")
    seconds = time.monotonic() - begun
    for name, count in sorted(counts.items()):
        print(f"{name}: {count}")
    print(f"{sum(counts.values())} inputs in {seconds:.0f} s, {failed} failed")
    return int(failed > 0)


def _memory() -> str | None:
    return "/dev/shm" if os.path.isdir("/dev/shm") else None


if __name__ == "__main__":
    sys.exit(main())
