"""Progress of each rank on its device, as a block of a screen."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import RenderableType
from rich.table import Column

from ncclscope.engine.processes.device_rows import device_rows
from ncclscope.model import Run
from ncclscope.render.console import blocks
from ncclscope.wording.names import ranks_text

MANY = 24
"""Rows above which only those with a pending call are shown."""


def device_block(run: Run) -> Iterator[RenderableType]:
    """Yield a heading and a table; nothing if no device counted its calls."""
    rows = device_rows(run)
    if not rows:
        return
    yield blocks.section("on the device", "recorded by the GPU")
    shown = rows if len(rows) <= MANY else [row for row in rows if row.pending.at is not None]
    enters = any(row.pending.entered is not None for row in shown)
    headings = ("posted", *(["entered"] if enters else ()), "finished")
    rank = Column("rank", justify="right")
    table = blocks.plain_table(
        rank, blocks.unwrapped("comm"), *map(blocks.right, headings), blocks.wrapped("where it is")
    )
    for row in shown[:MANY]:
        progress = row.pending
        counts = [progress.posted, *([progress.entered] if enters else ()), progress.finished]
        blocks.add_row(
            table,
            ranks_text(row.ranks).partition(" ")[2],
            row.comm.label or row.comm.key[:12],
            *("?" if count is None else str(count) for count in counts),
            row.words,
            style="yellow" if progress.at is not None or progress.unknown else "",
        )
    yield table
    if len(rows) > len(shown[:MANY]):
        yield blocks.item(f"and {len(rows) - len(shown[:MANY])} more, see --json")
