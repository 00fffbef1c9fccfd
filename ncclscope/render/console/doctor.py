"""The screen of ``ncclscope doctor``."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.text import Text

from ncclscope.doctor.check import Check
from ncclscope.render.console.blocks import plain_table, right, unwrapped, wrapped

_SIGNS = {
    "ok": ("ok", "green"),
    "off": ("-", "dim"),
    "warn": ("!", "yellow"),
    "bad": ("!!", "bold red"),
}


def render_checks(checks: Sequence[Check]) -> RenderableType:
    """Return a table of the checks, section by section."""
    parts: list[RenderableType] = []
    for section in dict.fromkeys(check.section for check in checks):
        parts.append(Text(f"{'' if not parts else chr(10)}{section.upper()}", style="bold"))
        table = plain_table(right("sign"), unwrapped("name"), wrapped("state"), headings=False)
        for check in checks:
            if check.section != section:
                continue
            sign, style = _SIGNS[check.status]
            table.add_row(
                Text(sign, style=style), Text(check.name), Text(check.state, overflow="fold")
            )
            if check.enable:
                table.add_row("", "", Text(f"-> {check.enable}", style="dim", overflow="fold"))
        parts.append(table)
    return Group(*parts)
