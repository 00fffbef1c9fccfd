"""``python -m tests.corpus programs``: run programs and print how good the answers are."""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from tests.corpus.runner.job import ROOT
from tests.corpus.runner.misses import MISSES, is_expected
from tests.corpus.runner.questions import HEALTHY, WAYS, answerable, ask
from tests.corpus.runner.score import FAIR, NO_ANSWER, NO_HANG, SCORES, describe, score
from tests.corpus.runner.truth import PROGRAMS, Program
from tests.corpus.strangers.truth import PROGRAMS as STRANGERS
from tests.corpus.strangers2.truth import PROGRAMS as STRANGERS2
from tests.corpus.strangers3.truth import PROGRAMS as STRANGERS3
from tests.corpus.strangers4.truth import PROGRAMS as STRANGERS4
from tests.corpus.strangers5.truth import PROGRAMS as STRANGERS5
from tests.corpus.strangers6.truth import PROGRAMS as STRANGERS6
from tests.corpus.strangers7.truth import PROGRAMS as STRANGERS7
from tests.corpus.strangers8.truth import PROGRAMS as STRANGERS8
from tests.corpus.strangers9.truth import PROGRAMS as STRANGERS9
from tests.corpus.strangers10.truth import PROGRAMS as STRANGERS10
from tests.corpus.strangers11.truth import PROGRAMS as STRANGERS11
from tests.corpus.strangers12.truth import PROGRAMS as STRANGERS12

__all__ = ["KNOWN", "main"]

