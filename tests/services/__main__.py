"""``python -m tests.services``: start real vLLM services, plant faults, and judge what is said."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from tests.services.cases import CASES
from tests.services.play import Result, play
from tests.services.score import NOT_BAD
from tests.worlds.score import in_columns


def main(arguments: Sequence[str] | None = None) -> int:
    """Print how good the answers about some services are."""
    parser = argparse.ArgumentParser(prog="tests.services", description=__doc__)
    parser.add_argument(
        "--case", action="append", choices=CASES, metavar="NAME", help="only this one (repeatable)"
    )
    parser.add_argument("--keep", type=Path, metavar="DIR", help="copy rings and answers to DIR")
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--traced", action="store_true", help="no untraced services")
    which.add_argument("--untraced", action="store_true", help="no traced services")
    parser.add_argument("--list", action="store_true", help="print the cases and their truths")
    options = parser.parse_args(arguments)
    chosen = [CASES[name] for name in options.case or CASES]
    if options.list:
        for case in chosen:
            for moment in case.moments:
                print(f"{case.name} {moment.name}".rstrip(), moment.truth.what, sep=": ")
            if case.refused:
                print(case.name, case.refused.what, sep=": ")
        return 0
    results: list[Result] = []
    for case in chosen:
        keep = options.keep / case.name if options.keep else None
        began = time.monotonic()
        modes = {"traced": not options.untraced, "untraced": not options.traced}
        try:
            for result in play(case, keep, **modes):
                results.append(result)
                print(*_lines(result), sep="\n", flush=True)
        except (RuntimeError, OSError, ValueError) as error:
            print(f"{case.name}: not played: {error}"[:2000], flush=True)
        print(f"{case.name}: {time.monotonic() - began:.0f} s", file=sys.stderr)
    print(table(results))
    return int(any(result.word not in NOT_BAD for result in results))


def table(results: Sequence[Result]) -> str:
    """Return a row for each moment of a case, with the word of each answer."""
    ways = list(dict.fromkeys(result.way for result in results))
    rows: dict[str, dict[str, str]] = {}
    for result in results:
        rows.setdefault(f"{result.case} {result.moment}".strip(), {})[result.way] = result.word
    return in_columns(
        [("case", *ways), *((name, *(row.get(w, "") for w in ways)) for name, row in rows.items())]
    )


def _lines(result: Result) -> list[str]:
    causes = "; ".join(
        f"{one['kind']} {one['ranks'] or one['candidates']} {one['confidence']}"
        for one in result.causes
    )
    name = f"{result.case} {result.moment}".strip()
    return [
        f"{name} | {result.way} | {result.word.upper()} | {result.status} | {causes} | "
        f"{result.seconds:.1f} s",
        f"    {result.summary}",
    ]


if __name__ == "__main__":
    sys.exit(main())
