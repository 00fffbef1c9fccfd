"""The site, built and opened from a disk in a real browser without a network."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.browser import Browser, launch
from tests.support.programs import ROOT

pytestmark = [pytest.mark.slow, pytest.mark.browser, pytest.mark.timeout(240)]


@pytest.fixture(scope="module")
def site() -> Path:
    subprocess.run([sys.executable, ROOT / "docs" / "site" / "build.py"], check=True, cwd=ROOT)
    return ROOT / "build" / "site"


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with launch() as started:
        yield started


def test_no_page_loads_anything_from_elsewhere(site: Path) -> None:
    pages = list(site.rglob("*.html"))
    assert len(pages) > 30
    for page in pages:
        text = page.read_text("utf-8")
        loaded = re.findall(r'<(?:script|img|link rel="stylesheet")[^>]*"(https?:[^"]+)"', text)
        assert not loaded, page


def test_the_reference_is_made_from_docstrings(site: Path) -> None:
    text = (site / "docs" / "api.html").read_text("utf-8")
    assert "Read every ring, dump and trace at or below the given paths." in text


def test_the_search_finds_a_line_of_a_log(site: Path, browser: Browser) -> None:
    with browser.open(site / "docs" / "start.html") as opened:
        query = opened.page.locator(".md-search__input")
        query.wait_for(state="visible")
        query.click()
        query.press_sequentially("No available shared memory broadcast block")
        opened.page.locator(".md-search-result__link").first.wait_for(state="attached")
        found = opened.page.evaluate(
            "[...document.querySelectorAll('.md-search-result__link')].map(one => one.href)"
        )
        assert any("docs/symptoms.html" in address for address in found), found
        assert not opened.messages
        assert all(address.startswith("file:") for address in opened.asked)
