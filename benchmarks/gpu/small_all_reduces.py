"""Small all-reduces in a loop, like nccl-tests: ``python -m benchmarks.gpu.small_all_reduces``.

Through torch.distributed and, where vLLM is installed, through its pynccl. Within the same
processes calls are in turns not recorded, not recorded again (what measuring makes up by itself),
recorded by NCCL's profiler plugin alone, and by the probes with the plugin; once more all that with
the calls counted by the GPU. Shown are microseconds a call by the clock, until the device has
ended, and of the host alone.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.gpu.all_reduce_programs import ON_GPUS, RANKS, Times, measure
from benchmarks.gpu.switching import build
from ncclscope import open_run
from ncclscope.launch.processes import run_ranks
from tests.gpu.deployment import in_shared_memory

MODES = {"recorded": "", "counted": "1"}


def rows(mode: str, found: dict[str, dict[str, Times]]) -> Iterator[dict[str, Any]]:
    """Yield one row for each library, size and way: microseconds, and what it adds to ``off``."""
    for name, taken in found.items():
        library, size = name.split()
        for way in taken["host"]:
            if way == "off":
                continue
            row: dict[str, Any] = {"library": library, "bytes": int(size), "mode": mode, "way": way}
            for what, times in taken.items():
                pairs = list(zip(times[way], times["off"], strict=True))
                ratios = sorted(on / off for on, off in pairs)
                row |= {
                    f"{what}_off": statistics.median(times["off"]) / 1e3,
                    f"{what}_on": statistics.median(times[way]) / 1e3,
                    f"{what}_more": statistics.median(on - off for on, off in pairs) / 1e3,
                    f"{what}_ratio": (statistics.median(ratios), ratios[0], ratios[-1]),
                }
            yield row


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="benchmarks.gpu.small_all_reduces", description=__doc__)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--count", type=int, default=200, help="calls a round")
    parser.add_argument("--no-counting", action="store_true", help="no calls counted by the GPU")
    parser.add_argument("--json", type=Path, metavar="FILE")
    arguments = parser.parse_args()
    document = []
    folder = tempfile.TemporaryDirectory()
    if ON_GPUS:
        build(Path(folder.name))
    for mode, progress in MODES.items():
        if progress and (not ON_GPUS or arguments.no_counting):
            continue
        os.environ["NCCLSCOPE_DEVICE_PROGRESS"] = progress
        with in_shared_memory() as rings:
            outcome = run_ranks(
                measure, arguments.rounds, arguments.count,
                ranks=RANKS, rings=rings, backend="nccl" if ON_GPUS else "gloo",
                start_method="spawn", timeout=500.0,
            )  # fmt: skip
            if outcome.ending != "finished":
                print(outcome.ending, *outcome.failures, file=sys.stderr)
                return 1
            calls = sum(log.calls for log in open_run(rings).ranks[0].logs.values())
            print(f"{mode}: {RANKS} ranks, {calls} calls recorded by rank 0", file=sys.stderr)
        document += list(rows(mode, outcome.results[0]))
    for row in document:
        clock, host = ("{:.2f} -> {:.2f} us {:+.2f} x{:.3f} ({:.3f}-{:.3f})".format(
            row[f"{what}_off"], row[f"{what}_on"], row[f"{what}_more"], *row[f"{what}_ratio"]
        ) for what in ("clock", "host"))  # fmt: skip
        label = f"{row['library']:17} {row['bytes']:6} B {row['mode']:8} {row['way']:6}"
        print(f"{label}  {clock}   host {host}")
    if arguments.json is not None:
        arguments.json.write_text(json.dumps(document, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
