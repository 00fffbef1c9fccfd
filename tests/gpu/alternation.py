"""What something costs a step of vLLM's: ``python -m tests.gpu.alternation WHAT``.

One server does it for some steps and not for the next, over and over, under a steady load: see
tests/gpu/alternating. (``asking`` for routed experts is switched by the load.) What differs
between two servers that are otherwise alike, and it is more than what is looked for here, does
not enter. Steps are compared with steps of as many tokens, each kind by its median, and weighted
by how often it occurs.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import statistics
import sys
import tempfile
import threading
import time
from collections import defaultdict
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

from tests.gpu.deployment import SHAPE, in_shared_memory, on_gpus, options
from tests.gpu.throughput import ASKED, requests
from tests.integration.traced_server import NCCLSCOPE
from tests.integration.vllm_server import VllmServer

PLUGIN = Path(__file__).with_name("alternating")
LEAST = 30
"""Steps with so many tokens, on and off, before their medians are compared."""
STRETCH = 3.0
"""Seconds of load that asks, or does not."""
START_SECONDS = 420.0
PARTS = 20
"""Into which the steps are cut to see how much the result varies."""

Step = tuple[int, int, int]
"""Whether it was on, tokens, nanoseconds."""


def load(server: VllmServer, seconds: float, concurrency: int, *, asks: bool = False) -> int:
    """Serves requests for so long; returns how many tokens were generated."""
    end = threading.Event()
    longest = 300 if on_gpus() else 64
    more = ASKED if asks else {}

    def serve(number: int) -> int:
        tokens = 0
        replica = number % SHAPE[1] if SHAPE[1] > 1 else None
        for prompt, count in requests(number, longest):
            if end.is_set():
                break
            choice = server.choice(prompt, count, 120, replica=replica, **more)
            tokens += len(choice["token_ids"])
        return tokens

    with ThreadPoolExecutor(concurrency) as pool:
        serving = [pool.submit(serve, number) for number in range(concurrency)]
        time.sleep(seconds)
        end.set()
        return sum(each.result() for each in serving)


def load_in_turns(server: VllmServer, seconds: float, concurrency: int) -> int:
    """The same, in stretches in which all requests ask for their routed experts, or none does."""
    end, tokens, asks = time.monotonic() + seconds, 0, False
    while time.monotonic() < end:
        tokens += load(server, STRETCH, concurrency, asks=asks)
        asks = not asks
    return tokens


def compare(steps: Iterable[Step]) -> tuple[float, float] | None:
    """Returns nanoseconds of a step that is off, and of what it costs to be on; None of too few."""
    kinds: dict[int, tuple[list[int], list[int]]] = defaultdict(lambda: ([], []))
    for is_on, tokens, passed in steps:
        kinds[tokens][is_on].append(passed)
    weights, off, more = [], [], []
    for without, with_ in kinds.values():
        if min(len(without), len(with_)) >= LEAST:
            weights.append(len(without) + len(with_))
            off.append(statistics.median(without))
            more.append(statistics.median(with_) - off[-1])
    if not weights:
        return None
    return float(np.average(off, weights=weights)), float(np.average(more, weights=weights))


def report(workers: Sequence[Sequence[Step]]) -> list[dict[str, Any]]:
    """Returns one row a worker, and prints it.

    How sure it is comes from drawing stretches of steps anew, which stay together as they were.
    """
    rows = []
    draw = np.random.default_rng(0)
    for number, steps in enumerate(workers):
        found = compare(steps)
        if found is None:
            print(f"worker {number}: {len(steps)} steps are too few", file=sys.stderr)
            continue
        base, more = found
        cuts = np.array_split(np.arange(len(steps)), PARTS)
        again = []
        for _ in range(200):
            chosen = np.concatenate([cuts[part] for part in draw.integers(0, PARTS, PARTS)])
            drawn = compare(steps[place] for place in chosen)
            if drawn is not None:
                again.append(drawn[1] / drawn[0])
        low, high = np.percentile(again, [2.5, 97.5])
        row = {
            "worker": number,
            "steps": len(steps),
            "step_microseconds": base / 1e3,
            "more_microseconds": more / 1e3,
            "ratio": 1 + more / base,
            "ratio_95": (1 + float(low), 1 + float(high)),
        }
        rows.append(row)
        print(
            f"worker {number}: {len(steps)} steps, off {base / 1e3:.0f} us, "
            f"on {more / 1e3:+.1f} us x{row['ratio']:.4f} (95 %: {1 + low:.4f} to {1 + high:.4f})"
        )
    return rows


def main() -> int:
    """Starts a server, loads it, and compares its steps."""
    parser = argparse.ArgumentParser(
        prog="tests.gpu.alternation",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("what", choices=["tracing", "dispatch", "asking"])
    parser.add_argument("--seconds", type=float, default=60.0, help="of load")
    parser.add_argument("--warm", type=float, default=10.0, help="seconds of load before that")
    parser.add_argument("--concurrency", type=int, default=32 if on_gpus() else 8)
    parser.add_argument("--large", action="store_true", help="a model of a size that is served")
    parser.add_argument("--eager", action="store_true", help="no torch.compile, no CUDA graphs")
    parser.add_argument("--json", type=Path, metavar="FILE")
    arguments = parser.parse_args()
    eager = arguments.eager or arguments.what == "dispatch"
    with tempfile.TemporaryDirectory() as name, in_shared_memory() as rings:
        directory = Path(name)
        found = directory / "steps"
        found.mkdir()
        search = [str(PLUGIN), *filter(None, [os.environ.get("PYTHONPATH")])]
        environment = {
            "NCCLSCOPE_TEST_ALTERNATE": arguments.what,
            "NCCLSCOPE_TEST_ALTERNATE_DIR": str(found),
            "PYTHONPATH": os.pathsep.join(search),
        }
        prefix = []
        if arguments.what == "tracing":
            prefix = [*NCCLSCOPE, "run", "--dir", str(rings), "--"]
        elif arguments.what == "dispatch":
            environment["NCCLSCOPE_VLLM_DISPATCH"] = "fixed"
        else:
            environment["NCCLSCOPE_VLLM_ROUTED_EXPERTS"] = "1"
        given = options(eager=eager, shape=SHAPE, large=arguments.large, environment=environment)
        server = VllmServer(directory, prefix=prefix, **given)
        with contextlib.ExitStack() as running:
            running.callback(server.stop)
            server.start(timeout=START_SECONDS)
            run = load_in_turns if arguments.what == "asking" else load
            run(server, arguments.warm, arguments.concurrency)
            warm = {path: len(json.loads(path.read_text())) for path in found.glob("*.json")}
            tokens = run(server, arguments.seconds, arguments.concurrency)
        workers = [
            [tuple(step) for step in json.loads(path.read_text())[warm.get(path, 0) :]]
            for path in sorted(found.glob("*.json"))
        ]
    how = f"{'eager' if eager else 'default'}{', large' if arguments.large else ''}"
    print(f"{arguments.what}, {how}: {tokens} tokens", file=sys.stderr)
    rows = report(workers)
    if arguments.json is not None:
        document = {
            "what": arguments.what,
            "eager": eager,
            "large": arguments.large,
            "tokens": tokens,
            "workers": rows,
        }
        arguments.json.write_text(json.dumps(document, indent=1) + "\n")
    return 0 if len(rows) == SHAPE[0] * SHAPE[1] else 1


if __name__ == "__main__":
    sys.exit(main())
