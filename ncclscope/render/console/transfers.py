"""Transfers between engines that have not ended, as a block of a screen."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

from rich.console import RenderableType

from ncclscope.engine.transfers.engines import Engines
from ncclscope.model import Run, Transfer
from ncclscope.render.console import blocks
from ncclscope.untrusted import printable

MANY = 8
"""Transfers shown."""


def transfer_block(run: Run) -> Iterator[RenderableType]:
    """Yield a heading and a table; nothing if no transfer is unfinished."""
    engines = Engines(run)
    waiting = list(engines.waiting)
    if not waiting:
        return
    yield blocks.section("transfers", "recorded")
    headings = ("request", "receiving engine", "sending engine")
    table = blocks.plain_table(*map(blocks.wrapped, headings), blocks.right("for"))
    for one in itertools.islice(waiting, MANY):
        receive, send = one.receive, one.send
        end = receive or send
        assert end is not None
        sender = end.peer if end.direction == "recv" else end.engine
        blocks.add_row(
            table,
            printable(end.request),
            f"{printable(receive.engine)}: {_progress(receive)}" if receive else "-",
            f"{printable(sender)}: {_progress(send)}" if send else printable(sender) or "-",
            blocks.duration(engines.seconds_since(one.begun_ns)),
        )
    yield table
    if len(waiting) > MANY:
        yield blocks.item(f"and {len(waiting) - MANY} more, see --json")


def _progress(one: Transfer) -> str:
    phase = printable(one.phase).replace("_", " ")
    return f"{one.state}, {phase}" if phase else one.state
