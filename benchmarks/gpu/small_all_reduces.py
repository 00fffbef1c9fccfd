"""Small all-reduces in a loop, like nccl-tests: ``python -m benchmarks.gpu.small_all_reduces``.

Through torch.distributed and, where vLLM is installed, through its pynccl; recorded and not in
turns, within the same processes, and once more with the calls counted by the GPU. Shown are
microseconds a call by the clock, until the device has ended, and of the host alone.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from benchmarks.gpu.all_reduce_programs import ON_GPUS, Times, measure
from ncclscope import open_run
from ncclscope.launch.processes import run_ranks
from tests.gpu.deployment import in_shared_memory

RANKS = min(4, torch.cuda.device_count()) if ON_GPUS else 2
MODES = {"recorded": "", "counted": "1"}


def rows(mode: str, found: dict[str, dict[str, Times]]) -> Iterator[dict[str, Any]]:
    """Yield one row for each library and size."""
    for name, taken in found.items():
        library, size = name.split()
        row: dict[str, Any] = {"library": library, "bytes": int(size), "mode": mode}
        for what, times in taken.items():
            ratios = sorted(on / off for on, off in zip(times["on"], times["off"], strict=True))
            row |= {
                f"{what}_off": statistics.median(times["off"]) / 1e3,
                f"{what}_on": statistics.median(times["on"]) / 1e3,
                f"{what}_ratio": (statistics.median(ratios), ratios[0], ratios[-1]),
            }
        yield row


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="benchmarks.gpu.small_all_reduces", description=__doc__)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--count", type=int, default=200, help="calls a round")
    parser.add_argument("--json", type=Path, metavar="FILE")
    arguments = parser.parse_args()
    document = []
    for mode, progress in MODES.items():
        if progress and not ON_GPUS:
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
        clock, host = ("{:.2f} -> {:.2f} us x{:.3f} ({:.3f}-{:.3f})".format(
            row[f"{what}_off"], row[f"{what}_on"], *row[f"{what}_ratio"]
        ) for what in ("clock", "host"))  # fmt: skip
        print(f"{row['library']:17} {row['bytes']:6} B {row['mode']:8}  {clock}   host {host}")
    if arguments.json is not None:
        arguments.json.write_text(json.dumps(document, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
