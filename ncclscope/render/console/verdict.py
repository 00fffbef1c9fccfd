"""Screen of a verdict.

The panel holds the answer. Each block below it is marked *recorded* or *inferred*, because the two
must never be mistaken for each other.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rich.cells import cell_len
from rich.console import Console, Group, RenderableType
from rich.panel import Panel
from rich.table import Column, Table
from rich.text import Text

from ncclscope.engine.table import Cell, Row, peer_of
from ncclscope.engine.verdict import Neighbourhood, Verdict
from ncclscope.model import Call, Finding, Run
from ncclscope.render.console import blocks
from ncclscope.render.console.device import device_block
from ncclscope.render.console.sides import aligned_sides, differ_by_site, shown_groups
from ncclscope.render.console.transfers import transfer_block
from ncclscope.untrusted import printable
from ncclscope.wording import names as wording

WIDE = 120
"""Terminal columns from which a call site is shown beside the call."""
NAME_COLUMNS, COMM_COLUMNS = 48, 56
"""Terminal columns that a rank and each of its communicators take in one row."""
MANY = 16
"""Ranks above which those with equal calls share a row."""


def print_verdict(verdict: Verdict, console: Console) -> None:
    """Print the screen of a verdict."""
    print_screen(console, render_verdict(verdict, console.width), verdict)


def print_screen(console: Console, screen: RenderableType, verdict: Verdict) -> None:
    """Print a screen and, where its top scrolls out of the terminal, the verdict once more.

    Args:
        console: The console.
        screen: A screen about the verdict.
        verdict: The verdict.
    """
    lines = console.render_lines(screen, pad=False) if console.is_terminal else ()
    console.print(screen)
    if len(lines) >= console.height:
        console.print(Text(f"\n{verdict.status.upper()}: {verdict.summary}", style="bold"))


def render_verdict(verdict: Verdict, width: int) -> RenderableType:
    """Return the screen of a verdict; ``width`` is in columns."""
    parts: list[RenderableType] = [
        _heading(verdict, width),
        verdict_panel(verdict),
        _ranks(verdict, width),
        *device_block(verdict.run),
        *transfer_block(verdict.run),
    ]
    if verdict.neighbourhood is not None and verdict.cause is not None:
        parts.append(_divergence(verdict.neighbourhood, verdict.cause, width))
    if verdict.cause is not None:
        parts.append(blocks.knowledge(verdict.cause))
    parts += blocks.coverage_block(verdict.coverage)
    parts += _others(verdict)
    if verdict.notes:
        parts += [blocks.section("notes on the input"), *map(blocks.item, verdict.notes)]
    return Group(*parts)


def input_facts(run: Run, *, recorded: bool = True) -> list[str]:
    """Return how much was read; ``recorded`` tells whether there are records of calls."""
    hosts = len({rank.host for rank in run.ranks if rank.host})
    facts = [f"{len(run.ranks)} of {wording.plural(run.expected, 'rank')} read"]
    if hosts:
        facts.append(wording.plural(hosts, "host"))
    if recorded:
        lost = sum(rank.lost for rank in run.ranks) or "none"
        facts += [wording.kept_text(run.ranks), f"{lost} overwritten"]
    return facts


def _heading(verdict: Verdict, width: int) -> Text:
    sources, facts = " ".join(verdict.run.sources), ", ".join(input_facts(verdict.run))
    # A long path gets a line of its own.
    between = "  " if cell_len(sources) + 2 + len(facts) <= width else "\n"
    return Text(f"{sources}{between}{facts}", style="dim")


def verdict_panel(verdict: Verdict) -> Panel:
    """Return the panel with the answer."""
    if verdict.cause is None:
        return blocks.status_panel(verdict.status, verdict.summary)
    quiet = verdict.quiet_seconds
    more = f"no progress for {blocks.duration(quiet)}" if quiet is not None and quiet >= 1 else ""
    return blocks.cause_panel(verdict.status, verdict.summary, verdict.causes, more)


def _ranks(verdict: Verdict, width: int) -> RenderableType:
    rows = [_with_calls(row) for row in verdict.table]
    if not rows:
        return Text()
    groups: list[tuple[tuple[Row, ...], Row]] = [((row,), row) for row in rows]
    if len(rows) > MANY:
        groups = _grouped(rows)
    labels = _labels(row for _, row in groups)
    fits = NAME_COLUMNS + COMM_COLUMNS * len(labels) <= width
    table = _wide_table(verdict, groups) if fits else _narrow_table(verdict, groups)
    parts: list[RenderableType] = [
        blocks.section("current collective of each rank", "recorded"),
        table,
    ]
    if verdict.run.window:
        parts.append(_window_text(verdict))
    return Group(*parts)


def _window_text(verdict: Verdict) -> Text:
    totals = {rank.records for rank in verdict.run.ranks if rank.window}
    if len(totals) == 1:
        total = totals.pop()
        why = f"every row adds up to {total:,}, so one more call here means one fewer there"
    else:
        why = "earlier calls are not counted"
    return Text(
        f"  A window: the input holds only the last calls of each rank, and {why}. Counts and "
        f"differences prove nothing; the verdict rests on the order of the calls.",
        style="yellow",
    )


def _with_calls(row: Row) -> Row:
    """Return a row without the communicators that neither the rank nor its peers have used."""
    used = {
        label: cell
        for label, cell in row.cells.items()
        if cell.calls or cell.delta or cell.transfer
    }
    return Row(row.rank, used)


def _wide_table(verdict: Verdict, groups: list[tuple[tuple[Row, ...], Row]]) -> Table:
    labels = _labels(row for _, row in groups)
    names = _label_names(verdict.table)
    columns = [Column("rank", justify="right"), Column("host")]
    columns += [Column(name, justify="right") for name in ("pid", *names)]
    for label in labels:
        columns += [blocks.right(label), blocks.wrapped("last call")]
    table = blocks.plain_table(*columns)
    diverging = verdict.diverging_ranks
    for group, row in groups:
        cells = [_group_text(group), *_who(group)]
        cells += [row.rank.labels.get(name, "") if len(group) == 1 else "" for name in names]
        for label in labels:
            cell = row.cells.get(label)
            cells += [_count(cell), _last(cell)]
        blocks.add_row(table, *cells, style="bold red" if row.rank.rank in diverging else "")
    return table


def _narrow_table(verdict: Verdict, groups: list[tuple[tuple[Row, ...], Row]]) -> Table:
    who = [Column(heading, justify="right") for heading in ("rank", "pid")]
    table = blocks.plain_table(
        *who, blocks.unwrapped("comm"), blocks.right("calls"), blocks.wrapped("last call")
    )
    diverging = verdict.diverging_ranks
    for group, row in groups:
        style = "bold red" if row.rank.rank in diverging else ""
        name = [_group_text(group), _who(group)[1]]
        for label, cell in row.cells.items():
            blocks.add_row(table, *name, label, _count(cell), _last(cell), style=style)
            name = ["", ""]
        if not row.cells:
            blocks.add_row(table, *name, "", "", "no calls", style=style)
    return table


def _divergence(near: Neighbourhood, cause: Finding, width: int) -> RenderableType:
    where = near.comm.label or near.comm.key[:12]
    heading = blocks.section(f"around call {near.seq} on {where}", "recorded")
    if (sides := aligned_sides(near, cause)) is not None:
        return Group(heading, _aligned(near, cause, sides, width))
    return Group(heading, _rank_by_rank(near, cause, width))


def _aligned(
    near: Neighbourhood, cause: Finding, sides: Sequence[Sequence[int]], width: int
) -> RenderableType:
    """Return two columns, with matching calls in one line."""
    assert cause.seq is not None
    left, other = (blocks.wrapped(wording.ranks_text(ranks), ratio=1) for ranks in sides)
    table = blocks.plain_table(blocks.right(), left, blocks.right(), other)
    by_site = differ_by_site(cause)
    for theirs, own in cause.aligned:
        same = theirs and own and theirs.signature == own.signature
        first = cause.seq in (theirs.seq if theirs else 0, own.seq if own else 0) and not same
        blocks.add_row(
            table,
            _number(theirs, mark=first),
            _near_text(theirs, show_site=first or by_site, width=width)
            + _only_on(near, theirs, sides[0]),
            _number(own),
            _near_text(own, show_site=first or by_site, width=width)
            + _only_on(near, own, sides[1]),
            style="" if same else "red",
        )
    return table


def _only_on(near: Neighbourhood, call: Call | None, ranks: Sequence[int]) -> str:
    """Return which ranks of a column have come to a call, if not all have."""
    if call is None:
        return ""
    come = [rank for rank in ranks if call.seq <= max(near.calls.get(rank, {call.seq: 0}))]
    return "" if len(come) == len(ranks) else f", {wording.ranks_text(come)} only"


def _number(call: Call | None, *, mark: bool = False) -> str:
    number = f"#{call.seq}" if call is not None else ""
    return f"> {number}" if mark else number


def _rank_by_rank(near: Neighbourhood, cause: Finding, width: int) -> RenderableType:
    """Return a column for each group of ranks that posted the same calls."""
    shown, hidden = shown_groups(near, cause, 2 if width < WIDE else 4)
    table = blocks.plain_table(
        blocks.right(), *(blocks.wrapped(wording.ranks_text(ranks), ratio=1) for ranks in shown)
    )
    for seq in sorted({seq for ranks in shown for seq in near.calls[ranks[0]]}):
        here = seq == near.seq
        cells = [
            _near_text(near.calls[ranks[0]].get(seq), show_site=here, width=width)
            for ranks in shown
        ]
        blocks.add_row(table, f"{'> ' if here else ''}#{seq}", *cells, style="red" if here else "")
    if not hidden:
        return table
    return Group(table, Text(f"  not shown: {wording.ranks_text(hidden)}", style="dim"))


def _near_text(call: Call | None, *, show_site: bool, width: int) -> str:
    if call is None:
        return "-"
    text = wording.call_text(call)
    if call.replay is not None:
        text += f", {wording.replay_text(call)}" if show_site else ", replayed"
    if show_site:
        text += f", {call.state.word}"
        if call.site:
            text += f"{' ' if width >= WIDE else chr(10)}at {wording.place_text(call)}"
    return text


def _others(verdict: Verdict) -> Iterable[RenderableType]:
    rest = [finding for finding in verdict.findings if finding is not verdict.cause]
    if not rest:
        return
    yield blocks.section("other findings")
    for finding in rest[:8]:
        yield blocks.item(f"{finding.role}: {finding.summary}")
    if len(rest) > 8:
        yield blocks.item(f"and {len(rest) - 8} more, see --json")


def _labels(rows: Iterable[Row]) -> list[str]:
    return sorted({label for row in rows for label in row.cells})


def _label_names(rows: Iterable[Row]) -> list[str]:
    return list(dict.fromkeys(name for row in rows for name in row.rank.labels))[:4]


def _grouped(rows: Iterable[Row]) -> list[tuple[tuple[Row, ...], Row]]:
    """Return groups of rows with equal cells, each with its first row."""
    groups: dict[tuple[object, ...], list[Row]] = {}
    for row in rows:
        shown = tuple(
            (label, cell.calls, cell.delta, _last(cell)) for label, cell in row.cells.items()
        )
        groups.setdefault(shown, []).append(row)
    return [(tuple(group), group[0]) for group in groups.values()]


def _group_text(group: tuple[Row, ...]) -> str:
    return wording.ranks_text(row.rank.rank for row in group).partition(" ")[2]


def _who(group: tuple[Row, ...]) -> tuple[str, str]:
    hosts = {row.rank.host for row in group}
    host = hosts.pop() if len(hosts) == 1 else f"{len(hosts)} hosts"
    pid = str(group[0].rank.pid or "") if len(group) == 1 else ""
    return host, pid


def _count(cell: Cell | None) -> str:
    if cell is None:
        return ""
    if not cell.delta:
        return str(cell.calls)
    sign = "+" if cell.delta > 0 else "\N{MINUS SIGN}"
    return f"{cell.calls} ({sign}{abs(cell.delta)})"


def _last(cell: Cell | None) -> str:
    call = None if cell is None else cell.newest
    if cell is None or call is None:
        return ""
    side = ""
    if call is cell.transfer:
        peer = peer_of(call, cell.comm)
        side = f"{'to' if call.op == 'send' else 'from'} {'any rank' if peer is None else peer}"
    parts = (call.op, side, call.redop, wording.shape_text(call.shape), call.state.word)
    return printable(" ".join(part for part in parts if part))
