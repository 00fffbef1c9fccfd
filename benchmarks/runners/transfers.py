"""Measure the cost of recording KV transfers: ``python -m benchmarks.runners.transfers``.

Needs vLLM and NIXL, as `make test-pairs`. The time in the probe's hooks is compared with that of
the engine's and the worker's steps, in the same process and the same run.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import statistics
import tempfile
from pathlib import Path

from tests.integration.kv_pair import KvPair

DIRECTORY = "NCCLSCOPE_BENCH_TRANSFERS"
"""As in `timed_connector`, which imports vLLM."""
WRAPPER_SECONDS = 0.4e-6
"""Added for each call of a hook: the function around the original, and the clock's own cost."""


def main() -> None:
    """Print the share of the probe in the steps of each process, by windows of requests."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--windows", type=int, default=10)
    parser.add_argument("--requests", type=int, default=20, help="Requests in a window")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="ncclscope-bench-") as folder:
        sums = Path(folder, "sums")
        sums.mkdir()
        os.environ[DIRECTORY] = str(sums)
        root = str(Path(__file__).parents[2])
        os.environ["PYTHONPATH"] = os.pathsep.join(
            filter(None, (root, os.environ.get("PYTHONPATH")))
        )
        transfer = {
            "kv_connector": "NixlTimedConnector",
            "kv_connector_module_path": "benchmarks.runners.timed_connector",
        }
        with KvPair(Path(folder), transfer=transfer) as pair:
            pair.join()
            seen = [_sums(sums)]
            for window in range(arguments.windows):
                for number in range(arguments.requests):
                    first = 10 + (window * arguments.requests + number) % 300
                    prompt = list(range(first, first + 100))
                    pair.decoded(prompt, pair.prefilled(prompt))
                seen.append(_sums(sums))
    _print(seen)


def _sums(directory: Path) -> dict[str, dict[str, float]]:
    """Return the newest sums of each process, by its role and pid."""
    return {
        path.stem: json.loads(path.read_text().splitlines()[-1])
        for path in sorted(directory.glob("*.jsonl"))
    }


def _print(seen: list[dict[str, dict[str, float]]]) -> None:
    print(
        f"{'process':24} {'share of steps':>14} {'windows':>18} {'hooks/step':>10} {'µs/step':>8}"
    )
    for name in seen[0]:
        shares = []
        for before, after in itertools.pairwise(seen):
            grown = {key: after[name][key] - before[name][key] for key in after[name]}
            if grown["steps"]:
                spent = grown["hooks"] + WRAPPER_SECONDS * grown["calls"]
                shares.append(spent / grown["steps"])
        whole = {key: seen[-1][name][key] - seen[0][name][key] for key in seen[-1][name]}
        spread = f"{min(shares):.2%} to {max(shares):.2%}"
        spent = whole["hooks"] + WRAPPER_SECONDS * whole["calls"]
        print(
            f"{name:24} {statistics.median(shares):14.2%} {spread:>18} "
            f"{whole['calls'] / whole['count']:10.1f} {spent / whole['count'] * 1e6:8.1f}"
        )


if __name__ == "__main__":
    main()
