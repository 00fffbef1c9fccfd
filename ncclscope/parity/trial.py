"""A function under test: run as several ranks, judged, and told about when it fails."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ncclscope.analysis.verdict import Verdict
from ncclscope.analysis.wording import plural, ranks_text, sentence
from ncclscope.errors import NcclscopeError, UsageError
from ncclscope.launch.processes import (
    STALL_SECONDS,
    START_METHODS,
    TIMEOUT_SECONDS,
    Outcome,
    remove,
    rings_directory,
    run_ranks,
)
from ncclscope.parity.report import Report, check_run

__all__ = ["ParityError", "Settings", "Skipped", "Trial"]

BACKENDS = ("gloo", "nccl", "mpi", "ucc")


class ParityError(NcclscopeError, AssertionError):
    """The ranks did not do what they should; the message is for a person to read.

    Args:
        message: All of it, a screen of many lines.
        help: What to do about it, one line; may be empty.
        summary: What there is to say in one line; the message's first where it is empty.
    """

    exit_status = 1

    def __init__(self, message: str, help: str = "", summary: str = "") -> None:
        super().__init__(message, help)
        self.summary = summary or message.partition("\n")[0]


class Skipped(Exception):
    """All ranks skipped the test; the message is why."""


@dataclass(frozen=True)
class Settings:
    """How a function is run, and what it is held to.

    Attributes:
        ranks: Processes.
        backend: Of their process group.
        start_method: ``fork`` or ``spawn``; None for what the backend needs.
        baseline: File with the stored sequence; None where the ranks need only agree.
        ignore_shapes: Whether sizes do not count in it.
        stall_after: Seconds without a recorded call that count as a hang.
        timeout: Seconds after which the ranks are ended whatever they do.
    """

    ranks: int = 2
    backend: str = "gloo"
    baseline: str | None = None
    ignore_shapes: bool = False
    stall_after: float = STALL_SECONDS
    timeout: float = TIMEOUT_SECONDS
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
                raise UsageError(f"collective_parity: {name}={value!r} is not what it should be")
        if self.backend not in BACKENDS:
            raise UsageError(
                f"collective_parity: backend={self.backend!r}", f"give one of {', '.join(BACKENDS)}"
            )
        if self.start_method not in (None, *START_METHODS):
            raise UsageError(
                f"collective_parity: start_method={self.start_method!r}",
                f"give one of {', '.join(START_METHODS)}",
            )
        for name in ("ranks", "stall_after", "timeout"):
            if getattr(self, name) <= 0:
                raise UsageError(f"collective_parity: {name} must be more than 0")


class Trial:
    """Runs functions under one test's settings.

    Args:
        settings: The test's.
        folder: Where a relative baseline is.
        traced: Whether calls are recorded and compared. Where they are not, the function
            still runs in as many processes.
        update: Store the sequence in the baseline.
        keep: Where the rings of a failure go; None for nowhere.
        verdict_screen: Makes the text of a verdict.
        baseline_screen: Makes the text of how a run differs from its baseline.

    Attributes:
        report: What became of the last run; None where it was not traced or failed before.
    """

    def __init__(
        self,
        settings: Settings,
        folder: Path,
        *,
        traced: bool = True,
        update: bool = False,
        keep: Path | None = None,
        verdict_screen: Callable[[Verdict], str],
        baseline_screen: Callable[[Report], str],
    ) -> None:
        self.settings = settings
        self.folder = folder
        self.traced = traced
        self.update = update
        self.keep = keep
        self._verdict_screen = verdict_screen
        self._baseline_screen = baseline_screen
        self.report: Report | None = None

    def run(self, function: Callable[..., Any], *arguments: Any, **keywords: Any) -> list[Any]:
        """Calls ``function(rank, ...)`` on each rank.

        Returns:
            What the ranks returned.

        Raises:
            ParityError: A rank raised or died, they hang or disagree, or their calls are not
                those that are stored.
            Skipped: All ranks skipped.
        """
        rings = rings_directory() if self.traced else None
        failed = True
        try:
            outcome = run_ranks(
                function,
                *arguments,
                keywords=keywords,
                ranks=self.settings.ranks,
                backend=self.settings.backend,
                start_method=self.settings.start_method,
                rings=rings,
                stall_after=self.settings.stall_after,
                timeout=self.settings.timeout,
            )
            _show(outcome)
            if outcome.ending == "skipped":
                failed = False
                raise Skipped("; ".join(dict.fromkeys(outcome.skipped.values())))
            self.report = self._judge(rings, outcome) if rings is not None else None
            text = self._complaint(outcome, self.report)
            failed = bool(text)
        finally:
            if rings is not None:
                self._put_away(rings, failed)
        if text:
            cause = self.report.verdict.cause if self.report is not None else None
            raise ParityError(text, summary=cause.summary if cause is not None else "")
        return list(outcome.results)

    def _judge(self, rings: Path, outcome: Outcome) -> Report:
        from ncclscope.readers import open_run

        baseline = None
        if self.settings.baseline is not None and outcome.ending == "finished":
            baseline = self.folder / self.settings.baseline
            if not self.update and not baseline.exists():
                raise ParityError(
                    f"{baseline} does not exist", "write it with: pytest --ncclscope-update"
                )
        run = open_run(rings)
        # Where they are now they will not be for long.
        run = replace(run, sources=(str(self.keep),) if self.keep is not None else ())
        return check_run(
            run,
            baseline,
            update=self.update,
            shapes=not self.settings.ignore_shapes,
            stall_seconds=self.settings.stall_after,
        )

    def _complaint(self, outcome: Outcome, report: Report | None) -> str:
        """Returns what is wrong, as a screen; empty when nothing is."""
        parts = [_headline(outcome, self.settings)]
        if report is not None:
            parts += self._screens(outcome, report)
        elif outcome.ending == "timeout":
            parts.append("Run pytest with --ncclscope to see which call they wait in.")
        shown: dict[str, list[int]] = {}
        for failure in outcome.failures:
            shown.setdefault(failure.trace, []).append(failure.rank)
        parts += [
            f"{sentence(ranks_text(ranks))} raised:\n\n{trace}"
            for trace, ranks in shown.items()
            if trace
        ]
        return "\n\n".join(filter(None, parts))

    def _screens(self, outcome: Outcome, report: Report) -> list[str]:
        parts = []
        if report.verdict.cause is not None or outcome.ending in ("stalled", "timeout"):
            if outcome.ending == "finished":
                parts.append(
                    f"All {plural(self.settings.ranks, 'rank')} returned, but they do not agree."
                )
            parts.append(self._verdict_screen(report.verdict))
        elif outcome.ending == "finished" and not report.agree:
            parts.append(f"No ring was left by {ranks_text(report.verdict.run.missing)}.")
        if report.outcome == "differs":
            screen = self._baseline_screen(report)
            parts.append(screen.replace("with --update.", "with pytest --ncclscope-update."))
        return parts

    def _put_away(self, rings: Path, failed: bool) -> None:
        if failed and self.keep is not None:
            import shutil

            from ncclscope.private import make_private
            from ncclscope.ring import layout

            make_private(self.keep)
            # Of an earlier example of hypothesis, or an earlier day.
            for old in self.keep.glob(f"*{layout.SUFFIX}"):
                old.unlink(missing_ok=True)
            shutil.copytree(rings, self.keep, dirs_exist_ok=True)
        remove(rings)


def _headline(outcome: Outcome, settings: Settings) -> str:
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


def _show(outcome: Outcome) -> None:
    """Prints what the ranks printed, for pytest to capture like anything a test prints."""
    said: Sequence[tuple[int, str]] = sorted(outcome.output.items())
    for rank, text in said:
        if text.strip():
            print(f"--- rank {rank} ---\n{text.rstrip()}")
