"""The page of `ncclscope report` in a real browser, without a network."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from ncclscope.engine.verdict import diagnose
from ncclscope.model import Run
from ncclscope.readers import open_run
from ncclscope.render.html.page import render_html
from tests.integration.test_report_command import EVIL, write_hostile
from tests.support.browser import Browser, launch
from tests.support.cluster import Cluster
from tests.support.snapshots import DATA

pytestmark = [pytest.mark.browser, pytest.mark.slow]

PHONE = {"viewport": {"width": 390, "height": 800}}


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with launch() as browser:
        yield browser


@pytest.fixture(scope="module")
def skipped(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Rank 2 of eight left out a call, and both replicas wait."""
    folder = tmp_path_factory.mktemp("skipped")
    cluster = Cluster(folder / "rings", 8)
    for replica in (range(4), range(4, 8)):
        cluster.history("tp:0", 30, members=replica)
    for pair in ((0, 4), (1, 5), (2, 6), (3, 7)):
        cluster.history("dp:0", 4, members=pair)
    cluster.post([0, 1, 3], "tp:0", "broadcast", members=range(4), root=0, done=False)
    cluster.post(range(4), "tp:0", "all_gather", members=range(4), done=False)
    return write(cluster.run(), folder / "page.html")


def write(run: Run, path: Path) -> Path:
    path.write_text(render_html(diagnose(run)))
    return path


def rows(opened: object) -> list[str]:
    """Return the ranks whose rows of the table are seen."""
    page = opened.page  # type: ignore[attr-defined]
    return [
        one.get_attribute("data-ranks")
        for one in page.locator("#table tbody tr").all()
        if one.is_visible()
    ]


@pytest.mark.parametrize("options", [{}, PHONE, {"color_scheme": "dark"}])
def test_it_renders_without_errors_and_asks_for_nothing(
    browser: Browser, skipped: Path, options: dict[str, object]
) -> None:
    with browser.open(skipped, **options) as opened:
        assert opened.seen(".lead")[0].startswith("Rank 2 (node-0, pid 1002) skipped 1 call")
        assert opened.count("#alignments table") == 1
        assert opened.count("#timeline svg") == 1
        assert opened.count("svg.graph .box") >= 2
        wide = opened.page.evaluate("document.documentElement.scrollWidth - innerWidth")
        assert wide <= 0
        assert opened.messages == []
        assert opened.asked == []


def test_dark_mode_is_dark(browser: Browser, skipped: Path) -> None:
    paper = "getComputedStyle(document.body).backgroundColor.match(/[0-9]+/g).map(Number)"
    with browser.open(skipped, color_scheme="dark") as dark, browser.open(skipped) as light:
        assert max(dark.page.evaluate(paper)) < 60
        assert min(light.page.evaluate(paper)) > 240


def test_equal_stretches_expand_by_keyboard(browser: Browser, skipped: Path) -> None:
    with browser.open(skipped) as opened:
        assert opened.count("#alignments tr.differs") == 1
        assert "no such call" in opened.seen("#alignments tr.differs")[0]
        (collapsed,) = opened.seen("#alignments .collapsed button")
        assert "equal calls" in collapsed
        before = opened.count("#alignments tbody tr")
        opened.page.locator("#alignments .collapsed button").focus()
        opened.page.keyboard.press("Enter")
        assert opened.count("#alignments .collapsed") == 0
        assert opened.count("#alignments tbody tr") > before + 20
        assert opened.messages == []


def test_filters_by_rank_communicator_and_op(browser: Browser, skipped: Path) -> None:
    with browser.open(skipped) as opened:
        assert len(rows(opened)) == 8
        opened.page.fill("#filter-ranks", "2, 5-6")
        assert rows(opened) == ["2", "5", "6"]
        assert "rank 0" not in opened.seen("#timeline")[0]
        assert "rank 2" in opened.seen("#timeline")[0]
        assert len(opened.seen("#alignments .alignment-box:not([hidden]) table thead")) == 1
        assert "ranks 0 1 3" not in opened.seen("#alignments")[0]

        opened.page.fill("#filter-ranks", "")
        opened.page.select_option("#filter-comm", label="dp:0 of ranks 2 6")
        assert rows(opened) == ["2", "6"]
        (alignment,) = opened.seen("#alignments .alignment-box")
        assert alignment.startswith("dp:0 of ranks 2 6")

        opened.page.select_option("#filter-comm", "")
        opened.page.select_option("#filter-op", "broadcast")
        visible = opened.seen("#alignments tbody tr")
        assert len(visible) == 1
        assert "broadcast" in visible[0]

        opened.page.click("button[type=reset]")
        opened.page.wait_for_function(
            "document.querySelectorAll('#alignments tbody tr').length > 1"
        )
        assert len(rows(opened)) == 8
        assert opened.messages == []


