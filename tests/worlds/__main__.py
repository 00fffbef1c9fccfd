"""``python -m tests.worlds``: diagnose random small jobs with planted faults, and count.

The same seed gives the same worlds everywhere.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from ncclscope.model import Run
from tests.proofs.tally import Checked, examine
from tests.proofs.tally import table as proofs_table
from tests.worlds import exhaustive
from tests.worlds.faults import FAULTS
from tests.worlds.sample import HEALTHY, RECORDS, RINGS, examined, sample, verdict_on
from tests.worlds.score import causes_of, judge, table
from tests.worlds.world import describe

_CHUNK = 20
_SHOW = "print world K and its verdict; of small jobs the K smallest with each bad verdict"


def main(arguments: Sequence[str] | None = None) -> int:
    """Print how good the verdicts on some worlds are."""
    parser = argparse.ArgumentParser(prog="tests.worlds", description=__doc__)
    parser.add_argument("--count", type=int, default=200, metavar="N", help="worlds (default: 200)")
    parser.add_argument("--seed", type=int, default=1, metavar="S", help="of the worlds")
    parser.add_argument("--fault", default="", choices=("", HEALTHY, *FAULTS), help="only this one")
    parser.add_argument(
        "--records", default=RINGS, choices=RECORDS, help="what is diagnosed (default: rings)"
    )
    parser.add_argument(
        "--show",
        type=int,
        metavar="K",
        help=_SHOW,
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="where each world's result goes")
    parser.add_argument("--jobs", type=int, default=1, metavar="N", help="processes (default: 1)")
    parser.add_argument("--proofs", action="store_true", help="check the proofs of all verdicts")
    parser.add_argument("--exhaustive", action="store_true", help="all small jobs instead")
    parser.add_argument("--part", default="0/1", metavar="K/N", help="of the small jobs")
    parser.add_argument("--calls", type=int, default=4, metavar="N", help="most calls of those")
    parser.add_argument("--moments", action="store_true", help="small jobs while they run")
    parser.add_argument("--case", metavar="NAME", help="of small jobs only this one")
    options = parser.parse_args(arguments)
    if options.exhaustive or options.case:
        return small_jobs(options)
    if options.show is not None:
        return show(options.seed, options.show, options.fault, options.records)
    began = time.monotonic()
    one = partial(result, options.seed, options.fault, options.records, proofs=options.proofs)
    if options.jobs > 1:
        with ProcessPoolExecutor(options.jobs, get_context("fork")) as pool:
            results = list(pool.map(one, range(options.count), chunksize=_CHUNK))
    else:
        results = list(map(one, range(options.count)))
    seconds = time.monotonic() - began
    if options.json:
        options.json.write_text(json.dumps(results, indent=1))
    print(report(results))
    if options.proofs:
        checked = [(each, Checked(**one)) for each in results for one in each["proofs"]]
        print(proofs_table(one for _, one in checked))
        refused = [(each, one) for each, one in checked if one.is_refused]
        print(
            *(f"world {each['world']}, {each['fault']}: {one}" for each, one in refused), sep="\n"
        )
    print(f"{len(results)} worlds, {len(results) / seconds:.1f} a second", file=sys.stderr)
    return 0


def small_jobs(options: argparse.Namespace) -> int:
    """Print how good the verdicts on small jobs are, and the smallest with a bad one."""
    if options.case:
        print(*exhaustive.examine(options.case), sep="\n")
        return 0
    first, step = map(int, options.part.split("/"))
    cases = exhaustive.cases(options.calls, running=options.moments)
    results = exhaustive.run(cases[first::step], options.jobs)
    if options.json:
        options.json.write_text(json.dumps(results, indent=1))
    print(exhaustive.table(results))
    if options.show is not None:
        print(*exhaustive.examples(results, options.show), sep="\n")
    return 0


def result(
    seed: int, fault: str, records: str, number: int, *, proofs: bool = False
) -> dict[str, Any]:
    """Diagnose a world, and judge the verdict, and if wanted its proofs."""
    drawn = sample(seed, number, fault, records=records)

    def judged(run: Run, document: Mapping[str, Any]) -> tuple[Mapping[str, Any], list[Checked]]:
        return document, examine(run, document) if proofs else []

    document, checked = examined(drawn.world, drawn.outcome, judged, records)
    return {
        "world": number,
        "fault": drawn.name,
        "planted": [f"{each.fault} of rank {each.rank}" for each in drawn.planted],
        "backend": drawn.world.backend,
        "size": drawn.world.size,
        "final": drawn.outcome.final,
        "stuck": sorted(drawn.truth.stuck),
        "word": judge(document, drawn.truth),
        "status": document["status"],
        "summary": document["summary"],
        "causes": causes_of(document),
        "proofs": [asdict(one) for one in checked],
    }


def report(results: Sequence[dict[str, Any]]) -> str:
    """Return the table, and how many of the other stories are certain."""
    sure = sum(
        each["word"] == "other story" and any(c["confidence"] == "certain" for c in each["causes"])
        for each in results
    )
    return table((each["fault"], each["word"]) for each in results) + (
        f"\n{sure} of the other stories are certain"
    )


def show(seed: int, number: int, fault: str, records: str) -> int:
    """Print the programs of a world, the truth and the verdict."""
    drawn = sample(seed, number, fault, records=records)
    outcome, truth = drawn.outcome, drawn.truth
    print(*describe(drawn.world, dict(enumerate(outcome.begun))), sep="\n")
    for story in truth.stories:
        planted = story.planted
        seqs = {label: f"{some[0]}-{some[-1]}" for label, some in story.seqs.items()}
        print(f"truth: {planted.fault} of rank {planted.rank} before its act {planted.at},")
        print(f"    line {planted.line}, {dict(story.kinds)} on {story.comms or 'any'}, {seqs}")
    if not truth.stories:
        print(f"truth: nothing has gone wrong so far; planted: {drawn.planted}")
    print(f"    suspects {sorted(truth.suspects)}, harmless={truth.harmless}")
    for rank, call in outcome.stuck().items():
        act = call.act
        print(f"    rank {rank} is in {act.op} on {act.comm}, call {call.number + 1}, {act.site}")
    print(f"    ended {outcome.ended}, held {outcome.held}, final={outcome.final}")
    document = verdict_on(drawn.world, outcome, records)
    print(f"verdict: {document['status']}: {document['summary']}")
    for cause in document["findings"]:
        where = (cause["comm"] or {}).get("label")
        named = cause["diverging_ranks"] or f"of {cause['candidate_ranks']}"
        print(f"    {cause['role']}: {cause['kind']} {named} {where} call {cause['seq']}", end="")
        print(f", {cause['confidence']}: {cause['summary']}")
    word = judge(document, truth)
    print(f"score: {word}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
