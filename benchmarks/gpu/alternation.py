"""What something costs a step of vLLM's: ``python -m benchmarks.gpu.alternation WHAT``.

One server does it for some steps and not for the next, over and over, under a steady load: see
benchmarks/gpu/alternating. (``asking`` for routed experts is switched by the load.) ``parts`` is
tracing in ways: 1 pynccl's probe alone, 2 NCCL's plugin alone, 3 both, 4 all probes and the plugin.
``progress`` is tracing with the calls counted by the GPU: each CUDA graph is captured once with its
markers and once without. In ``between`` these markers are where the next kernel has to wait for
them, in ``beside`` none has to. What differs between two servers that are otherwise alike, and it
is more than the effect in question, does not enter; what the way of measuring makes up by itself is
what ``nothing`` shows. Steps are compared with steps of as many tokens, each kind by its median,
and weighted by how often it occurs.
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import itertools
import json
import os
import random
import statistics
import sys
import tempfile
import threading
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.gpu.switching import build
from benchmarks.gpu.throughput import ASKED, counted, requests
from tests.gpu.deployment import Shape, add_options, in_shared_memory, on_gpus, options
from tests.integration.traced_server import TracedServer
from tests.integration.vllm_server import VllmServer

PLUGIN = Path(__file__).with_name("alternating")
ROOT = Path(__file__).parents[2]
LEAST = 30
"""Minimum of steps with the same number of tokens, on and off, to compare their medians."""
STRETCH = 3.0
"""Seconds of load that asks, or does not."""
START_SECONDS = 420.0
PARTS = 20
"""Number of parts of the steps, which show how much the result varies."""

TRACED = ("tracing", "parts", "progress", "between", "beside")
"""Experiments that run a server under ``ncclscope run``."""
LONG = ("counted", "coverage", "notes")
"""Fields that are kept and not printed."""

Step = tuple[int, int, int]
"""The way that it was on, 0 for off; tokens, nanoseconds."""


@dataclass(frozen=True)
class Load:
    """What a server is given to do.

    Attributes:
        server: Which.
        replicas: How many it has.
        concurrency: Requests at a time.
        uneven: Whether the first replica serves all of them but one at a time.
    """

    server: VllmServer
    replicas: int
    concurrency: int
    uneven: bool = False

    def run(self, seconds: float, *, asks: bool = False) -> int:
        """Serve requests for so long; return how many tokens were generated."""
        end = threading.Event()
        more = ASKED if asks else {}

        def serve(number: int) -> int:
            tokens = 0
            place = int(number == 0) if self.uneven else number
            replica = place % self.replicas if self.replicas > 1 else None
            for prompt, count in requests(number):
                if end.is_set():
                    break
                choice = self.server.choice(prompt, count, 120, replica=replica, **more)
                tokens += len(choice["token_ids"])
            return tokens

        with ThreadPoolExecutor(self.concurrency) as pool:
            serving = [pool.submit(serve, number) for number in range(self.concurrency)]
            time.sleep(seconds)
            end.set()
            return sum(each.result() for each in serving)

    def run_in_turns(self, seconds: float) -> int:
        """The same, in stretches in which all requests ask for routed experts, or none does."""
        end, tokens, asks = time.monotonic() + seconds, 0, False
        while time.monotonic() < end:
            tokens += self.run(STRETCH, asks=asks)
            asks = not asks
        return tokens


@contextlib.contextmanager
def turn(path: Path | None) -> Iterator[None]:
    """Wait until no other measurement that was given the same file loads its server."""
    if path is None:
        yield
        return
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def compare(steps: Iterable[Step]) -> tuple[float, float] | None:
    """Return nanoseconds of a step that is off, and of what it costs to be on; None of too few."""
    kinds: dict[int, tuple[list[int], list[int]]] = defaultdict(lambda: ([], []))
    for is_on, tokens, passed in steps:
        kinds[tokens][bool(is_on)].append(passed)
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
    """Return one row a worker and way, and print it.

    How sure it is comes from drawing stretches of steps anew, which stay together as they were.
    """
    rows = []
    draw = np.random.default_rng(0)
    ways = max((step[0] for steps in workers for step in steps), default=1)
    for way, (number, own) in itertools.product(range(1, ways + 1), enumerate(workers)):
        steps = [step for step in own if step[0] in (0, way)]
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
            "way": way,
            "steps": len(steps),
            "step_microseconds": base / 1e3,
            "more_microseconds": more / 1e3,
            "ratio": 1 + more / base,
            "ratio_95": (1 + float(low), 1 + float(high)),
        }
        rows.append(row)
        print(
            f"worker {number}, way {way}: {len(steps)} steps, off {base / 1e3:.0f} us, "
            f"on {more / 1e3:+.1f} us x{row['ratio']:.4f} (95 %: {1 + low:.4f} to {1 + high:.4f})"
        )
    return rows


def make_server(
    what: str, directory: Path, rings: Path, *, shape: Shape, second_runner: bool, **how: Any
) -> tuple[VllmServer, TracedServer | None]:
    """Make a server that is not yet started, and where it is traced that which diagnoses it."""
    search = [str(PLUGIN), str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = {
        "NCCLSCOPE_TEST_ALTERNATE": what,
        "NCCLSCOPE_TEST_ALTERNATE_DIR": str(directory / "steps"),
        "NCCLSCOPE_TEST_ALTERNATE_SEED": str(random.randrange(1 << 32)),
        "PYTHONPATH": os.pathsep.join(search),
    }
    environment |= {
        "nothing": {},
        "tracing": {},
        "parts": {},
        "progress": {"NCCLSCOPE_DEVICE_PROGRESS": "1"},
        "between": {"NCCLSCOPE_DEVICE_PROGRESS": "1"},
        "beside": {"NCCLSCOPE_DEVICE_PROGRESS": "1"},
        "dispatch": {"NCCLSCOPE_VLLM_DISPATCH": "fixed"},
        "asking": {"NCCLSCOPE_VLLM_ROUTED_EXPERTS": "1"},
    }[what]
    if second_runner:
        environment["VLLM_USE_V2_MODEL_RUNNER"] = "1"
    given = options(shape=shape, environment=environment, **how)
    if what in TRACED:
        traced = TracedServer(directory, rings=rings, **given)
        return traced.server, traced
    return VllmServer(directory, **given), None


def main() -> int:
    """Start a server, load it, and compare its steps."""
    parser = argparse.ArgumentParser(
        prog="benchmarks.gpu.alternation",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("what", choices=[*TRACED, "dispatch", "asking", "nothing"])
    parser.add_argument("--seconds", type=float, default=60.0, help="of load")
    parser.add_argument("--warm", type=float, default=10.0, help="seconds of load before that")
    parser.add_argument("--concurrency", type=int, default=32 if on_gpus() else 8)
    parser.add_argument("--turn", type=Path, metavar="FILE", help="one at a time of all given it")
    parser.add_argument("--json", type=Path, metavar="FILE")
    parser.add_argument("--second-runner", action="store_true", help="vLLM's Model Runner V2")
    parser.add_argument("--uneven", action="store_true", help="one replica serves nearly all")
    add_options(parser)
    arguments = parser.parse_args()
    how = {
        "second_runner": arguments.second_runner,
        "shape": arguments.shape,
        "eager": arguments.eager or arguments.what == "dispatch",
        "large": arguments.large,
        "layers": arguments.layers,
        "memory": 0.25 if arguments.large else 0.1,
    }
    document: dict[str, Any] = {"what": arguments.what, "uneven": arguments.uneven, **how}
    with tempfile.TemporaryDirectory() as name, in_shared_memory() as rings:
        directory = Path(name)
        found = directory / "steps"
        found.mkdir()
        if arguments.what in ("tracing", "parts") and on_gpus():
            build(directory)
        server, traced = make_server(arguments.what, directory, rings, **how)
        with contextlib.ExitStack() as running:
            running.callback(server.stop)
            server.start(timeout=START_SECONDS)
            load = Load(server, arguments.shape[1], arguments.concurrency, arguments.uneven)
            run = load.run_in_turns if arguments.what == "asking" else load.run
            with turn(arguments.turn):
                run(arguments.warm)
                warm = {path: len(json.loads(path.read_text())) for path in found.glob("*.json")}
                document["tokens"] = run(arguments.seconds)
            if traced is not None:
                diagnosed = traced.diagnose()[1]
                document["diagnose"] = diagnosed["status"]
                document["coverage"] = diagnosed["coverage"]
                if arguments.what not in ("tracing", "parts"):
                    document |= {"counted": counted(diagnosed), "notes": diagnosed["notes"]}
        workers = [
            [tuple(step) for step in json.loads(path.read_text())[warm.get(path, 0) :]]
            for path in sorted(found.glob("*.json"))
        ]
    output = ", ".join(f"{name} {value}" for name, value in document.items() if name not in LONG)
    print(output, file=sys.stderr)
    document["workers"] = rows = report(workers)
    if arguments.json is not None:
        arguments.json.write_text(json.dumps(document, indent=1) + "\n")
    measured = {row["worker"] for row in rows}
    return 0 if len(measured) == arguments.shape[0] * arguments.shape[1] else 1


if __name__ == "__main__":
    sys.exit(main())