def test_ranks_that_are_none_are_refused_and_hide_nothing(browser: Browser, skipped: Path) -> None:
    with browser.open(skipped) as opened:
        opened.page.fill("#filter-ranks", "two")
        assert opened.page.get_attribute("#filter-ranks", "aria-invalid") == "true"
        assert "0-3 13" in opened.seen("#filter-count")[0]
        assert len(rows(opened)) == 8


def test_the_timeline_is_read_with_the_arrow_keys(browser: Browser, skipped: Path) -> None:
    with browser.open(skipped) as opened:
        opened.page.locator("#timeline").focus()
        opened.page.keyboard.press("ArrowDown")
        first = opened.seen("#time-text")[0]
        opened.page.keyboard.press("ArrowLeft")
        second = opened.seen("#time-text")[0]
        assert first.startswith("rank 0, ")
        assert "before the last call" in first
        assert second != first


def test_everything_is_reached_with_the_tab_key(browser: Browser, skipped: Path) -> None:
    reached = set()
    with browser.open(skipped) as opened:
        for _ in range(60):
            opened.page.keyboard.press("Tab")
            reached.add(opened.page.evaluate("document.activeElement.id"))
    assert {"filter-ranks", "filter-comm", "filter-op", "timeline", "time-span"} <= reached


def test_ranks_with_equal_rows_share_one_row_until_it_is_expanded(
    browser: Browser, tmp_path: Path
) -> None:
    cluster = Cluster(tmp_path / "rings", 24)
    cluster.history()
    cluster.post([r for r in range(24) if r != 13], "tp:0", done=False)
    with browser.open(write(cluster.run(), tmp_path / "page.html")) as opened:
        assert len(rows(opened)) == 2
        opened.page.locator(".expand").press("Enter")
        assert len(rows(opened)) == 25
        opened.page.fill("#filter-ranks", "7 13")
        assert len(rows(opened)) == 3
        assert opened.messages == []


def test_hostile_names_stay_texts(browser: Browser, tmp_path: Path) -> None:
    write_hostile(tmp_path / "job")
    with browser.open(write(open_run(tmp_path / "job"), tmp_path / "page.html")) as opened:
        shown = EVIL.replace("\u202e", "\\u202e")
        assert shown in opened.page.inner_text("body")
        assert shown in opened.page.inner_text("#timeline + *, #alignments")
        assert opened.count("img") == 0
        assert opened.count("script") == 2
        opened.page.select_option("#filter-op", index=1)
        opened.page.locator("#timeline").focus()
        opened.page.keyboard.press("ArrowDown")
        assert "<script>" in opened.page.inner_text("#time-text")
        assert opened.messages == []
        assert opened.asked == []


def test_a_bundle_renders(browser: Browser, tmp_path: Path) -> None:
    page = write(open_run(DATA / "h200_mismatch.json"), tmp_path / "page.html")
    with browser.open(page) as opened:
        assert "train.py:9 gather_step" in opened.page.inner_text("body")
        assert not opened.page.locator("#filter").is_visible()
        assert opened.messages == []


def test_without_scripts_the_verdict_is_still_there(browser: Browser, skipped: Path) -> None:
    with browser.open(skipped, java_script_enabled=False) as opened:
        assert opened.page.locator(".lead").is_visible()
        assert opened.page.locator("svg.graph").is_visible()
        assert not opened.page.locator("#filter").is_visible()
        assert "scripts are disabled here" in opened.page.inner_text("body")


def test_it_prints(browser: Browser, skipped: Path) -> None:
    with browser.open(skipped) as opened:
        opened.page.emulate_media(media="print")
        assert not opened.page.locator("#filter").is_visible()
        assert opened.page.locator(".lead").is_visible()
        assert opened.page.locator("#alignments table").is_visible()
        assert opened.page.pdf(format="A4").startswith(b"%PDF")
