"""torch's Flight Recorder, and ncclscope beside it, on one gloo program of two ranks.

The recorder can only be switched when a process starts. The program is therefore started once
for each variant, and its ranks run when it is their turn while the others sleep.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import NamedTuple

from benchmarks.runners.timing import Rounds
from ncclscope.readers import open_run

__all__ = ["NCCLSCOPE", "PLAIN", "RECORDER", "Taken", "measure", "started", "turns"]

PLAIN, RECORDER, NCCLSCOPE = "plain", "Flight Recorder", "ncclscope"
RANKS = 2

Ranks = list[subprocess.Popen[str]]


class Taken(NamedTuple):
    """Nanoseconds of processor time on the thread that posts, by variant.

    Attributes:
        together: One all_reduce of those that are posted one after the other and waited for
            later, as on a GPU.
        single: One of those that are waited for one by one, where the processor has forgotten
            the code each time the next one is made.
        step: A step of DistributedDataParallel with eight layers.
        after: As `together`, in a process that has such a module.
    """

    together: dict[str, Rounds]
    single: dict[str, Rounds]
    step: dict[str, Rounds]
    after: dict[str, Rounds]


def measure(directory: Path, *, rounds: int) -> Taken:
    """Measure in turns.

    Args:
        directory: For rings and for what the ranks meet in.
        rounds: How often each variant has its turn.
    """
    settings = {
        PLAIN: {"TORCH_FR_BUFFER_SIZE": "0"},
        RECORDER: {"TORCH_FR_BUFFER_SIZE": "2000"},
        NCCLSCOPE: {"TORCH_FR_BUFFER_SIZE": "0", "NCCLSCOPE_DIR": str(directory / "gloo")},
    }
    with ExitStack() as stack:
        variants = {
            name: stack.enter_context(started(directory / f"store-{place}", setting))
            for place, (name, setting) in enumerate(settings.items())
        }
        orders = "together 50", "single 50", "step 2", "together 50"
        taken = Taken(*(turns(variants, order, rounds) for order in orders))
    kept = [rank.records for rank in open_run(directory / "gloo").ranks]
    if len(kept) != RANKS or min(kept) < 100 * rounds:
        raise SystemExit("the gloo program was not recorded")
    return taken


def turns(variants: dict[str, Ranks], order: str, rounds: int) -> dict[str, Rounds]:
    """Run the ordered number of calls in each variant, in turns."""
    for ranks in variants.values():
        _turn(ranks, order)
    taken: dict[str, list[float]] = {name: [] for name in variants}
    for _ in range(rounds):
        for name, ranks in variants.items():
            taken[name].append(_turn(ranks, order))
    return {name: Rounds(own) for name, own in taken.items()}


def _turn(ranks: Ranks, order: str) -> float:
    for process in ranks:
        assert process.stdin is not None
        process.stdin.write(f"{order}\n")
        process.stdin.flush()
    answers = []
    for process in ranks:
        assert process.stdout is not None
        answers.append(process.stdout.readline())
    if not all(answers):
        raise RuntimeError("a rank of the gloo program has ended; its output is above")
    return min(map(float, answers))


@contextmanager
def started(store: Path, setting: dict[str, str]) -> Iterator[Ranks]:
    """Run the program's ranks under these variables."""
    inherited = {name: value for name, value in os.environ.items() if "NCCL" not in name}
    ranks = [
        subprocess.Popen(
            [sys.executable, "-m", "benchmarks.runners.program", str(store), str(rank)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**inherited, **setting},
        )
        for rank in range(RANKS)
    ]
    try:
        yield ranks
        for process in ranks:
            process.communicate(timeout=30)
    finally:
        for process in ranks:
            process.kill()
            process.wait()
