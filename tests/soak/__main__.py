"""Prints steps, hashes and verdicts: ``python -m tests.soak [--steps N] [--trials N]``."""

from __future__ import annotations

import argparse
import os
import signal
import sys
from collections import defaultdict
from types import FrameType
from typing import NoReturn

from ncclscope_patches.moe_dispatch import STRATEGIES
from tests.soak.routing import KINDS
from tests.soak.trials import Caught, Soaked, catch, make_plan, soak

BUGGY = "data_dependent"


def main() -> int:
    """Run what was asked for; return 1 where something was not as it should be."""
    parser = argparse.ArgumentParser(prog="tests.soak", description=__doc__)
    parser.add_argument("--steps", type=int, default=100_000, help="of each strategy")
    parser.add_argument(
        "--trials", type=int, default=5, help="times that the buggy reference is caught"
    )
    parser.add_argument("--strategy", choices=STRATEGIES, nargs="+", default=list(STRATEGIES))
    parser.add_argument("--tp", type=int, default=4, help="ranks of a replica")
    parser.add_argument("--dp", type=int, default=2, help="replicas")
    parser.add_argument("--layers", type=int, default=1)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--sequence-parallel", action="store_true", help="each rank of a replica has its own rows"
    )
    arguments = parser.parse_args()
    given = {
        name: getattr(arguments, name)
        for name in ("tp", "dp", "layers", "seed", "sequence_parallel")
    }
    print(
        f"{arguments.tp * arguments.dp} ranks, tp={arguments.tp} dp={arguments.dp}, "
        f"{'own rows on each rank' if arguments.sequence_parallel else 'rows of the replica'}, "
        f"gloo, {arguments.layers} layers a step; steps are {', '.join(KINDS)}"
    )
    good = True
    terminal = os.dup(2)
    for strategy in arguments.strategy:
        if strategy == BUGGY:
            continue
        print(f"{strategy}, {arguments.steps:,} steps ...", file=sys.stderr, flush=True)
        soaked = soak(make_plan(strategy, count=arguments.steps, **given), terminal=terminal)
        show_soaked(strategy, arguments.steps, soaked)
        good &= soaked.passed
    if BUGGY in arguments.strategy:
        for trial in range(arguments.trials):
            plan = make_plan(BUGGY, count=300, **{**given, "seed": given["seed"] + trial})
            caught = catch(plan)
            show_caught(caught)
            good &= caught.passed
    return 0 if good else 1


def show_soaked(strategy: str, count: int, soaked: Soaked) -> None:
    """Print one soak: a line for each kind of communicator."""
    ran = soaked.outcome
    print(
        f"\n{strategy}: {count:,} steps, {ran.ending} after {ran.seconds:.0f} s, "
        f"{soaked.wrong} wrong results, verdict {soaked.status}: "
        f"{'PASSED' if soaked.passed else 'FAILED'}"
    )
    for failure in ran.failures:
        print(f"  rank {failure.rank}: {failure.error}")
    lines = defaultdict(list)
    for one in soaked.sequences:
        for rank, calls, digest in zip(one.ranks, one.calls, one.hashes, strict=True):
            lines[one.label, one.ranks, calls, digest].append(rank)
    for (label, members, calls, digest), ranks in lines.items():
        of = f"{len(ranks)} of {len(members)} members"
        print(f"  {label:24} {calls:>10,} calls  {digest:016x}  {of}: {' '.join(map(str, ranks))}")
    sys.stdout.flush()


def show_caught(caught: Caught) -> None:
    """Print one run of the buggy reference."""
    cause = caught.found.verdict.cause
    print(
        f"\n{BUGGY}, seed {caught.plan.program.seed}: ranks diverge in step {caught.step}, "
        f"tokens by rank {caught.loads}; {caught.ending}, found in step {caught.found.step}, "
        f"names {' '.join(map(str, caught.named)) or 'nobody'}: "
        f"{'PASSED' if caught.passed else 'FAILED'}"
    )
    if cause is not None:
        print(f"  {caught.found.verdict.status}, {cause.kind}, {cause.confidence}: {cause.summary}")
    sys.stdout.flush()


def end(number: int, _frame: FrameType | None) -> NoReturn:
    """End as after Ctrl-C: ranks and ring are removed on the way out."""
    raise SystemExit(128 + number)


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, end)
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        raise SystemExit(128 + signal.SIGINT) from None
