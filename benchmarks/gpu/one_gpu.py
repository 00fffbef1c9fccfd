"""Ordinary programs with a mistake, four NCCL ranks on one GPU, and the verdict on each.

    python -m benchmarks.gpu.one_gpu --nccl /tmp/libnccl.so.2 --keep DIR [NAME ...]

Prints a row for each program: the mistake, the verdict with ranks and confidence as `attach`,
`watch` and `diagnose` give it, how good that is, what NCCL's RAS says, and the calls that are
recorded beside those that NCCL has counted. NCCL has to be 2.31 or newer. It is preloaded into the
programs alone. With `--pairs` two ranks run, the second of which makes the mistake, on as many GPUs
as there are; any NCCL serves where there are two.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from tests.corpus.runner.questions import HEALTHY, WAYS, Answer, ask
from tests.corpus.runner.score import FAIR, describe
from tests.corpus.runner.truth import PROGRAMS

MISTAKES = (
    "ddp_no_sync", "opposite_order", "ddp_fewer_batches_barrier", "compiled_left_out",
    "stopped_rank", "fsdp_eval_rank0", "early_stop_local", "ddp_metric_rank0", "group_left_out",
    "ddp_unused_branch", "broadcast_root", "set_order", "recv_cycle", "uneven_all_to_all",
    "zero_consolidate_rank0", "tensor_parallel_eos", "pipeline_by_hand", "nested_groups",
)  # fmt: skip
"""Programs whose mistake NCCL shows differently than gloo: nothing aborts, all hosts run ahead."""
REDUCED_AHEAD = frozenset({"ddp_no_sync", "ddp_fewer_batches_barrier"})
"""Over NCCL all hosts run ahead to the same barrier; only NCCL's counts distinguish them."""
LIMIT = 540
INSTALLED = "libnccl.so.2"
"""The library that torch brings, which is loaded in any case."""


def main() -> int:
    """Run the programs that are named until time is over; returns 1 when an answer is not fair."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help="programs (default: all)")
    parser.add_argument("--nccl", default="", metavar="FILE", help="library that is preloaded")
    parser.add_argument("--keep", type=Path, required=True, metavar="DIR", help="for answers")
    parser.add_argument("--limit", type=float, default=LIMIT, metavar="SECONDS", help="for all")
    parser.add_argument(
        "--way", action="append", choices=[HEALTHY, *WAYS], help="(default: traced)"
    )
    parser.add_argument("--pairs", action="store_true", help="two ranks instead of four")
    options = parser.parse_args()
    ways = options.way or list(WAYS[:3])
    begun, unfair = time.monotonic(), 0
    print("| program: mistake | way | verdict | score | RAS | recorded / counted | s |")
    print("|---|---|---|---|---|---|---|")
    for name in options.names or MISTAKES:
        started = time.monotonic()
        if started - begun > options.limit - 60:
            print(f"{name} and the rest: no time", file=sys.stderr)
            break
        folder = options.keep / name
        program = PROGRAMS[name]
        if name in REDUCED_AHEAD:
            everybody = tuple(range(program.world))
            ways_of_rings = ("watch", "diagnose")
            program = replace(program, undecided=everybody, undecided_in=ways_of_rings)
        if options.pairs:
            program = replace(program, world=2, ranks=(1,), undecided=(0, 1), undecided_in=())
        answers = list(ask(program, ways, folder, nccl=options.nccl or INSTALLED))
        unfair += sum(answer.score not in FAIR for answer in answers)
        _keep(folder, answers)
        for row in rows(name, answers, time.monotonic() - started):
            print(f"| {' | '.join(row)} |", flush=True)
    return int(unfair > 0)


def _keep(folder: Path, answers: Sequence[Answer]) -> None:
    for answer in answers:
        place = folder / answer.way
        place.mkdir(parents=True, exist_ok=True)
        (place / "verdict.json").write_text(json.dumps(answer.document, indent=1))
        (place / "screen.txt").write_text(answer.screen)


def rows(name: str, answers: Sequence[Answer], took: float) -> Iterator[list[str]]:
    """Yield a row for each answer; the first says what the program does."""
    title = f"`{name}`: {PROGRAMS[name].mistake}"
    for answer in answers:
        output = answer.note if answer.way == HEALTHY else describe(answer.document)
        document = answer.document or {}
        yield [
            title,
            answer.way,
            output,
            answer.score + (f" ({answer.note})" if answer.note and output != answer.note else ""),
            _evidence(document, "ras"),
            _counts(document),
            f"{took:.0f}",
        ]
        title = ""


def _evidence(document: Mapping[str, Any], name: str) -> str:
    for item in document.get("witnesses") or ():
        if item["name"] == name:
            return " ".join(str(item.get("says") or item.get("why") or "").split())
    return ""


def _counts(document: Mapping[str, Any]) -> str:
    comms = (document.get("coverage") or {}).get("comms") or ()
    return ", ".join(f"{one['recorded']}/{one['counted']}" for one in comms)


if __name__ == "__main__":
    sys.exit(main())
