"""Check of a run: its ranks agree with each other and with the baseline."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ncclscope.engine.agreement import HANG_SECONDS
from ncclscope.engine.verdict import EXIT_STATUSES, Verdict, diagnose
from ncclscope.errors import InputError
from ncclscope.model import Run
from ncclscope.model.sites import frame_of
from ncclscope.parity.changes import Change, changes
from ncclscope.parity.folding import fold
from ncclscope.parity.hunks import folded_calls
from ncclscope.parity.lockfile import Baseline, read_baseline, render_baseline, write_baseline
from ncclscope.parity.sequence import CallStream, Section, Vocabulary, sections

PAIRS_TRIED = 64
"""Most pairs of unmatched sections that are compared to find the most similar ones."""


@dataclass(frozen=True)
class Mismatch:
    """A sequence that differs between run and baseline, or is in one of them only.

    Attributes:
        run: Sequence of the run; None if no rank posts the stored one now.
        stored: Sequence of the baseline; None for a new one.
        changes: Changes that turn the stored one into that of the run.
        site: Line of the program that posts the first changed call, or else its neighbour.
    """

    run: Section | None
    stored: Section | None
    changes: tuple[Change, ...] = ()
    site: str | None = None

    @property
    def line(self) -> int | None:
        """Line number of the first change in the baseline."""
        places = self.stored.places if self.stored is not None else ()
        if not places:
            return None
        first = self.changes[0].a_start if self.changes else 0
        return places[min(first, len(places) - 1)]

    def to_dict(self, texts: Sequence[str]) -> dict[str, Any]:
        """Return the mismatch for JSON; ``texts`` are those of the vocabulary."""
        run = () if self.run is None else self.run.lines
        stored = () if self.stored is None else self.stored.lines
        return {
            "ranks": list(self.run.ranks) if self.run is not None else [],
            "stored": self.stored is not None,
            "line": self.line,
            "site": frame_of(self.site),
            "hunks": [
                {
                    name: {
                        "call": low + 1,
                        "count": high - low,
                        "calls": folded_calls(fold(lines[low:high]), texts),
                    }
                    for name, lines, low, high in (
                        ("stored", stored, *change[:2]),
                        ("run", run, *change[2:]),
                    )
                }
                for change in self.changes
            ],
        }


@dataclass(frozen=True)
class Report:
    """Result of ``ncclscope check``.

    Attributes:
        verdict: Verdict on the ranks' agreement.
        baseline: File of the baseline; None without one.
        outcome: ``same``, ``differs``, ``written``, ``unchanged`` (nothing to write), ``skipped``
            (the ranks do not agree, so nothing is compared) or ``none`` (no baseline).
        mismatches: Sequences that differ.
        texts: Texts of the vocabulary.
        sections: Number of distinct sequences of the run.
        calls: Number of calls in them.
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
        """Exit status: 0 if all agree, 1 if some differ, 3 if the records do not show it.

        Records that are incomplete show no agreement, and cannot be compared with a baseline.
        """
        if self.verdict.in_trouble or self.outcome == "differs":
            return 1
        return 0 if self.agree else EXIT_STATUSES["unknown"]

    def to_dict(self) -> dict[str, Any]:
        """Return the verdict's JSON document with the baseline's part added."""
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
    live_stall_seconds: float = HANG_SECONDS,
) -> Report:
    """Check a run, and compare it with a baseline or store one.

    Args:
        run: Run from :func:`ncclscope.open_run`.
        baseline: File of the baseline; None for none.
        update: Store the sequence of the run, provided that its ranks agree.
        shapes: Whether to compare tensor sizes; a baseline without sizes overrides it.
        stall_seconds: Seconds of waiting that count as a hang, as for :func:`ncclscope.diagnose`.
        live_stall_seconds: The same for processes that were still running.

    Raises:
        InputError: The baseline is missing or damaged, or the run cannot be compared.
    """
    words = Vocabulary()
    stored: Baseline | None = None
    if baseline is not None and (not update or baseline.exists()):
        try:
            stored = read_baseline(baseline, words, shapes=shapes)
        except InputError:
            if not update:
                raise
    verdict = diagnose(run, stall_seconds=stall_seconds, live_stall_seconds=live_stall_seconds)
    if baseline is None:
        return Report(verdict, None, "none")
    if verdict.status != "ok":
        return Report(verdict, baseline, "skipped")
    if stored is not None:
        shapes = stored.shapes
    found = sections(run, words, shapes=shapes)
    differing = _compare(found, stored.sections if stored is not None else ())
    mismatches = [_located(one, run) for one in differing]
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
    """Pair the sequences that are not on both sides, each with the most similar one."""
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


def _located(mismatch: Mismatch, run: Run) -> Mismatch:
    """Return a mismatch with the line of the program at which the run first differs."""
    if mismatch.run is None or not mismatch.run.lines or not mismatch.changes:
        return mismatch
    calls = CallStream(run.by_rank[mismatch.run.ranks[0]]).calls
    call = calls[min(mismatch.changes[0].b_start, len(calls) - 1)]
    return replace(mismatch, site=call.user_site or call.full_site or call.site)


def _size(found: Sequence[Change]) -> int:
    return sum(change.a_stop - change.a_start + change.b_stop - change.b_start for change in found)
