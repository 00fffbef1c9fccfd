"""Test of a function: run it as several ranks, check their calls, and report failures."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ncclscope.engine.verdict import Verdict
from ncclscope.errors import NcclscopeError, UsageError
from ncclscope.launch import processes
from ncclscope.model.ties import grouped
from ncclscope.parity.report import Report, check_run
from ncclscope.parity.unfinished import sample, unless_ok
from ncclscope.wording.names import plural, ranks_text, sentence

_STALL_AT_TIMEOUT = 2.0
"""Ranks that did not return in time were stuck if they had waited for this many seconds."""
BACKENDS = ("gloo", "nccl", "mpi", "ucc")


class ParityError(NcclscopeError, AssertionError):
    """The ranks failed, hung or diverged.

    Args:
        message: Report of many lines.
        help: What to do about it, one line; may be empty.
        summary: Summary in one line (default: first line of the message).
    """

    exit_status = 1

    def __init__(self, message: str, help: str = "", summary: str = "") -> None:
        super().__init__(message, help)
        self.summary = summary or message.partition("\n")[0]


class Skipped(Exception):
    """All ranks skipped the test; the message is the reason."""


@dataclass(frozen=True)
class Settings:
    """Settings of a test.

    Attributes:
        ranks: Number of processes.
        backend: Backend of their process group.
        start_method: ``fork`` or ``spawn``; None for the one that the backend needs.
        baseline: File of the baseline; None to compare the ranks only.
        ignore_shapes: Whether to ignore tensor sizes in the baseline.
        stall_after: Report a hang after this many seconds without a recorded call.
        timeout: Kill the ranks after this many seconds.
    """

    ranks: int = 2
    backend: str = "gloo"
    baseline: str | None = None
    ignore_shapes: bool = False
    stall_after: float = processes.STALL_SECONDS
    timeout: float = processes.TIMEOUT_SECONDS
    start_method: str | None = None

    def __post_init__(self) -> None:
        for name, kinds in (
            ("ranks", int),
            ("ignore_shapes", bool),
            ("stall_after", (int, float)),
            ("timeout", (int, float)),
            ("baseline", (str, type(None))),
        ):
            value = getattr(self, name)
            if not isinstance(value, kinds) or (name != "ignore_shapes" and value is True):
                raise UsageError(f"collective_parity: {name}={value!r} has the wrong type")
        if self.backend not in BACKENDS:
            raise UsageError(
                f"collective_parity: backend={self.backend!r}", f"give one of {', '.join(BACKENDS)}"
            )
        if self.start_method not in (None, *processes.START_METHODS):
            raise UsageError(
                f"collective_parity: start_method={self.start_method!r}",
                f"give one of {', '.join(processes.START_METHODS)}",
            )
        for name in ("ranks", "stall_after", "timeout"):
            if getattr(self, name) <= 0:
                raise UsageError(f"collective_parity: {name} must be more than 0")


@dataclass
class Trial:
    """Runs functions under one test's settings.

    Attributes:
        settings: Settings of the test.
        folder: Directory of a relative baseline.
        verdict_screen: Returns a verdict as text.
        baseline_screen: Returns the comparison of a run with its baseline as text.
        traced: Whether to record and compare calls; untraced functions run in as many processes.
        update: Whether to store the sequence in the baseline.
        keep: Directory for the rings of a failure; None to discard them.
        report: Result of the last run; None if it was untraced or failed before the check.
    """

    settings: Settings
    folder: Path
    verdict_screen: Callable[[Verdict], str]
    baseline_screen: Callable[[Report], str]
    traced: bool = True
    update: bool = False
    keep: Path | None = None
    report: Report | None = None

    def run(self, function: Callable[..., Any], *arguments: Any, **keywords: Any) -> list[Any]:
        """Call ``function(rank, ...)`` on each rank.

        Args:
            function: A function that can be pickled.
            arguments: Its arguments after the rank.
            keywords: Its keyword arguments.

        Returns:
            Results of the ranks.

        Raises:
            ParityError: A rank raised or died, the ranks hang or disagree, or their calls differ
                from the baseline.
            Skipped: All ranks skipped the test.
        """
        rings = processes.rings_directory() if self.traced else None
        failed = True
        try:
            outcome = processes.run_ranks(
                function,
                *arguments,
                keywords=keywords,
                ranks=self.settings.ranks,
                backend=self.settings.backend,
                start_method=self.settings.start_method,
                rings=rings,
                stall_after=self.settings.stall_after,
                timeout=self.settings.timeout,
                before_kill=lambda pids: sample(rings, pids) if rings is not None else None,
            )
            _show(outcome)
            if outcome.ending == "skipped":
                failed = False
                raise Skipped("; ".join(dict.fromkeys(outcome.skipped.values())))
            self.report = self._check(rings, outcome) if rings is not None else None
            text = self._complaint(outcome, self.report)
            failed = bool(text)
        finally:
            if rings is not None:
                self._put_away(rings, failed)
        if text:
            cause = self.report.verdict.cause if self.report is not None else None
            raise ParityError(text, summary=cause.summary if cause is not None else "")
        return list(outcome.results)

    def _check(self, rings: Path, outcome: processes.Outcome) -> Report:
        from ncclscope.readers import open_run

        baseline = None
        if self.settings.baseline is not None and outcome.ending == "finished":
            baseline = self.folder / self.settings.baseline
            if not self.update and not baseline.exists():
                raise ParityError(
                    f"{baseline} does not exist", "write it with: pytest --ncclscope-update"
                )
        run = open_run(rings)
        # Report the directory where the rings are kept: this one is temporary.
        run = replace(run, sources=(str(self.keep),) if self.keep is not None else ())
        stall = self.settings.stall_after
        if outcome.ending == "timeout":
            stall = min(stall, _STALL_AT_TIMEOUT)
        report = check_run(
            run,
            baseline,
            update=self.update,
            shapes=not self.settings.ignore_shapes,
            stall_seconds=stall,
            live_stall_seconds=stall,
        )
        if outcome.ending in ("stalled", "timeout"):
            report = replace(report, verdict=unless_ok(report.verdict, outcome.waiting))
        return report

    def _complaint(self, outcome: processes.Outcome, report: Report | None) -> str:
        """Return the report of a failure; empty without one."""
        parts = [_headline(outcome, self.settings)]
        if report is not None:
            parts += self._screens(outcome, report)
        elif outcome.ending == "timeout":
            parts.append("Run pytest with --ncclscope to see which call they wait in.")
        by_trace = grouped(outcome.failures, lambda failure: failure.trace)
        parts += [
            f"{sentence(ranks_text(one.rank for one in failures))} raised:\n\n{trace}"
            for trace, failures in by_trace.items()
            if trace
        ]
        return "\n\n".join(filter(None, parts))

    def _screens(self, outcome: processes.Outcome, report: Report) -> list[str]:
        parts = []
        if report.verdict.cause is not None or outcome.ending in ("stalled", "timeout"):
            if outcome.ending == "finished":
                parts.append(
                    f"All {plural(self.settings.ranks, 'rank')} returned, but they do not agree."
                )
            parts.append(self.verdict_screen(report.verdict))
        elif outcome.ending == "finished" and not report.agree:
            parts.append(f"No ring was left by {ranks_text(report.verdict.run.missing)}.")
        if report.outcome == "differs":
            screen = self.baseline_screen(report)
            parts.append(screen.replace("with --update.", "with pytest --ncclscope-update."))
        return parts

    def _put_away(self, rings: Path, failed: bool) -> None:
        if failed and self.keep is not None:
            from ncclscope.private import make_private
            from ncclscope.readers.bundle import CAPTURE_FILE
            from ncclscope.ring import layout

            make_private(self.keep)
            # Remove rings of an earlier example of hypothesis, or of an earlier run.
            for old in (self.keep / CAPTURE_FILE, *self.keep.glob(f"*{layout.SUFFIX}")):
                old.unlink(missing_ok=True)
            shutil.copytree(rings, self.keep, dirs_exist_ok=True)
        shutil.rmtree(rings, ignore_errors=True)


def _headline(outcome: processes.Outcome, settings: Settings) -> str:
    waiting = ranks_text(outcome.waiting)
    if outcome.skipped:
        others = [rank for rank in range(settings.ranks) if rank not in outcome.skipped]
        reasons = "; ".join(dict.fromkeys(outcome.skipped.values()))
        text = (
            f"{sentence(ranks_text(outcome.skipped))} skipped the test ({reasons}) and "
            f"{ranks_text(others)} did not: that is a divergence, skip on all ranks or on none."
        )
        errors = [f"{sentence(ranks_text([one.rank]))}: {one.error}" for one in outcome.failures]
        return "\n".join([text, *errors])
    if outcome.ending in ("stalled", "timeout"):
        stalled = f"Nothing was recorded for {settings.stall_after:g} s"
        begin = stalled if outcome.ending == "stalled" else f"Not over after {settings.timeout:g} s"
        returned = [rank for rank in range(settings.ranks) if rank not in outcome.waiting]
        rest = f", {ranks_text(returned)} did" if returned else ""
        return f"{begin}: {waiting} did not return{rest}."
    if outcome.ending == "failed":
        first = outcome.failures[0]
        text = f"{sentence(ranks_text([first.rank]))} of {settings.ranks}: {first.error}"
        others = [failure.rank for failure in outcome.failures[1:]]
        return f"{text}\nThen {ranks_text(others)} failed, too." if others else text
    return ""


def _show(outcome: processes.Outcome) -> None:
    """Print the output of the ranks, for pytest to capture."""
    printed: Sequence[tuple[int, str]] = sorted(outcome.output.items())
    for rank, text in printed:
        if text.strip():
            print(f"--- rank {rank} ---\n{text.rstrip()}")
