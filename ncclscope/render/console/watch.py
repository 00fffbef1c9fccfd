"""The table of a job that is being watched."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rich.console import Group, RenderableType
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from ncclscope.analysis.wording import plural, ranks_text, shape_text
from ncclscope.model import State
from ncclscope.readers.ring.cursor import Words
from ncclscope.render.console.blocks import COLOURS, cause_panel, status_panel
from ncclscope.render.tui.standing import farthest
from ncclscope.untrusted import printable
from ncclscope.watch.watch import Look

__all__ = ["one_line", "render_look"]

_NAME_COLUMNS, _COMM_COLUMNS = 24, 44
"""Columns that a rank and each of its communicators take where they stand in one row."""
_OTHER_LINES = 10
"""Lines above and below the ranks."""
_CALM = 1.0
"""Seconds without progress that are not worth a number."""


def render_look(look: Look, width: int, height: int = 10_000, source: str = "") -> RenderableType:
    """Returns the screen for a terminal of so many columns and lines."""
    parts: list[RenderableType] = [_heading(look, source)]
    if look.in_trouble:
        parts.append(_panel(look))
    if look.ranks:
        labels = _labels(look.ranks)
        is_wide = _NAME_COLUMNS + _COMM_COLUMNS * len(labels) <= width
        most = max(4, (height - _OTHER_LINES) // (1 if is_wide else max(1, len(labels))))
        shown = _most_telling(look, most)
        parts.append(_wide(look, shown, labels) if is_wide else _narrow(look, shown))
        if len(shown) < len(look.ranks):
            hidden = len(look.ranks) - len(shown)
            parts.append(Text(f" and {plural(hidden, 'rank')} more", style="dim"))
    if look.in_trouble and source:
        parts.append(Text(f" ncclscope diagnose {source}", style="dim"))
    return Group(*parts)


def one_line(look: Look) -> str:
    """Returns a status in a line, for a log."""
    said = f"{look.status}: {plural(len(look.ranks), 'rank')}, {look.activity}"
    cause = look.verdict.cause if look.verdict is not None else None
    return f"{look.status}: {printable(cause.summary)}" if cause is not None else said


def _heading(look: Look, source: str) -> Text:
    text = Text()
    status = look.status
    word = {"waiting": "WAITING", "over": "OVER"}.get(look.activity, status.upper())
    if look.in_trouble:
        word = status.upper()
    text.append(f"{word} ", style=f"bold {COLOURS[status]}")
    run = look.verdict.run if look.verdict is not None else None
    parts = []
    if look.activity == "waiting":
        parts.append("for a ring to appear")
    elif run is not None:
        parts.append(f"{len(run.ranks)} of {plural(run.expected, 'rank')}")
        if run.missing and not look.in_trouble:
            parts.append(f"{ranks_text(run.missing)} not here")
        if look.activity != "over" and look.status != "hung":
            parts.append(look.activity)
    text.append(", ".join(parts))
    if source:
        text.append(f"  {printable(source)}", style="dim")
    return text


def _panel(look: Look) -> Panel:
    assert look.verdict is not None
    cause = look.verdict.cause
    if cause is None:
        return status_panel(look.status, look.status)
    return cause_panel(look.status, cause)


def _most_telling(look: Look, most: int) -> list[Words]:
    """Returns the ranks that fit, in order; of more, those that differ, lag or stand still."""
    if len(look.ranks) <= most:
        return list(look.ranks)
    heads = farthest(look.ranks)
    cause = look.verdict.cause if look.verdict is not None and look.in_trouble else None
    odd = () if cause is None else (*cause.diverging_ranks, *cause.candidate_ranks)

    def weight(words: Words) -> tuple[bool, int, float]:
        lag = sum(heads[key] - strand.seq for key, strand in words.strands.items())
        return words.rank not in odd, -lag, words.moved_at

    chosen = {words.path for words in sorted(look.ranks, key=weight)[:most]}
    return [words for words in look.ranks if words.path in chosen]


def _wide(look: Look, shown: Sequence[Words], labels: Sequence[str]) -> Table:
    table = _table()
    for heading in ("rank", "pid"):
        table.add_column(heading, justify="right", no_wrap=True)
    for label in labels:
        table.add_column(label, justify="right", no_wrap=True)
        table.add_column("lag", justify="right", no_wrap=True, min_width=4)
        table.add_column("last call", no_wrap=True, overflow="ellipsis")
    table.add_column("quiet", justify="right", no_wrap=True)
    heads = farthest(look.ranks)
    for words in shown:
        cells = dict(_named(words))
        row = [_rank(words), str(words.pid or "")]
        for label in labels:
            key = cells.get(label)
            row += ["", "", ""] if key is None else _cell(words, key, heads)
        row.append(_quiet(look, words))
        table.add_row(*map(Text, row), style=_style(look, words))
    return table


def _narrow(look: Look, shown: Sequence[Words]) -> Table:
    table = _table()
    table.add_column("rank", justify="right", no_wrap=True)
    table.add_column("pid", justify="right", no_wrap=True)
    table.add_column("comm", no_wrap=True)
    table.add_column("calls", justify="right", no_wrap=True)
    table.add_column("lag", justify="right", no_wrap=True, min_width=4)
    table.add_column("last call", no_wrap=True, overflow="ellipsis", ratio=1)
    table.add_column("quiet", justify="right", no_wrap=True)
    heads = farthest(look.ranks)
    for words in shown:
        style = _style(look, words)
        name = [_rank(words), str(words.pid or "")]
        quiet = _quiet(look, words)
        for label, key in _named(words):
            row = [*name, label, *_cell(words, key, heads), quiet]
            table.add_row(*map(Text, row), style=style)
            name, quiet = ["", ""], ""
        if name[1]:
            table.add_row(*map(Text, [*name, "", "", "", "no calls", quiet]), style=style)
    return table


def _named(words: Words) -> list[tuple[str, str]]:
    """Returns names and keys of the communicators that a process has used."""
    found: dict[str, str] = {}
    for key, strand in words.strands.items():
        if not (strand.seq or strand.p2p):
            continue
        label = printable(strand.comm.label) or f"comm-{printable(key[-8:])}"
        number, free = 2, label
        while free in found:
            free, number = f"{label} #{number}", number + 1
        found[free] = key
    return sorted(found.items())


def _cell(words: Words, key: str, heads: dict[str, int]) -> list[str]:
    strand = words.strands[key]
    lag = heads[key] - strand.seq
    behind = f"\N{MINUS SIGN}{lag}" if lag else ""
    last = words.last(key)
    if last is None:
        return [str(strand.seq), behind, ""]
    parts = [printable(last.op), shape_text(last.shape)]
    if strand.tells and last.state is not State.COMPLETED:
        parts.append("in it")
    return [str(strand.seq), behind, " ".join(part for part in parts if part)]


def _quiet(look: Look, words: Words) -> str:
    if words.over:
        return "ended"
    seconds = look.now - words.moved_at
    return f"{seconds:.0f} s" if seconds >= _CALM else ""


def _style(look: Look, words: Words) -> str:
    cause = look.verdict.cause if look.verdict is not None and look.in_trouble else None
    if cause is not None and words.rank in cause.diverging_ranks:
        return "bold red"
    return "dim" if words.over else ""


def _rank(words: Words) -> str:
    return str(words.rank) if words.rank >= 0 else "-"


def _labels(ranks: Iterable[Words]) -> list[str]:
    return sorted({label for words in ranks for label, _ in _named(words)})


def _table() -> Table:
    return Table(box=None, pad_edge=True, padding=(0, 1), header_style="dim", expand=False)
