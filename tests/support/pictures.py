"""Draws the pictures of README and site, from real runs: ``python -m tests.support.pictures``.

The verdict and the live view are texts of a terminal, drawn as SVG; the report is photographed in
chromium. Each is there for light and for dark pages.
"""

from __future__ import annotations

import io
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from itertools import groupby
from pathlib import Path
from typing import Any

from rich.style import Style
from rich.terminal_theme import DEFAULT_TERMINAL_THEME, TerminalTheme
from rich.text import Text

import ncclscope
from ncclscope.render.console.terminal import SafeConsole
from ncclscope.render.console.verdict import render_verdict
from tests.support.browser import FLAGS
from tests.support.emulator import Emulator
from tests.support.programs import ROOT

__all__ = ["main"]

TARGET = ROOT / "docs" / "pictures"
DARK = TerminalTheme(
    (13, 17, 23),
    (201, 209, 217),
    [
        (72, 79, 88),
        (255, 123, 114),
        (63, 185, 80),
        (210, 153, 34),
        (88, 166, 255),
        (188, 140, 255),
        (57, 197, 207),
        (177, 186, 196),
    ],
)
THEMES: Mapping[str, TerminalTheme] = {"light": DEFAULT_TERMINAL_THEME, "dark": DARK}
COLUMNS, LINES = 100, 30
RINGS = Path("/dev/shm/job77")
"""Shown in the pictures, and removed afterwards."""


def main() -> None:
    """Run the demonstration, and draw what is shown of it."""
    TARGET.mkdir(exist_ok=True)
    RINGS.mkdir()
    try:
        live = _live_view()
        screen = render_verdict(ncclscope.diagnose(ncclscope.open_run(RINGS)), COLUMNS)
        for name, theme in THEMES.items():
            _draw(screen, f"ncclscope diagnose {RINGS}", f"verdict-{name}", theme)
            _draw(live, f"ncclscope watch {RINGS}", f"watch-{name}", theme)
        with tempfile.TemporaryDirectory() as folder:
            _ncclscope("report", RINGS, "-o", Path(folder, "hang.html"))
            _photograph(Path(folder, "hang.html"))
    finally:
        shutil.rmtree(RINGS)


def _ncclscope(*arguments: object) -> None:
    command = [sys.executable, "-m", "ncclscope", *map(str, arguments)]
    subprocess.run(command, cwd=ROOT, check=False, stdout=subprocess.DEVNULL)


def _live_view() -> Text:
    """Return what the live view shows of a demonstration once it hangs."""
    watch = [sys.executable, "-m", "ncclscope", "watch", RINGS, "--stall", "2"]
    demo = [sys.executable, "-m", "ncclscope", "demo", "--dir", str(RINGS), "--stall-after", "12"]
    with (
        Emulator(watch, COLUMNS, LINES) as terminal,
        subprocess.Popen(demo, cwd=ROOT, stdout=subprocess.DEVNULL) as running,
    ):
        terminal.wait_for("DIVERGED", "certain", "no progress for ")
        shown = _styled(terminal)
        terminal.press("q")
        running.wait(60)
    return shown


def _styled(terminal: Emulator) -> Text:
    """Return the screen of a terminal with its colours."""
    text = Text()
    for line in range(LINES):
        for style, cells in groupby(terminal.cells(line), _style):
            text.append("".join(cell.data for cell in cells), style)
        text.append("\n")
    return text


def _style(cell: Any) -> Style:
    colour = None if cell.fg == "default" else {"brown": "yellow"}.get(cell.fg, cell.fg)
    return Style(color=colour, bold=cell.bold, reverse=cell.reverse)


def _draw(what: Any, title: str, name: str, theme: TerminalTheme) -> None:
    console = SafeConsole(
        record=True,
        width=COLUMNS,
        file=io.StringIO(),
        force_terminal=True,
        color_system="standard",
        highlight=False,
        emoji=False,
        markup=False,
    )
    console.print(what)
    console.save_svg(str(TARGET / f"{name}.svg"), title=title, theme=theme, unique_id=name)


def _photograph(page: Path) -> None:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path="/usr/bin/chromium", args=list(FLAGS))
        for name in THEMES:
            opened = browser.new_page(viewport={"width": 1100, "height": 760}, color_scheme=name)
            opened.goto(page.as_uri())
            opened.screenshot(path=str(TARGET / f"report-{name}.png"))
        browser.close()


if __name__ == "__main__":
    main()
