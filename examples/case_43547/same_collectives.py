"""Claim (a): the dispatcher posts the same calls whatever is routed where.

    python examples/case_43547/same_collectives.py [DIR] [--steps 10000]

Four ranks (TP=2, DP=2, expert parallel) go through steps of lopsided routing with vLLM's own
AgRsAll2AllManager. Their sequences are compared call by call, those that have been overwritten by
their running hashes. Then one rank is given a wrong size, to show that the comparison can fail.
Needs the environment of `make test-vllm`. With DIR the rings are kept.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from branches import branches, methods
from rich.console import Console
from rich.table import Table
from shell import ENVIRONMENT, NCCLSCOPE, need_vllm, parser_of, place, say, show, timed

from ncclscope import diagnose, open_run
from ncclscope.model import Run

RANKS_PROGRAM = Path(__file__).with_name("dispatch_ranks.py")
ALL2ALL = "vllm.distributed.device_communicators.all2all"
MANAGER = "AgRsAll2AllManager"

WRONG_RANK = 1
WRONG_STEP = 33
"""A step whose batches are equal, so that the wrong size makes an all_gather an all_gatherv."""
END_SECONDS = 240.0
"""For what takes ten seconds on an idle machine."""


def start(rings: Path, *options: object) -> subprocess.Popen[bytes]:
    """Start the four ranks under tracing, in a session of their own."""
    program = [sys.executable, str(RANKS_PROGRAM), *map(str, options)]
    with (rings.parent / f"{rings.name}.log").open("wb") as log:
        return subprocess.Popen(
            [*NCCLSCOPE, "run", "--dir", str(rings), "--", *program],
            env=os.environ | ENVIRONMENT,
            stderr=log,
            start_new_session=True,
        )


def hashes(run: Run) -> Table:
    """Return the number of calls and their running hash, by rank and communicator."""
    table = Table(title="calls, and the hash of all of them in order", title_justify="left")
    labels = sorted({run.communicators[key].label for rank in run.ranks for key in rank.logs})
    labels = [label for label in labels if label in ("tp:0", "dp:0", "dp:0/cpu", "ep:0")]
    table.add_column("rank", justify="right")
    table.add_column("overwritten", justify="right")
    for label in labels:
        table.add_column(label, justify="right")
    for rank in run.ranks:
        by_label = {run.communicators[key].label: log for key, log in rank.logs.items()}
        cells = [
            f"{log.calls:,} {log.fingerprint(log.calls):016x}"
            for log in (by_label[label] for label in labels)
        ]
        table.add_row(str(rank.rank), f"{rank.lost:,}", *cells)
    return table


def list_branches() -> None:
    """Print every condition in vLLM's dispatcher."""
    say(f"Every condition in {MANAGER} ({ALL2ALL.replace('.', '/')}.py):")
    for method in methods(ALL2ALL, MANAGER):
        for line, condition in branches(method):
            say(f"  {line:4}  {method.name:24} if {condition}")
    say()


def agree(directory: Path, steps: int) -> bool:
    """Run the lopsided steps and compares; return whether nothing differs."""
    rings = directory / "rings"
    timed(f"{steps:,} steps of lopsided routing")
    if start(rings, "--steps", steps).wait():
        log = (directory / "rings.log").read_text()
        raise SystemExit(f"the ranks did not come to their end:\n{log}")
    timed("done\n")
    agreed = show("check", rings) == 0
    run = open_run(rings)
    Console(highlight=False, width=130).print(hashes(run))
    say()
    for one, other in ((0, 1), (2, 3)):  # TP peers
        paths = [run.by_rank[rank].source for rank in (one, other)]
        agreed &= show("diff", *paths) == 0
    return agreed


def wait_until_all_wait(rings: Path) -> None:
    """Wait until all ranks have come to the call in which the first of them was seen to differ."""
    deadline = time.monotonic() + END_SECONDS
    while time.monotonic() < deadline:
        verdict = diagnose(open_run(rings))
        cause = verdict.cause
        if cause is not None and cause.comm is not None and cause.seq is not None:
            logs = [rank.logs[cause.comm.key] for rank in verdict.run.members(cause.comm.key)]
            if len(logs) == len(cause.comm.ranks) and all(log.calls >= cause.seq for log in logs):
                return
        time.sleep(0.1)


def caught(directory: Path) -> bool:
    """Let one rank take a wrong size; return whether the same comparison names it."""
    rings = directory / "wrong-size"
    timed(f"the same, but in step {WRONG_STEP} rank {WRONG_RANK} has a size of its own")
    program = start(rings, "--steps", WRONG_STEP + 10, "--wrong-step", WRONG_STEP)
    try:
        deadline = time.monotonic() + END_SECONDS
        while not list(rings.glob("*.ring")):
            if program.poll() is not None or time.monotonic() > deadline:
                log = (directory / "wrong-size.log").read_text()
                raise SystemExit(f"the ranks did not start:\n{log}")
            time.sleep(0.1)
        watch = [*NCCLSCOPE, "watch", str(rings), "--until-divergence", "--json"]
        try:
            subprocess.run(watch, stdout=subprocess.DEVNULL, timeout=END_SECONDS, check=False)
            timed("`ncclscope watch --until-divergence` has seen it; the ranks are killed\n")
        except subprocess.TimeoutExpired:
            timed("`ncclscope watch --until-divergence` has seen nothing; the ranks are killed\n")
        wait_until_all_wait(rings)
        # The ranks alone: who started them removes what they leave in shared memory.
        for rank in open_run(rings).ranks:
            if rank.alive:
                os.kill(rank.pid, signal.SIGKILL)
        program.wait(END_SECONDS)
    finally:
        if program.poll() is None:
            os.killpg(program.pid, signal.SIGKILL)
            program.wait()
    status = show("check", rings)
    cause = diagnose(open_run(rings)).cause
    return status == 1 and cause is not None and cause.diverging_ranks == (WRONG_RANK,)


def main() -> int:
    """Show that the sequences agree, and that they would be seen to differ."""
    parser = parser_of(__doc__)
    parser.add_argument("--steps", type=int, default=10_000, help="default: 10000")
    arguments = parser.parse_args()
    need_vllm()
    with place(arguments.directory) as directory:
        list_branches()
        agreed = agree(directory, arguments.steps)
        noticed = caught(directory)
    say(f"TP peers posted the same calls: {'yes' if agreed else 'NO'}")
    say(f"a wrong size is caught and its rank named: {'yes' if noticed else 'NO'}")
    return 0 if agreed and noticed else 1


if __name__ == "__main__":
    sys.exit(main())
