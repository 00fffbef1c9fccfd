"""Screen of ``ncclscope diff``: a unified diff of two call sequences, with repeats as loops."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from ncclscope.model import Rank
from ncclscope.model.ties import grouped
from ncclscope.parity.comparison import ACROSS, CommDifference, RankPair, Side
from ncclscope.parity.hunks import HunkRow, rows
from ncclscope.render.console.blocks import right, unwrapped, wrapped
from ncclscope.wording.names import comm_text, plural, ranks_text

WIDE = 120
"""Terminal columns from which a call site is shown beside the call, not below it."""
MANY = 8
"""Groups of ranks shown; the rest is in ``--json``."""

_STYLES = {"-": "red", "+": "green", "@": "dim", " ": ""}


def render_difference(
    pairs: Sequence[RankPair],
    names: tuple[str, str],
    texts: Sequence[str],
    width: int,
    context: int = 3,
) -> RenderableType:
    """Return the screen.

    Args:
        pairs: Comparisons, one per rank.
        names: Both sides, as the user named them.
        texts: Text of each line number.
        width: Width of the terminal in columns.
        context: Equal lines around each change.
    """
    parts: list[RenderableType] = []
    if len(pairs) == 1:
        parts.append(_heading("---", names[0], pairs[0].a, "red"))
        parts.append(_heading("+++", names[1], pairs[0].b, "green"))
    else:
        parts.append(Text(f"--- {names[0]}", style="bold red"))
        parts.append(Text(f"+++ {names[1]}", style="bold green"))
    several = len(pairs) > 1
    groups = grouped(pairs, lambda one: ("same",) if one.same and several else one.pattern())
    shown = sorted(groups.values(), key=lambda group: group[0].same)
    for group in shown[:MANY]:
        if several:
            parts.append(_group_heading(group))
        if not several or not group[0].same:
            parts += _pair(group[0], texts, width, context)
    if len(shown) > MANY:
        hidden = [pair for group in shown[MANY:] for pair in group]
        parts.append(Text(f"\nnot shown: {_numbers(hidden)}, see --json", style="dim"))
    parts.append(_summary(pairs))
    return Group(*parts)


def _heading(mark: str, name: str, rank: Rank | None, colour: str) -> Text:
    text = Text(f"{mark} {name}", style=f"bold {colour}")
    if rank is not None:
        about = [f"rank {rank.rank}", rank.host, f"pid {rank.pid}" if rank.pid else ""]
        text.append(f"  {', '.join(part for part in about if part)}", style="not bold dim")
    return text


def _group_heading(group: Sequence[RankPair]) -> Text:
    first = group[0]
    who = _numbers(group)
    if first.a is None or first.b is None:
        return Text(f"\n{who}: only in {'+++' if first.a is None else '---'}", style="bold")
    return Text(f"\n{who}{': the same calls' if first.same else ''}", style="bold")


def _numbers(pairs: Iterable[RankPair]) -> str:
    return ranks_text(rank.rank for pair in pairs if (rank := pair.a or pair.b) is not None)


def _pair(pair: RankPair, texts: Sequence[str], width: int, context: int) -> list[RenderableType]:
    parts: list[RenderableType] = []
    for difference in sorted(pair.differences, key=lambda difference: difference.same):
        parts.append(_difference_heading(difference))
        parts += [Text(f"   {note}", style="yellow") for note in difference.notes]
        if difference.changes:
            found = rows(difference.a.lines, difference.b.lines, difference.changes, texts, context)
            parts.append(render_rows(found, width, (difference.a, difference.b)))
    return parts


def _difference_heading(difference: CommDifference) -> Text:
    a, b = difference.a, difference.b
    text = Text(f"@@ {difference.role}", style="cyan")
    comms = list(dict.fromkeys(comm_text(side.comm) for side in (a, b) if side.comm is not None))
    if comms:
        text.append(f": {' and '.join(comms)}")
    if difference.role == ACROSS:
        text.append(" in the order of posting")
    counts = plural(a.total, "call")
    if difference.same:
        text.append(f", {counts}, the same")
    else:
        text.append(
            f", {counts} and {b.total}, \N{MINUS SIGN}{difference.deleted} +{difference.inserted}"
        )
    text.append(" @@")
    return text


def render_rows(
    found: Sequence[HunkRow], width: int, sides: tuple[Side, Side] | None = None
) -> RenderableType:
    """Return the lines of one comparison as a table.

    Args:
        found: Lines to show.
        width: Width of the terminal in columns.
        sides: Both sides, for sequence numbers and call sites; None to show neither.
    """
    numbers = [right() for _ in sides or ()]
    columns = (unwrapped(), *numbers, wrapped())
    table = Table(*columns, box=None, show_header=False, padding=(0, 1, 0, 0), pad_edge=False)
    for row in found:
        cells = ["" if row.kind == "@" else row.kind]
        if sides is not None:
            cells += [_number(row.a, sides[0].first), _number(row.b, sides[1].first)]
        line = Text(_line(row, width, sides), overflow="fold")
        table.add_row(*map(Text, cells), line, style=_STYLES[row.kind])
    return table


def _number(span: tuple[int, int], first: int) -> str:
    place, calls = span
    if not calls:
        return ""
    seq = first + place
    return f"#{seq}" if calls == 1 else f"#{seq}-{seq + calls - 1}"


def _line(row: HunkRow, width: int, sides: tuple[Side, Side] | None) -> str:
    indent = "   " * row.depth
    if row.kind == "@":
        return f"{indent}\N{HORIZONTAL ELLIPSIS} {row.text}"
    if not row.text:
        return f"{indent}{row.times} ×"
    text = f"{indent}{row.text}"
    if row.times > 1:
        text += f" × {row.times}"
    if sides is not None and row.kind in "-+":
        site = sides[row.kind == "+"].calls[row.at[row.kind == "+"]].site
        if site:
            text += f"   at {site}" if width >= WIDE else f"\n{indent}   at {site}"
    return text


def _summary(pairs: Sequence[RankPair]) -> Text:
    if all(pair.same for pair in pairs):
        notes = {note for pair in pairs for one in pair.differences for note in one.notes}
        kept = ", as far as both sides hold their records" if notes else ""
        return Text(
            f"\nThe same calls in the same order on each communicator{kept}.", style="green"
        )
    parts = []
    differing = [pair for pair in pairs if not pair.same]
    if len(pairs) > 1:
        parts.append(f"{len(differing)} of {plural(len(pairs), 'rank')}")
    roles = dict.fromkeys(
        difference.role
        for pair in differing
        for difference in pair.differences
        if not difference.same
    )
    if len(roles) > 1:
        roles.pop(ACROSS, None)  # the order differs because the communicators do
    parts.append(f"on {', '.join(roles)}" if roles else "in the ranks that took part")
    return Text(f"\nDifferent: {' '.join(parts)}", style="bold red")
