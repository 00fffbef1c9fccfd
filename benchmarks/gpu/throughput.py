"""Throughput of one vLLM deployment in several variants: ``python -m benchmarks.gpu.throughput``.

All variants are up at once on the same devices and one at a time is loaded, in an order that
changes from round to round: what the machine does besides meets all of them alike. Ratios are
of one round; shown are their medians and their extremes. ``again`` is ``stock`` once more: what
these two differ by is what cannot be measured. Tracing is on in the variants whose names say so;
at the end their rings are diagnosed.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import statistics
import sys
import tempfile
import time
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from ncclscope_patches.routed_experts import RoutedExperts, decode_choice
from tests.gpu.deployment import Shape, add_options, in_shared_memory, on_gpus, options
from tests.integration.traced_server import TracedServer
from tests.integration.vllm_server import VllmServer

VARIANTS = {
    "stock": {},
    "again": {},
    "fixed": {"NCCLSCOPE_VLLM_DISPATCH": "fixed"},
    "checked": {"NCCLSCOPE_VLLM_DISPATCH": "checked"},
    "traced": {},
    "traced progress": {"NCCLSCOPE_DEVICE_PROGRESS": "1"},
    "traced fixed": {"NCCLSCOPE_VLLM_DISPATCH": "fixed"},
    "offered": {"NCCLSCOPE_VLLM_ROUTED_EXPERTS": "1"},
    "routed": {"NCCLSCOPE_VLLM_ROUTED_EXPERTS": "1"},
    "own": {},
}
ASKED = {"vllm_xargs": {"return_routed_experts": True, "routed_experts_encoding": "compact"}}
"""Options of requests in the variant ``routed``; in ``offered`` no request asks."""
OWN = ["--enable-return-routed-experts"]
"""vLLM's own way in the variant ``own``: every answer has its routing, whoever asked."""
ROUTED = ("routed", "own")
ALONE = [[1, 2, 3, 4, 5], [7, 300, 12], list(range(20, 90)), [9] * 17]
"""Prompts that are served one after the other: batches, and with them roundings, are the same."""

BETWEEN_STARTS = 15.0
"""Seconds from the start of one server to that of the next."""

Request = tuple[list[int], int]


@dataclass
class Variant:
    """One server, and what was measured of it.

    Attributes:
        name: Which.
        server: Its server.
        traced: The same with its rings, where it is traced.
        replicas: How many there are.
        tokens: Per second, one number a round.
        latency: Seconds a token of a request took, the median of each round.
        alone: What it answered to the prompts that were served one by one.
        routing: The experts that its answers list for them.
    """

    name: str
    server: VllmServer
    traced: TracedServer | None
    replicas: int
    tokens: list[float] = field(default_factory=list)
    latency: list[float] = field(default_factory=list)
    alone: list[list[int]] = field(default_factory=list)
    routing: list[RoutedExperts | None] = field(default_factory=list)

    @property
    def asked(self) -> dict[str, Any]:
        """Additional options of its requests."""
        return ASKED if self.name == "routed" else {}

    def load(self, requests: Sequence[Request], concurrency: int) -> None:
        """Serve requests, a given number at a time, and note how long it took."""

        def serve(number: int) -> tuple[int, float]:
            prompt, count = requests[number]
            # Not where vLLM's balancing would send it, which is not the same twice.
            replica = number % self.replicas if self.replicas > 1 else None
            started = time.perf_counter()
            choice = self.server.choice(prompt, count, 120, replica=replica, **self.asked)
            if self.name in ROUTED and not choice["routed_experts"]:
                raise RuntimeError("an answer has no routed experts")
            return len(choice["token_ids"]), time.perf_counter() - started

        started = time.perf_counter()
        with ThreadPoolExecutor(concurrency) as pool:
            served = list(pool.map(serve, range(len(requests))))
        seconds = time.perf_counter() - started
        self.tokens.append(sum(count for count, _ in served) / seconds)
        self.latency.append(statistics.median(took / count for count, took in served))

    def serve_alone(self) -> None:
        """Serve requests one by one, and keep what was answered."""
        choices = [self.server.choice(prompt, 32, 120, **self.asked) for prompt in ALONE]
        self.alone = [choice["token_ids"] for choice in choices]
        self.routing = [decode_choice(choice) for choice in choices]

    def same_routing(self, other: Variant) -> bool:
        """Return whether both used the same experts for every token, and none is missing."""
        return all(
            one is not None
            and two is not None
            and not one.missing.any()
            and not two.missing.any()
            and np.array_equal(one.ids, two.ids)
            for one, two in zip(self.routing, other.routing, strict=True)
        )


