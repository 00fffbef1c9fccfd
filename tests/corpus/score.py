"""Ask ncclscope and torch's own analyzer about the corpus, and hold both against the truth."""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks.runners.dumps import pickled
from ncclscope import diagnose, open_run
from ncclscope.readers.flight_recorder.plain_pickle import load_plain
from tests.comparison import fr_trace
from tests.corpus.build import build
from tests.corpus.judgement import Judged, judge, judge_torch
from tests.corpus.registry import Case, all_cases
from tests.corpus.truth import Truth

__all__ = ["Row", "main", "rows_of", "verdict_of"]

WORDS = ("right", "partly", "silent", "refuses", "wrong")


@dataclass(frozen=True)
class Row:
    """One case, and what both tools say of it.

    Attributes:
        name: The case.
        truth: What was planted, in a few words.
        ncclscope: How good its verdict is.
        torchfrtrace: The same of torch's analyzer; None where it does not read the format.
    """

    name: str
    truth: str
    ncclscope: Judged
    torchfrtrace: Judged | None


def verdict_of(directory: Path) -> dict[str, Any]:
    """Return the document that ``ncclscope diagnose --json`` prints of a folder."""
    return diagnose(open_run(directory)).to_dict()


def rows_of(
    directory: Path, truths: Mapping[str, Truth], cases: Mapping[str, Case], *, torch: bool = True
) -> list[Row]:
    """Return a row for each case of a corpus that was built."""
    own = {name: judge(verdict_of(directory / name), truth) for name, truth in truths.items()}
    asked = [name for name in truths if torch and name in cases and cases[name].is_dump]
    tasks = []
    for name in asked:
        dumps = readable(cases[name], directory / name, directory / f"{name}.readable")
        incomplete = len(list(dumps.iterdir())) < cases[name].size
        tasks += [fr_trace.Task(dumps, order, incomplete) for order in fr_trace.ORDERS]
    # The analyzer takes the first file that is listed for what is right.
    found = iter(fr_trace.answers(tasks)) if tasks else iter(())
    others = {name: judge_torch([next(found), next(found)], truths[name]) for name in asked}
    return [
        Row(name, text_of(truth), own[name], others.get(name)) for name, truth in truths.items()
    ]


def readable(case: Case, source: Path, target: Path) -> Path:
    """Write dumps again as torch 2.13's analyzer can read them.

    It knows no ``nccl2``, and ends with a KeyError where gloo has described its groups under an
    empty name; what it would say otherwise is of more interest than that.
    """
    target.mkdir()
    groups = case.groups()
    for path in source.iterdir():
        value = load_plain(path.read_bytes(), str(path))
        rank = int(path.name.rpartition("_")[2])
        value["pg_config"] = {
            str(number): {
                "name": str(number),
                "desc": "default_pg" if label == "world" else label.partition(":")[0],
                "ranks": str(list(members)),
            }
            for number, (label, members) in enumerate(groups.items())
            if rank in members
        }
        for entry in value["entries"]:
            entry["profiling_name"] = entry["profiling_name"].replace("nccl2:", "nccl:")
        (target / path.name).write_bytes(pickled(value))
    return target


def text_of(truth: Truth) -> str:
    """Return a truth in a few words."""
    if not truth.causes:
        return "/".join(truth.status)
    parts = []
    for cause in truth.causes:
        ranks = list(cause.ranks) if cause.ranks else f"of {list(cause.candidates)}"
        seqs = "/".join(map(str, dict.fromkeys(cause.seqs)))
        highest = "/".join(dict.fromkeys(cause.kinds.values()))
        call = f" call {seqs}" if seqs else ""
        parts.append(f"{'/'.join(cause.kinds)} {ranks}{call} <={highest}")
    return " + ".join(parts)


def sums(judged: Iterable[Judged]) -> dict[str, int]:
    """Return the number of answers by word, and the failures."""
    found = list(judged)
    words = Counter(each.word for each in found)
    return {
        "cases": len(found),
        **{word: words[word] for word in WORDS},
        "false_alarms": sum(each.false_alarm for each in found),
        "certain_and_wrong": sum(each.too_sure for each in found),
    }


def main(arguments: Sequence[str]) -> int:
    """Print both tools' answers side by side; 0 where all of ncclscope's are right."""
    parser = argparse.ArgumentParser(prog="tests.corpus score", description=__doc__)
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    parser.add_argument("--failed", action="store_true", help="print what is not right alone")
    parser.add_argument("--no-torch", action="store_true", help="ask ncclscope alone")
    parser.add_argument("--gloo", action="store_true", help="run programs of real processes, too")
    parser.add_argument("--only", default="", help="print cases whose name holds this alone")
    given = parser.parse_args(arguments)
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
    cases = {name: case for name, case in all_cases().items() if given.only in name}
    with tempfile.TemporaryDirectory(prefix="ncclscope-corpus-") as name:
        truths = build(Path(name, "corpus"), cases.values(), gloo=given.gloo)
        rows = rows_of(Path(name, "corpus"), truths, cases, torch=not given.no_torch)
    own = [row.ncclscope for row in rows]
    torch = [row.torchfrtrace for row in rows if row.torchfrtrace is not None]
    totals = {"ncclscope": sums(own), "torchfrtrace": sums(torch)}
    if given.json:
        document = {"cases": [asdict(row) for row in rows], "sums": totals}
        json.dump(document, sys.stdout, indent=1)
        print()
    else:
        for row in rows:
            if not given.failed or row.ncclscope.word != "right":
                print_row(row)
        for tool, counts in totals.items():
            text = ", ".join(f"{word.replace('_', ' ')} {count}" for word, count in counts.items())
            print(f"{tool}: {text}")
    return 0 if all(each.word == "right" for each in own) else 1


def print_row(row: Row) -> None:
    """Print one case: what was planted, and what each tool says of it."""
    print(f"{row.name}\n    truth         {row.truth}")
    for tool in ("ncclscope", "torchfrtrace"):
        judged: Judged | None = getattr(row, tool)
        if judged is not None:
            why = f"  [{'; '.join(judged.problems)}]" if judged.problems else ""
            print(f"    {tool:13} {judged.word.upper():7} {judged.says}{why}")
