"""A real browser for pages, without a window and without a network."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

FLAGS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)


@dataclass
class Opened:
    """A page, and the browser's messages about it.

    Attributes:
        page: The page.
        messages: Messages on the console and errors of scripts.
        asked: Addresses that were requested, but for the page's own.
    """

    page: Any
    messages: list[str] = field(default_factory=list)
    asked: list[str] = field(default_factory=list)

    def count(self, selector: str) -> int:
        """Return how many elements of a kind are there."""
        return int(self.page.locator(selector).count())

    def seen(self, selector: str) -> list[str]:
        """Return the texts of those that are visible."""
        found = self.page.locator(selector)
        return [one.inner_text() for one in found.all() if one.is_visible()]


class Browser:
    """Chromium.

    Args:
        chromium: What the driver launched.
    """

    def __init__(self, chromium: Any) -> None:
        self._chromium = chromium

    @contextmanager
    def page(self, **options: Any) -> Iterator[Any]:
        """Open an empty page that reaches this machine's own servers."""
        context = self._chromium.new_context(**options)
        try:
            yield context.new_page()
        finally:
            context.close()

    @contextmanager
    def open(self, path: Path, **options: Any) -> Iterator[Opened]:
        """Open a file.

        Args:
            path: The page.
            **options: Of the driver's context: width, colours, scripts.
        """
        options.setdefault("viewport", {"width": 1280, "height": 900})
        context = self._chromium.new_context(offline=True, **options)
        page = context.new_page()
        opened = Opened(page)
        page.on("console", lambda message: opened.messages.append(message.text))
        page.on("pageerror", lambda error: opened.messages.append(str(error)))
        page.on("dialog", lambda dialog: (opened.messages.append(dialog.message), dialog.dismiss()))
        address = path.resolve().as_uri()
        page.on(
            "request",
            lambda request: opened.asked.append(request.url) if request.url != address else None,
        )
        page.goto(address)
        try:
            yield opened
        finally:
            context.close()


@contextmanager
def launch() -> Iterator[Browser]:
    """Start the browser; skip where there is none."""
    names = ("chromium", "chromium-browser", "google-chrome")
    found = next(filter(None, map(shutil.which, names)), None)
    if found is None:
        pytest.skip("no chromium on this machine (Debian: apt install chromium)")
    driver = pytest.importorskip("playwright.sync_api")
    with driver.sync_playwright() as started:
        chromium = started.chromium.launch(executable_path=found, args=list(FLAGS))
        try:
            yield Browser(chromium)
        finally:
            chromium.close()
