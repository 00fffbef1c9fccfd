"""What recording costs a training step: ``python -m benchmarks.gpu.ddp_step``.

Eight layers under DistributedDataParallel. Within the same processes a stretch of steps is not
recorded, not recorded again (what measuring makes up by itself), recorded by NCCL's profiler plugin
alone, and by the probes with the plugin, in an order that is drawn each round. DDP posts its
buckets in C++. Shown are milliseconds a step until the device has ended.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.gpu.all_reduce_programs import ON_GPUS, RANKS
from benchmarks.gpu.ddp_training import STRETCH, Steps, train
from benchmarks.gpu.switching import build
from ncclscope import open_run
from ncclscope.launch.processes import run_ranks
from tests.gpu.deployment import in_shared_memory


def row(way: str, taken: Steps, recorded: dict[str, int]) -> dict[str, Any]:
    """Return what a way costs a step, with the 95 % interval of its median."""
    ratios = np.array(taken[way]) / np.array(taken["off"])
    draw = np.random.default_rng(0)
    means = [np.median(draw.choice(ratios, ratios.size)) for _ in range(2000)]
    low, high = np.percentile(means, [2.5, 97.5])
    return {
        "way": way,
        "milliseconds": statistics.median(taken[way]) / 1e6,
        "ratio": float(np.median(ratios)),
        "ratio_95": (float(low), float(high)),
        "calls": recorded[way] // STRETCH,
    }


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="benchmarks.gpu.ddp_step", description=__doc__)
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--width", type=int, default=4096 if ON_GPUS else 128)
    parser.add_argument("--batch", type=int, default=2048 if ON_GPUS else 32)
    parser.add_argument("--json", type=Path, metavar="FILE")
    arguments = parser.parse_args()
    with in_shared_memory() as rings, tempfile.TemporaryDirectory() as folder:
        if ON_GPUS:
            build(Path(folder))
        outcome = run_ranks(
            train, arguments.rounds, arguments.width, arguments.batch,
            ranks=RANKS, rings=rings, backend="nccl" if ON_GPUS else "gloo",
            start_method="spawn", timeout=300.0, stall_after=120.0,
        )  # fmt: skip
        if outcome.ending != "finished":
            print(outcome.ending, *outcome.failures, file=sys.stderr)
            return 1
        calls = sum(log.calls for log in open_run(rings).ranks[0].logs.values())
        print(f"{RANKS} ranks, {calls} calls recorded by rank 0", file=sys.stderr)
    document = [row(way, *outcome.results[0]) for way in outcome.results[0][0]]
    for one in document:
        low, high = one["ratio_95"]
        cost = f"x{one['ratio']:.4f} (95 %: {low:.4f} to {high:.4f})"
        print(f"{one['way']:6} {one['milliseconds']:8.3f} ms {cost}  {one['calls']} calls a step")
    if arguments.json is not None:
        arguments.json.write_text(json.dumps(document, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
