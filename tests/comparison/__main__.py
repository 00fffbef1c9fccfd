"""Prints the tables as Markdown: ``python -m tests.comparison [--no-gloo] [--update FILE]``."""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from ncclscope.engine.verdict import diagnose
from ncclscope.readers import open_run
from tests.comparison import fr_trace
from tests.comparison.ras import BY_DOCUMENTATION, URL
from tests.comparison.scenarios import SCENARIOS, Scenario, Truth
from tests.comparison.score import Answer, of_verdict, score
from tests.comparison.script import WORLD, Script

TOOLS = ("ncclscope, rings", "ncclscope, dumps", "torchfrtrace, dumps")
MARK = "<!-- made by: python -m tests.comparison -->"
WORDS = ("right", "partly", "wrong", "silent", "refuses")


def main() -> None:
    """Measure and print, in a directory that is removed afterwards."""
    parser = argparse.ArgumentParser(prog="tests.comparison", description=__doc__)
    parser.add_argument("--no-gloo", action="store_true", help="without the real programs")
    parser.add_argument("--update", type=Path, help="write them into a page, after its mark")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="ncclscope-comparison-") as name:
        lines = list(four_ranks(Path(name, "scenarios")))
        if not arguments.no_gloo:
            lines += ["", *gloo_programs(Path(name, "gloo"))]
    text = "\n".join(lines)
    if arguments.update is None:
        print(text)
        return
    page = arguments.update.read_text()
    if MARK not in page:
        raise SystemExit(f"{arguments.update} has no line {MARK}")
    arguments.update.write_text(f"{page.partition(MARK)[0]}{MARK}\n\n{text}\n")


def four_ranks(directory: Path) -> Iterable[str]:
    """Yield the table of scenarios that are written as rings and as NCCL's dumps."""
    own: list[tuple[Answer, Answer]] = []
    tasks = []
    for scenario in SCENARIOS:
        own.append(ncclscope_says(scenario, directory / scenario.name))
        incomplete = len(list((directory / scenario.name / "dumps").iterdir())) < WORLD
        tasks += both_orders(directory / scenario.name / "dumps", incomplete=incomplete)
    torch = in_pairs(fr_trace.answers(tasks))
    rows = []
    counts = [Counter[str]() for _ in TOOLS]
    for scenario, *answers in zip(SCENARIOS, *zip(*own, strict=True), torch, strict=True):
        scored = [scores(answer, scenario.truth) for answer in answers]
        for count, words in zip(counts, scored, strict=True):
            count[worst(words)] += 1
        cells = [cell(words, answer) for words, answer in zip(scored, answers, strict=True)]
        rows.append([scenario.title, *cells, BY_DOCUMENTATION[scenario.name]])
    heads = [*TOOLS, f"[NCCL RAS]({URL}), by its documentation"]
    yield from table(["", *heads], [*rows, ["**sum**", *map(total, counts), ""]])


def ncclscope_says(scenario: Scenario, directory: Path) -> tuple[Answer, Answer]:
    """Write a scenario as rings and as dumps, and return what ncclscope says of each."""
    script = Script()
    scenario.play(script)
    rings = script.verdict_of_rings(directory / "rings")
    dumps = diagnose(open_run(script.write_dumps(directory / "dumps")))
    return of_verdict(rings), of_verdict(dumps)


def gloo_programs(directory: Path) -> Iterable[str]:
    """Yield the table of real programs of four gloo processes."""
    from tests.comparison import gloo

    directory.mkdir()
    print("playing the gloo programs ...", file=sys.stderr, flush=True)
    gloo.play_all(directory)
    dumps, tasks = [], []
    for name in gloo.TRUTHS:
        dumps.append(of_verdict(diagnose(open_run(directory / name))))
        incomplete = name in gloo.INCOMPLETE
        tasks += both_orders(directory / name, incomplete=incomplete)
        tasks += both_orders(gloo.repaired(directory / name), incomplete=incomplete)
    torch = in_pairs(in_pairs(fr_trace.answers(tasks)))
    rows = []
    counts = [Counter[str]() for _ in range(3)]
    for (name, truth), own, (written, repaired) in zip(
        gloo.TRUTHS.items(), dumps, torch, strict=True
    ):
        answers = (own, written, repaired)
        scored = [scores(answer, truth) for answer in answers]
        for count, words in zip(counts, scored, strict=True):
            count[worst(words)] += 1
        cells = [cell(words, answer) for words, answer in zip(scored, answers, strict=True)]
        rows.append([f"`{name}`" + ("" if truth else " (healthy)"), *cells])
    heads = ["ncclscope", "torchfrtrace, as written", "torchfrtrace, groups filled in"]
    yield from table(["", *heads], [*rows, ["**sum**", *map(total, counts)]])


def both_orders(directory: Path, *, incomplete: bool) -> list[fr_trace.Task]:
    """Return the analyzer's answer; it takes the first file listed as the reference."""
    return [fr_trace.Task(directory, order, incomplete) for order in fr_trace.ORDERS]


def in_pairs(found: Sequence[Any]) -> list[tuple[Any, Any]]:
    """Two answers each."""
    return list(zip(found[::2], found[1::2], strict=True))


def scores(answer: Answer | Sequence[Answer], truth: Truth | None) -> list[str]:
    """One word, or one for each order where they are not the same."""
    answers = [answer] if isinstance(answer, Answer) else list(answer)
    words = [score(one, truth) for one in answers]
    return words[:1] if len(set(words)) == 1 else words


def worst(words: Sequence[str]) -> str:
    """Return the worse answer where the order of files decides."""
    return max(words, key=["right", "partly", "silent", "refuses", "wrong"].index)


def cell(words: Sequence[str], answer: Answer | Sequence[Answer]) -> str:
    """Return the words, and what is named."""
    answers = [answer] if isinstance(answer, Answer) else list(answer)
    texts = list(dict.fromkeys(one.text for one in answers if one.text))
    return f"**{' / '.join(words)}**" + (f": {' / '.join(texts)}" if texts else "")


def total(count: Counter[str]) -> str:
    """Return the number of answers by word."""
    return ", ".join(f"{count[word]} {word}" for word in WORDS if count[word])


def table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> Iterable[str]:
    """Yield lines of Markdown."""
    yield "| " + " | ".join(heads) + " |"
    yield "|" + "---|" * len(heads)
    for row in rows:
        yield "| " + " | ".join(text.replace("|", "\\|") for text in row) + " |"


if __name__ == "__main__":
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
    main()
