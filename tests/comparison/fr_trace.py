"""torch's analyzer of Flight Recorder dumps, run on directories, and what it says.

``python -m tests.comparison.fr_trace`` reads lines of JSON, each a directory, the order in which
its files are to be listed, and options. torch is loaded once; for each line a child runs the
analyzer's own ``main`` and ends.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from types import ModuleType
from typing import Any

from tests.comparison.score import Answer, Named

__all__ = ["ORDERS", "Task", "answers"]

PREFIX = "comm_lib_trace_rank_"
ORDERS = ("ascending", "descending")
SECONDS = 60
_CALL = re.compile(
    r"^(?:Not all ranks joining collective, sequence number: (?P<absent>\d+)"
    r"|Collective sequence number: (?P<errors>\d+) has errors"
    r"|Input/output mismatch in the collective sequence number: (?P<sizes>\d+)"
    r"|We cannot decide what's wrong .* from ranks \(\{(?P<unknown>[\d, ]*)\}\).*"
    r"|MISMATCH *)$"
)
_MISSING = re.compile(r"^missing ranks: \{([\d, ]*)\}")
_CULPRIT = re.compile(r"Culprit rank (\d+)")
_LAST = re.compile(r"^(\w*(?:Error|Exception)\b.*)$")


@dataclass(frozen=True)
class Task:
    """One run of the analyzer.

    Attributes:
        directory: With the dumps, pickled, named as torch names them.
        order: In which the files are listed.
        incomplete: Whether to allow that dumps are missing.
    """

    directory: Path
    order: str
    incomplete: bool = False


def answers(tasks: Iterable[Task]) -> list[Answer]:
    """Run the analyzer for each task, in one process with a child for each."""
    lines = [
        json.dumps([str(task.directory), task.order, task.incomplete], sort_keys=True)
        for task in tasks
    ]
    done = subprocess.run(
        [sys.executable, "-m", __name__],
        input="\n".join(lines),
        capture_output=True,
        text=True,
        timeout=SECONDS + 2 * len(lines),
        check=False,
    )
    output = [json.loads(line) for line in done.stdout.splitlines()]
    if done.returncode or len(output) != len(lines):
        raise RuntimeError(f"torch's analyzer could not be run: {done.stderr[-500:]}")
    return [_answer(status, text) for status, text in output]


def _answer(status: int, text: str) -> Answer:
    """Read what the analyzer has printed."""
    if status:
        causes = [found[1] for line in text.splitlines() if (found := _LAST.match(line))]
        return Answer(refused=causes[-1][:60] if causes else f"ends with status {status}")
    return Answer(tuple(_findings(text.splitlines())))


def _findings(lines: Sequence[str]) -> Iterator[Named]:
    """Yield what is named, one for each paragraph that begins with a finding."""
    starts = [place for place, line in enumerate(lines) if _CALL.match(line.strip())]
    for start, end in pairwise([*starts, len(lines)]):
        found = _CALL.match(lines[start].strip())
        assert found is not None
        fields = found.groupdict()
        ranks = _numbers(fields["unknown"] or "")
        for line in lines[start + 1 : end]:
            missing = _MISSING.match(line)
            if missing and fields["absent"]:
                ranks |= _numbers(missing[1])
            elif fields["errors"] and line.startswith("error msg:"):
                ranks |= {int(rank) for rank in _CULPRIT.findall(line)}
        yield Named(
            frozenset(ranks), int(fields["absent"] or fields["errors"] or fields["sizes"] or 0)
        )


def _numbers(text: str) -> set[int]:
    return {int(number) for number in text.replace(",", " ").split()}


# --- the process with torch in it --------------------------------------------------------------


def _listed(order: str) -> Any:
    """Return a walk that lists files in one order; file systems have any."""
    walk = os.walk

    def ordered(*arguments: Any, **options: Any) -> Iterator[tuple[Any, Any, list[str]]]:
        for root, folders, files in walk(*arguments, **options):
            by_rank = sorted(files, key=lambda name: int(name.rpartition("_")[2]))
            yield root, folders, by_rank if order == ORDERS[0] else by_rank[::-1]

    return ordered


def _child(directory: str, order: str, incomplete: bool) -> int:
    from torch.distributed.flight_recorder import fr_trace

    os.walk = _listed(order)
    options = ["--allow-incomplete-ranks"] if incomplete else []
    fr_trace.main([directory, "--prefix", PREFIX, *options])
    return 0


def _provide_tabulate() -> None:
    """An undeclared dependency of the analyzer; that it may be absent is not its answer."""
    try:
        __import__("tabulate")
    except ModuleNotFoundError:
        stand_in = ModuleType("tabulate")
        stand_in.tabulate = lambda rows, **_: "\n".join(map(str, rows))  # type: ignore[attr-defined]
        sys.modules["tabulate"] = stand_in


def main() -> None:
    """Run one task for each line of the standard input."""
    _provide_tabulate()
    from torch.distributed.flight_recorder import fr_trace  # noqa: F401  loaded for all children

    for line in sys.stdin:
        directory, order, incomplete = json.loads(line)
        with tempfile.TemporaryFile("w+") as file:
            child = os.fork()
            if child == 0:
                os.dup2(file.fileno(), 1)
                os.dup2(file.fileno(), 2)
                status = 1
                try:
                    status = _child(directory, order, incomplete)
                except BaseException as error:
                    print(f"{type(error).__name__}: {error}", file=sys.stderr)
                finally:
                    sys.stderr.flush()
                    os._exit(status)
            _, ended = os.waitpid(child, 0)
            file.seek(0)
            print(json.dumps([os.waitstatus_to_exitcode(ended), file.read()]), flush=True)


if __name__ == "__main__":
    main()
