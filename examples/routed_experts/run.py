"""Routed experts, the way that hangs and the way that does not: one table of each.

    python examples/routed_experts/run.py                 # minutes
    python examples/routed_experts/run.py --rows baseline old new-all --requests 32

Runs the same load through an engine of several processes again and again, with routed experts
off, by shared memory and a lock file, and with the outputs of the steps; then measures what
they add to the wire.
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
from pathlib import Path
from types import FrameType
from typing import NoReturn

from cluster import ClusterError
from experiments import ROWS, Measured, run_rows
from load import Load
from plan import Plan
from report import answer_table, load_table, remarks, volume_table
from volume import Volume, measure

from ncclscope.errors import UsageError


def parse(arguments: list[str]) -> argparse.Namespace:
    """Read the command line."""
    usual, load = Plan(""), Load()
    names = [row.name for row in ROWS]
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument(
        "--rows",
        nargs="+",
        choices=names,
        default=names,
        metavar="ROW",
        help=f"rows of the table: {', '.join(names)}",
    )
    parser.add_argument("--no-volume", action="store_true", help="leave out the volume table")
    parser.add_argument("--dp", type=int, default=usual.dp, help="replicas")
    parser.add_argument("--tp", type=int, default=usual.tp, help="workers of a replica")
    parser.add_argument("--layers", type=int, default=usual.layers, help="that route tokens")
    parser.add_argument("--blocks", type=int, default=usual.blocks, help="KV blocks of 16 tokens")
    parser.add_argument("--requests", type=int, default=load.requests, help="before the burst")
    parser.add_argument(
        "--concurrency",
        type=int,
        default=load.concurrency,
        help="requests at a time, and of the burst",
    )
    parser.add_argument("--prompt-tokens", type=int, default=load.prompt_tokens)
    parser.add_argument("--max-tokens", type=int, default=load.max_tokens)
    parser.add_argument(
        "--burst-tokens",
        type=int,
        default=load.burst_tokens,
        help="of the prompt of the burst, which ends in one step; 0 for none",
    )
    parser.add_argument(
        "--share",
        type=float,
        default=1.0,
        help="of the requests that opt in according to their row (the old way reads for all)",
    )
    parser.add_argument("--seed", type=int, default=load.seed)
    parser.add_argument(
        "--timeout",
        type=float,
        metavar="SECONDS",
        help="of a collective (default: ten times the baseline's longest)",
    )
    parser.add_argument(
        "--hold-lock",
        type=float,
        default=0.0,
        metavar="SECONDS",
        help="from the first request on, another process has the lock of the first replica",
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all figures there")
    return parser.parse_args(arguments)


def show(title: str, lines: list[str]) -> None:
    """Print a table."""
    print(f"\n{title}")
    for line in lines:
        print(line)
    sys.stdout.flush()


def main(arguments: list[str]) -> int:
    """Run what was asked for; return 1 where something was not as it has to be."""
    given = parse(arguments)
    signal.signal(signal.SIGTERM, end)
    measured: list[Measured] = []
    volumes: list[Volume] = []
    try:
        plan = Plan(
            "",
            dp=given.dp,
            tp=given.tp,
            layers=given.layers,
            blocks=given.blocks,
            running=max(given.concurrency, 1),
        )
        load = Load(
            requests=given.requests,
            concurrency=given.concurrency,
            prompt_tokens=given.prompt_tokens,
            max_tokens=given.max_tokens,
            burst_tokens=given.burst_tokens,
            share=given.share,
            seed=given.seed,
        )
        load.check(plan)
        rows = [row for row in ROWS if row.name in given.rows]
        for one in run_rows(rows, plan, load, given.timeout, given.hold_lock):
            measured.append(one)
            print(f"  {one.throughput:.1f} tokens/s", file=sys.stderr, flush=True)
        if not given.no_volume:
            volumes = measure(Plan("", dp=given.dp, tp=given.tp))
    except (UsageError, ClusterError) as error:
        print(f"{Path(sys.argv[0]).name}: {error}", file=sys.stderr)
        return 2
    print(
        f"{plan.dp} replicas of {plan.tp} workers, gloo, {plan.layers} layers, top-{plan.top_k} of "
        f"{plan.experts} experts;\n{load}"
    )
    show("THE LOAD", load_table(measured))
    show("THE ANSWERS", answer_table(measured))
    show("REMARKS", remarks(measured))
    if volumes:
        show("BYTES", volume_table(volumes))
    if given.json is not None:
        document = {
            "rows": [one.to_dict() for one in measured],
            "volume": [volume.to_dict() for volume in volumes],
        }
        given.json.write_text(json.dumps(document, indent=1) + "\n")
    good = all(one.good for one in measured) and all(volume.good for volume in volumes)
    return 0 if good else 1


def end(number: int, _frame: FrameType | None) -> NoReturn:
    """End as after Ctrl-C: processes and files are removed on the way out."""
    raise SystemExit(128 + number)


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except KeyboardInterrupt:
        raise SystemExit(128 + signal.SIGINT) from None
