"""Screen of ``ncclscope check``."""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.text import Text

from ncclscope.parity.hunks import rows
from ncclscope.parity.report import Mismatch, Report
from ncclscope.render.console.difference import render_rows
from ncclscope.render.console.verdict import render_verdict
from ncclscope.wording.names import made_text, plural, ranks_text

_OUTCOMES = {
    "same": "the same calls",
    "differs": "not the same calls",
    "written": "written",
    "unchanged": "not written, nothing has changed",
    "skipped": "not compared, since the ranks do not agree",
}


def render_report(report: Report, width: int) -> RenderableType:
    """Return the verdict and the comparison with the baseline; ``width`` is in columns."""
    parts: list[RenderableType] = []
    if report.agree:
        run = report.verdict.run
        lost = sum(rank.lost for rank in run.ranks)
        parts.append(
            Text(
                f"{plural(len(run.ranks), 'rank')} agree{'s' * (len(run.ranks) == 1)}, "
                f"{made_text(run.ranks)}" + (f", {lost} of them overwritten" if lost else ""),
                style="green",
            )
        )
        parts += [Text(f"  {note}", style="dim") for note in run.notes]
    else:
        parts.append(render_verdict(report.verdict, width))
    if report.baseline is not None:
        parts.append(render_baseline_part(report, width))
    return Group(*parts)


def render_baseline_part(report: Report, width: int) -> RenderableType:
    """Return the result of the baseline, with its differences; ``width`` is in columns."""
    style = {"differs": "bold red", "skipped": "yellow"}.get(report.outcome, "green")
    text = Text(f"baseline: {_OUTCOMES[report.outcome]}", style=style)
    if report.sections:
        counts = f"{plural(report.sections, 'section')}, {plural(report.calls, 'call')}"
        text.append(f" ({counts})", style="not bold dim")
    text.append(f"  {report.baseline}", style="not bold dim")
    parts: list[RenderableType] = [text]
    if report.outcome == "differs":
        for mismatch in report.mismatches:
            parts.append(_heading(mismatch))
            stored = mismatch.stored.lines if mismatch.stored is not None else ()
            own = mismatch.run.lines if mismatch.run is not None else ()
            parts.append(render_rows(rows(stored, own, mismatch.changes, report.texts), width))
        parts.append(Text("\nIf the change is intended, store it with --update.", style="dim"))
    return Group(*parts)


def _heading(mismatch: Mismatch) -> Text:
    if mismatch.run is None:
        return Text(f"\n@@ line {mismatch.line}: no rank posts this now @@", style="cyan")
    who = ranks_text(mismatch.run.ranks)
    if mismatch.stored is None:
        return Text(f"\n@@ {who}: not stored @@", style="cyan")
    where = f"line {mismatch.line}, " if mismatch.line is not None else ""
    return Text(f"\n@@ {where}{who}: \N{MINUS SIGN} stored, + now @@", style="cyan")