_SETS = {
    "programs": PROGRAMS,
    "strangers": STRANGERS,
    "strangers2": STRANGERS2,
    "strangers3": STRANGERS3,
    "strangers4": STRANGERS4,
    "strangers5": STRANGERS5,
    "strangers6": STRANGERS6,
    "strangers7": STRANGERS7,
    "strangers8": STRANGERS8,
    "strangers9": STRANGERS9,
    "strangers10": STRANGERS10,
    "strangers11": STRANGERS11,
    "strangers12": STRANGERS12,
}
KNOWN = {name: program for programs in _SETS.values() for name, program in programs.items()}
_NONE = frozenset({NO_ANSWER, NO_HANG})


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the programs that are named and return 1 when an answer is not what is expected."""
    parser = argparse.ArgumentParser(prog="tests.corpus programs", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help="programs (default: all)")
    parser.add_argument(
        "--set", choices=_SETS, default="programs", help="of programs, where none is named"
    )
    parser.add_argument(
        "--way", action="append", choices=[HEALTHY, *WAYS], help="of asking (default: all)"
    )
    parser.add_argument("--json", action="store_true", help="one JSON document on stdout")
    parser.add_argument("--keep", type=Path, metavar="DIR", help="verdicts and screens go there")
    parser.add_argument(
        "--python", default="", metavar="PATH", help="interpreter of programs that need frameworks"
    )
    parser.add_argument("--known", action="store_true", help="leave out what DIR holds answers of")
    parser.add_argument(
        "--failed", action="store_true", help="leave out what DIR holds fair answers of"
    )
    parser.add_argument(
        "--table", action="store_true", help="run nothing; print what DIR holds answers of"
    )
    options = parser.parse_args(arguments)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # what was started is ended as well
    for name in options.names:
        if name not in KNOWN:
            parser.error(f"no program is called {name}")
    keep = options.keep or Path(tempfile.mkdtemp(prefix="corpus-answers-"))
    ways = options.way or [HEALTHY, *WAYS]
    programs = [KNOWN[name] for name in options.names or _SETS[options.set]]
    if not options.table:
        wanted = frozenset(SCORES)
        if options.known:
            wanted = _NONE
        elif options.failed:
            wanted -= FAIR
        _run(programs, ways, keep, options.python, wanted)
    answers = list(_answers(programs, keep, ways))
    if options.json:
        json.dump(answers, sys.stdout, indent=1)
        sys.stdout.write("\n")
    else:
        print("\n".join([*table(answers, ways), "", *failures(answers), "", f"answers: {keep}"]))
    return int(not all(map(_is_expected, answers)))


def _run(
    programs: Sequence[Program],
    ways: Sequence[str],
    keep: Path,
    python: str,
    wanted: frozenset[str],
) -> None:
    """Run what there is no answer of, or one whose score is among those wanted."""
    for program in programs:
        folder = keep / program.name
        due = [
            way
            for way in answerable(program, ways)
            if _score_of(program, way, folder / way) in wanted | _NONE
        ]
        if not due:
            continue
        interpreter = os.path.abspath(python) if program.needs and python else sys.executable
        missing = [name for name in program.needs if not _importable(name, interpreter)]
        if missing:
            _note(f"{program.name}: left out, {', '.join(missing)} cannot be imported")
            continue
        begun = time.monotonic()
        for answer in ask(program, due, folder, interpreter):
            place = folder / answer.way
            place.mkdir(parents=True, exist_ok=True)
            (place / "verdict.json").write_text(json.dumps(answer.document, indent=1))
            (place / "screen.txt").write_text(answer.screen)
            record = {
                "program": program.name,
                "way": answer.way,
                "score": answer.score,
                "said": describe(answer.document) if answer.way != HEALTHY else answer.note,
                "note": answer.note,
                "product": _product(),
            }
            (place / "score.json").write_text(json.dumps(record))
            _note(f"{program.name} {answer.way}: {answer.score} ({record['said']})")
        _note(f"{program.name}: {time.monotonic() - begun:.0f} s")


def _product() -> str:
    """Return the last commit that changed the product."""
    command = ["git", "log", "-1", "--format=%h", "--", "ncclscope", "analyzers", "patches"]
    found = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    return found.stdout.strip()


def _importable(module: str, interpreter: str) -> bool:
    if interpreter == sys.executable:
        return importlib.util.find_spec(module.partition(".")[0]) is not None
    find = f"import importlib.util, sys; sys.exit(not importlib.util.find_spec({module!r}))"
    found = subprocess.run([interpreter, "-c", find], capture_output=True, check=False)
    return found.returncode == 0


def _answers(
    programs: Sequence[Program], keep: Path, ways: Sequence[str]
) -> Iterator[dict[str, Any]]:
    for program in programs:
        for way in answerable(program, ways):
            place = keep / program.name / way
            if (place / "score.json").exists():
                answer = json.loads((place / "score.json").read_text())
                yield answer | {"score": _score_of(program, way, place)}


def _score_of(program: Program, way: str, place: Path) -> str:
    """Return the score of a kept answer, by the truth as it is now."""
    if not (place / "score.json").exists():
        return NO_HANG
    answer = json.loads((place / "score.json").read_text())
    if way == HEALTHY or answer["score"] == NO_HANG:
        return str(answer["score"])
    return score(json.loads((place / "verdict.json").read_text()), program, way)


def table(answers: Sequence[dict[str, Any]], ways: Sequence[str]) -> Iterator[str]:
    """Yield the lines of a table: a row a program, a column a way, and sums."""
    found = {(answer["program"], answer["way"]): answer["score"] for answer in answers}
    names = list(dict.fromkeys(answer["program"] for answer in answers))
    products: dict[str, set[str]] = {}
    for answer in answers:
        products.setdefault(answer["program"], set()).add(answer.get("product", ""))
    widths = [max(len(name) for name in [*names, "program"]), *(18 for _ in ways), 8]
    rows = [["program", *ways, "product"]]
    rows += [
        [name, *(found.get((name, way), "") for way in ways), " ".join(sorted(products[name]))]
        for name in names
    ]
    for row in rows:
        yield "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
    yield ""
    for way in ways:
        scores = [answer["score"] for answer in answers if answer["way"] == way]
        counts = [f"{scores.count(one)} {one}" for one in SCORES if one in scores]
        fair = sum(one in FAIR for one in scores)
        asked = len(scores) - scores.count(NO_HANG)
        yield f"{way}: {fair} of {asked} fair ({', '.join(counts)})"


def failures(answers: Sequence[dict[str, Any]]) -> Iterator[str]:
    """Yield a line for each answer that is not fair, with the right one, or is no miss any more."""
    for answer in answers:
        program = KNOWN[answer["program"]]
        miss = MISSES.get((program.name, answer["way"]))
        if answer["score"] in FAIR:
            if miss and miss.always:
                yield f"{program.name} {answer['way']}: {answer['score']}; remove it from misses.py"
            continue
        if answer["way"] == HEALTHY:
            due = "nothing, and exit status 0"
        elif program.hangs:
            due = f"{list(program.ranks)} as {' or '.join(program.kinds)}"
            if program.fair(answer["way"]):
                due += f", or undecided among {sorted(program.fair(answer['way']))}"
            due += f" ({program.mistake})"
        else:
            due = "no alarm"
        if miss and _is_expected(answer):
            due += f"; known: {miss.reason}"
        yield f"{program.name} {answer['way']}: {answer['score']}: {answer['said']}; due: {due}"


def _is_expected(answer: dict[str, Any]) -> bool:
    return is_expected(answer["program"], answer["way"], answer["score"])


def _note(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