ANSWERS = (128, 256, 512) if on_gpus() else (8, 32, 64)
"""How many tokens are generated for a request by default."""
LENGTHS = (3, 17)
"""Tokens of a prompt: few enough that a step that begins requests is a captured graph as well."""


def requests(seed: int, answers: Sequence[int] = ANSWERS) -> Iterator[Request]:
    """Yield short prompts, each with a number of tokens to generate."""
    draw = random.Random(seed)
    while True:
        prompt = [draw.randrange(3, 500) for _ in range(draw.choice(LENGTHS))]
        yield prompt, draw.choice(answers)


def make_variant(name: str, directory: Path, rings: Path, *, shape: Shape, **how: Any) -> Variant:
    """Make a server that is not yet started."""
    directory.mkdir()
    given = options(shape=shape, environment=VARIANTS[name], **how)
    if name == "own":
        given["arguments"] = [*given["arguments"], *OWN]
    if name.startswith("traced"):
        traced = TracedServer(directory, rings=rings / directory.name, **given)
        return Variant(name, traced.server, traced, shape[1])
    return Variant(name, VllmServer(directory, **given), None, shape[1])


def start(variant: Variant, number: int) -> bool:
    """Start a server, some time after the one before: engines look for free ports and may meet.

    Returns:
        Whether it serves. The others are measured without it.
    """
    time.sleep(number * BETWEEN_STARTS)
    try:
        variant.server.start(timeout=420)
    except (RuntimeError, TimeoutError) as error:
        print(f"{variant.name} does not serve: {error}", file=sys.stderr, flush=True)
        return False
    return True


def measure(
    variants: Sequence[Variant],
    rounds: int,
    count: int,
    concurrency: int,
    seconds: float,
    answers: Sequence[int],
) -> None:
    """Warm all up, ask all the same one by one, then load each once a round.

    Args:
        variants: What is measured.
        rounds: How often.
        count: Requests of a load.
        concurrency: Requests at a time.
        seconds: After which no further round begins; whole ones are kept.
        answers: How many tokens are generated for a request.
    """
    for variant in variants:
        for seed in range(2):
            variant.load(list(islice(requests(seed, answers), count)), concurrency)
        variant.tokens.clear()
        variant.latency.clear()
        variant.serve_alone()
    order = list(variants)
    end = time.monotonic() + seconds
    for number in range(rounds):
        if number and time.monotonic() > end:
            break
        given = list(islice(requests(100 + number, answers), count))
        for variant in order if number % 2 else reversed(order):
            variant.load(given, concurrency)
        order = order[1:] + order[:1]
        base = variants[0].tokens
        so_far = [
            f"{variant.name} x{statistics.median(ratios(variant.tokens, base)):.4f}"
            for variant in variants[1:]
        ]
        # A lent host may be gone before the end.
        print(f"round {number + 1} of {rounds}: {', '.join(so_far)}", file=sys.stderr, flush=True)


