"""Run torch's distributed tests plain and traced: ``python -m tests.foreign [-k NAME]``.

After them come the programs of this package, with the same selection.
Outcomes are kept in build/foreign, so that an interrupted run goes on where it was: those of
plain runs until torch changes, those of traced runs until ncclscope changes, too.
"""

from __future__ import annotations

import argparse
import hashlib
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import pytest
import torch

from tests.foreign.outcomes import Case, Outcomes
from tests.foreign.playing import ROOT, list_tests, play, play_traced

KEPT = ROOT / "build" / "foreign"
SOURCES = ("ncclscope", "patches", "analyzers")
RANKS, MANY_RANKS = 4, 8
TOO_FEW = "Skipped due to small world size."
"""Why torch skips a test that wants ``MANY_RANKS``."""
BATCH = 20
QUIET = frozenset({"ok", "unknown"})
ON_PURPOSE = {
    "test_barrier_timeout_full_group": "only rank 0 enters the barrier, until it times out",
    "test_barrier_timeout_group": "only one rank enters the barrier, until it times out",
    "test_monitored_barrier_failure_order": "ranks 2 to 7 stay away from the barrier",
    "test_monitored_barrier_gloo_subgroup": "rank 1 stays away from its group's barrier",
    "test_monitored_barrier_gloo": "rank 1 stays away from the last barrier",
}
"""Tests that pass and do what a verdict has to report, and what that is."""

_Item = TypeVar("_Item")


class Comparison:
    """Tests that run plain and traced.

    Args:
        limit: Seconds that a test may take.
        jobs: How many run at a time.
    """

    def __init__(self, limit: float, jobs: int) -> None:
        self.plain = Outcomes(KEPT / f"plain-{torch.__version__}.jsonl")
        self.traced = Outcomes(KEPT / f"traced-{torch.__version__}-{_digest_of_sources()}.jsonl")
        self._limit = limit
        self._jobs = jobs

    def run(self, names: Sequence[str]) -> list[Case]:
        """Run what has no outcome yet; return the tests that torch does not skip here."""
        cases = [Case(name, RANKS) for name in names]
        self._run_plain(cases)
        small = [case for case in cases if self.plain[case].detail == TOO_FEW]
        many = [Case(case.name, MANY_RANKS) for case in small]
        self._run_plain(many)
        cases = [case for case in (*cases, *many) if self.plain[case].ending != "skipped"]
        self._each([case for case in cases if case not in self.traced], self._run_traced)
        # Some of torch's tests fail now and then; a change counts when it comes back.
        self._each([case for case in cases if self.is_changed(case)], self._run_again)
        return sorted(cases)

    def is_changed(self, case: Case) -> bool:
        """Return whether a test ended differently when it was traced."""
        return self.plain[case].ending != self.traced[case].ending

    def is_false_alarm(self, case: Case) -> bool:
        """Return whether the verdict on a test that passed is an alarm without a reason."""
        traced = self.traced[case]
        alarm = traced.status not in QUIET and case.name not in ON_PURPOSE
        return traced.ending == "passed" and alarm

    def _run_plain(self, cases: Sequence[Case]) -> None:
        missing = [case for case in cases if case not in self.plain]
        self._each(
            [missing[at : at + BATCH] for at in range(0, len(missing), BATCH)], self._run_batch
        )

    def _run_batch(self, cases: list[Case]) -> None:
        for case, outcome in play(cases, self._limit):
            self.plain.keep(case, outcome)
            print(f"plain   {outcome.ending:9}  {case}", file=sys.stderr, flush=True)

    def _run_traced(self, case: Case) -> None:
        outcome = play_traced(case, self._limit)
        self.traced.keep(case, outcome)
        print(f"traced  {outcome.ending:9}  {case}: {outcome.status}", file=sys.stderr, flush=True)

    def _run_again(self, case: Case) -> None:
        self._run_batch([case])
        self._run_traced(case)

    def _each(self, items: Iterable[_Item], work: Callable[[_Item], None]) -> None:
        with ThreadPoolExecutor(self._jobs) as pool:
            futures = [pool.submit(work, item) for item in items]
            try:
                for future in futures:
                    future.result()
            finally:
                pool.shutdown(cancel_futures=True)


def main() -> int:
    """Run the tests; return 1 where one ended differently or a verdict is a false alarm."""
    parser = argparse.ArgumentParser(prog="tests.foreign", description=__doc__)
    parser.add_argument("-k", default="", metavar="NAME", help="only tests with this in their name")
    parser.add_argument("--limit", type=float, default=90, help="seconds for a test (default: 90)")
    parser.add_argument("--jobs", type=int, choices=(1, 2), default=2, help="tests at a time")
    parser.add_argument("--again", action="store_true", help="forget all outcomes that were kept")
    arguments = parser.parse_args()
    if arguments.again:
        shutil.rmtree(KEPT, ignore_errors=True)
    names = [name for name in list_tests() if arguments.k in name]
    comparison = Comparison(arguments.limit, arguments.jobs)
    status = show(comparison, comparison.run(names), len(names))
    return status or run_programs(arguments.k)


def run_programs(selection: str) -> int:
    """Run the programs of this package, and return 1 where one of them failed."""
    chosen = ["-k", selection] if selection else []
    command = [sys.executable, "-m", "pytest", "-m", "foreign", "tests/foreign", *chosen]
    status = subprocess.run(command, cwd=ROOT, check=False).returncode
    return int(status not in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED))


def show(comparison: Comparison, cases: Sequence[Case], known: int) -> int:
    """Print a table with sums, and return the exit status."""
    width = max((len(str(case)) for case in cases), default=0)
    counts: Counter[str] = Counter()
    for case in cases:
        plain, traced = comparison.plain[case], comparison.traced[case]
        changed, alarm = comparison.is_changed(case), comparison.is_false_alarm(case)
        note = "OUTCOME CHANGED" if changed else "FALSE ALARM" if alarm else ""
        if not note and traced.status not in QUIET:
            note = ON_PURPOSE.get(case.name, "it did not pass")
        counts.update([traced.status, *(["changed"] if changed else ["alarm"] if alarm else [])])
        print(f"{case!s:{width}}  {plain.ending:9}  {traced.ending:9}  {traced.status:8}  {note}")
        if changed or alarm:
            print(f"    plain: {plain.detail}\n    traced: {traced.detail}\n    {traced.summary}")
    verdicts = ", ".join(f"{counts[word]} {word}" for word in sorted({*QUIET, "hung", "diverged"}))
    print(
        f"{known} tests of torch {torch.__version__}, {len(cases)} of which run here: "
        f"{len(cases) - counts['changed']} of {len(cases)} kept their outcome, "
        f"{counts['alarm']} false alarms; verdicts: {verdicts}"
    )
    return int(bool(counts["changed"] or counts["alarm"]))


def _digest_of_sources() -> str:
    digest = hashlib.sha256()
    for source in SOURCES:
        for file in sorted((ROOT / source).rglob("*.py")):
            digest.update(file.read_bytes())
    return digest.hexdigest()[:12]


if __name__ == "__main__":
    sys.exit(main())
