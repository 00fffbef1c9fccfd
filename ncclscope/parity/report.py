"""Whether a run is as it should be: its ranks agree, and they post what is stored."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ncclscope.analysis.verdict import Verdict, diagnose
from ncclscope.errors import InputError
from ncclscope.model import Run
from ncclscope.parity.changes import Change, changes
from ncclscope.parity.folding import fold
from ncclscope.parity.hunks import folded_calls
from ncclscope.parity.lockfile import Baseline, read_baseline, render_baseline, write_baseline
from ncclscope.parity.sequence import Section, Vocabulary, sections

__all__ = ["Mismatch", "Report", "check_run"]

PAIRS_TRIED = 64
"""Sections without a counterpart that are held against each other to find the most alike."""


@dataclass(frozen=True)
class Mismatch:
    """A sequence that only the run or only the baseline has, or one that has changed.

    Attributes:
        run: Of the run; None for one that no rank posts any more.
        stored: Of the baseline; None for a new one.
        changes: What turns the stored one into that of the run.
    """

    run: Section | None
    stored: Section | None
    changes: tuple[Change, ...] = ()

    @property
    def line(self) -> int | None:
        """Line of the baseline where the first change is."""
        places = self.stored.places if self.stored is not None else ()
        if not places:
            return None
        first = self.changes[0].a_start if self.changes else 0
        return places[min(first, len(places) - 1)]

    def to_dict(self, texts: Sequence[str]) -> dict[str, Any]:
        """Returns the mismatch for JSON."""
        run = () if self.run is None else self.run.lines
        stored = () if self.stored is None else self.stored.lines
        return {
            "ranks": list(self.run.ranks) if self.run is not None else [],
            "stored": self.stored is not None,
            "line": self.line,
            "hunks": [
                {
                    "stored": {
                        "call": change.a_start + 1,
                        "count": change.a_stop - change.a_start,
                        "calls": folded_calls(fold(stored[change.a_start : change.a_stop]), texts),
                    },
                    "run": {
                        "call": change.b_start + 1,
                        "count": change.b_stop - change.b_start,
                        "calls": folded_calls(fold(run[change.b_start : change.b_stop]), texts),
                    },
                }
                for change in self.changes
            ],
        }


@dataclass(frozen=True)
class Report:
    """The answer to ``ncclscope check``.

    Attributes:
        verdict: Whether the ranks agree.
        baseline: The file; None when none was asked for.
        outcome: ``same``, ``differs``, ``written``, ``unchanged`` (to be written, and already
            so), ``skipped`` (the ranks do not agree, so no sequence is theirs) or ``none``.
        mismatches: Where it differs.
        texts: What the lines of the sections stand for.
        sections: Distinct sequences of the run.
        calls: Calls in them.
    """

    verdict: Verdict
    baseline: Path | None
    outcome: str
    mismatches: tuple[Mismatch, ...] = ()
    texts: Sequence[str] = ()
    sections: int = 0
    calls: int = 0

    @property
    def agree(self) -> bool:
        """Whether all ranks are there and posted the same."""
        return self.verdict.status == "ok"

    @property
    def exit_status(self) -> int:
        """0 when all is as it should be, 3 when the records cannot tell, else 1."""
        if self.verdict.status == "unknown" and self.outcome != "differs":
            return self.verdict.exit_status
        return 0 if self.agree and self.outcome != "differs" else 1

    def to_dict(self) -> dict[str, Any]:
        """Returns the verdict's JSON document with the baseline's part added."""
        document = self.verdict.to_dict()
        document["baseline"] = None
        if self.baseline is not None:
            document["baseline"] = {
                "path": str(self.baseline),
                "status": self.outcome,
                "sections": self.sections,
                "calls": self.calls,
                "differences": [mismatch.to_dict(self.texts) for mismatch in self.mismatches],
            }
        return document


def check_run(
    run: Run,
    baseline: Path | None = None,
    *,
    update: bool = False,
    shapes: bool = True,
    stall_seconds: float = 2.0,
) -> Report:
    """Checks a run.

    Args:
        run: From :func:`ncclscope.open_run`.
        baseline: The stored sequence, if it is to be compared with one.
        update: Store the run's instead, provided that its ranks agree.
        shapes: Whether sizes count. Where a baseline says that they do not, they never do.
        stall_seconds: As for :func:`ncclscope.diagnose`.

    Raises:
        InputError: There is no baseline, or it or the run is not fit to be compared.
    """
    words = Vocabulary()
    stored: Baseline | None = None
    if baseline is not None and (not update or baseline.exists()):
        try:
            stored = read_baseline(baseline, words, shapes=shapes)
        except InputError:
            if not update:
                raise
    verdict = diagnose(run, stall_seconds=stall_seconds)
    if baseline is None:
        return Report(verdict, None, "none")
    if verdict.status != "ok":
        return Report(verdict, baseline, "skipped")
    if stored is not None:
        shapes = stored.shapes
    found = sections(run, words, shapes=shapes)
    mismatches = _compare(found, stored.sections if stored is not None else ())
    outcome = "differs" if mismatches else "same"
    if update:
        outcome = "unchanged" if stored is not None and not mismatches else "written"
        if outcome == "written":
            write_baseline(baseline, render_baseline(found, words, shapes=shapes))
    return Report(
        verdict,
        baseline,
        outcome,
        tuple(mismatches),
        words.texts,
        len(found),
        sum(len(section.lines) for section in found),
    )


def _compare(run: Sequence[Section], stored: Sequence[Section]) -> list[Mismatch]:
    """Pairs what is not the same on both sides, the most alike first."""
    known = {tuple(section.lines) for section in stored}
    current = {tuple(section.lines) for section in run}
    new = [section for section in run if tuple(section.lines) not in known]
    gone = [section for section in stored if tuple(section.lines) not in current]
    found: list[Mismatch] = []
    if new and gone:
        few = len(new) * len(gone) <= PAIRS_TRIED
        for section in list(new):
            if not gone:
                break
            candidates = [
                (other, tuple(changes(other.lines, section.lines)))
                for other in (gone if few else gone[:1])
            ]
            other, changed = min(candidates, key=lambda candidate: _size(candidate[1]))
            found.append(Mismatch(section, other, changed))
            new.remove(section)
            gone.remove(other)
    found += [Mismatch(section, None, (Change(0, 0, 0, len(section.lines)),)) for section in new]
    found += [Mismatch(None, section, (Change(0, len(section.lines), 0, 0),)) for section in gone]
    return found


def _size(found: Sequence[Change]) -> int:
    return sum(change.a_stop - change.a_start + change.b_stop - change.b_start for change in found)