def report(variants: Sequence[Variant]) -> dict[str, Any]:
    """Return the figures to keep, and print them."""
    base = variants[0]
    rows = []
    for variant in variants:
        row: dict[str, Any] = {
            "variant": variant.name,
            "tokens_per_second": spread(variant.tokens),
            "each_round": [round(value, 1) for value in variant.tokens],
            "ratio": spread(ratios(variant.tokens, base.tokens)),
            "milliseconds_per_token": spread(1e3 * each for each in variant.latency),
            "same_tokens": variant.alone == base.alone,
        }
        if variant.name in ROUTED:
            first = next(each for each in variants if each.name in ROUTED)
            row["same_routing"] = variant.same_routing(first)
            row["routing"] = [
                (
                    each.ids.shape,
                    int(each.missing.sum()),
                    zlib.crc32(each.ids.astype("<i4").tobytes()),
                )
                for each in variant.routing
                if each is not None
            ]
        if variant.traced is not None:
            document = variant.traced.diagnose()[1]
            row["diagnose"] = document["status"]
            if "progress" in variant.name:
                row["counted"], row["notes"] = counted(document), document["notes"]
        rows.append(row)
        low, middle, high = row["ratio"]
        print(
            f"{variant.name:14} {row['tokens_per_second'][1]:8.0f} tokens/s  "
            f"x{middle:.4f} ({low:.4f} to {high:.4f})  "
            f"{row['milliseconds_per_token'][1]:7.2f} ms a token  "
            f"{'same tokens' if row['same_tokens'] else 'OTHER TOKENS'}  "
            f"{'' if row.get('same_routing', True) else 'OTHER EXPERTS  '}"
            f"{row.get('diagnose', '')}"
        )
    return {"against": base.name, "rounds": len(base.tokens), "variants": rows}


def counted(document: Mapping[str, Any]) -> dict[str, dict[str, str]]:
    """Return the GPUs' counts of each communicator, by rank."""
    found: dict[str, dict[str, str]] = {}
    for row in document["table"]:
        for label, comm in row["comms"].items():
            device = comm.get("device")
            counted = "not counted"
            if device is not None:
                counted = device["unknown"] or f"{device['finished']} of {device['posted']}"
            found.setdefault(label, {})[str(row["rank"])] = counted
    return found


def ratios(values: Sequence[float], base: Sequence[float]) -> list[float]:
    """Those of each round."""
    return [value / other for value, other in zip(values, base, strict=True)]


def spread(values: Iterable[float]) -> tuple[float, float, float]:
    """Return the least, the median and the most."""
    found = sorted(values)
    return found[0], statistics.median(found), found[-1]


def main() -> int:
    """Start, measure, print; return 1 where answers or verdicts are not what they should be."""
    parser = argparse.ArgumentParser(
        prog="benchmarks.gpu.throughput",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("variants", nargs="*", default=["stock", "fixed"], metavar="VARIANT")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--requests", type=int, default=400, help="of a round")
    parser.add_argument("--concurrency", type=int, default=32)
    parser.add_argument("--seconds", type=float, default=math.inf, help="of measuring, about")
    parser.add_argument(
        "--answers", type=int, nargs="+", default=ANSWERS, metavar="TOKENS", help="of a request"
    )
    add_options(parser)
    parser.add_argument("--json", type=Path, metavar="FILE")
    arguments = parser.parse_args()
    unknown = [name for name in arguments.variants if name not in VARIANTS]
    if unknown:
        parser.error(f"{unknown[0]!r} is none of: {', '.join(VARIANTS)}")
    how = {
        "shape": arguments.shape,
        "eager": arguments.eager,
        "large": arguments.large,
        "layers": arguments.layers,
        "memory": min(0.3, 0.6 / len(arguments.variants)),
    }
    with (
        tempfile.TemporaryDirectory() as directory,
        in_shared_memory() as rings,
        ExitStack() as running,
    ):
        variants = [
            make_variant(name, Path(directory) / str(number), rings, **how)
            for number, name in enumerate(arguments.variants)
        ]
        for variant in variants:
            running.callback(variant.server.stop)
        with ThreadPoolExecutor() as pool:
            serving = list(pool.map(start, variants, range(len(variants))))
        if not serving[0]:
            return 1  # there is nothing to compare with
        variants = [variant for variant, serves in zip(variants, serving, strict=True) if serves]
        measure(
            variants,
            arguments.rounds,
            arguments.requests,
            arguments.concurrency,
            arguments.seconds,
            arguments.answers,
        )
        found = report(variants) | how | {"eager": arguments.eager or not on_gpus()}
    if arguments.json is not None:
        arguments.json.write_text(json.dumps(found, indent=1) + "\n")
    good = all(serving) and all(
        row["same_tokens"] and row.get("same_routing", True) and row.get("diagnose", "ok") == "ok"
        for row in found["variants"]
    )
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
