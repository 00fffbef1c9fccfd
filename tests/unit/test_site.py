"""Links and anchors of the site, which are written for a checkout."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from types import SimpleNamespace

from docs.site.hooks import github_slug, on_page_markdown
from tests.support.programs import ROOT

SETTINGS = (ROOT / "docs" / "site" / "mkdocs.yml").read_text("utf-8")


def test_links_to_folders_lead_to_their_readme_and_those_to_sources_are_text(
    tmp_path: Path,
) -> None:
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "b.md").touch()
    (tmp_path / "examples" / "one").mkdir(parents=True)
    (tmp_path / "examples" / "one" / "README.md").touch()
    page = SimpleNamespace(file=SimpleNamespace(src_uri="docs/a.md"))
    text = "[b](b.md#c) [one](../examples/one) [code](../ncclscope/x.py) [out](https://x.org)"
    assert on_page_markdown(text, page, {"docs_dir": str(tmp_path)}) == (
        "[b](b.md#c) [one](../examples/one/README.md) code [out](https://x.org)"
    )


def test_marks_for_tests_do_not_hide_that_a_block_is_one(tmp_path: Path) -> None:
    page = SimpleNamespace(file=SimpleNamespace(src_uri="a.md"))
    text = "```console elsewhere\n$ ncclscope\n```\n\n```yaml a/b.yml\n- x\n```\n"
    assert on_page_markdown(text, page, {"docs_dir": str(tmp_path)}) == (
        "```text\n$ ncclscope\n```\n\n```yaml\n- x\n```\n"
    )


def test_anchors_are_those_of_a_checkout() -> None:
    assert github_slug("The live view: `ncclscope watch`", "-") == "the-live-view-ncclscope-watch"


def test_every_document_is_in_the_navigation() -> None:
    named = set(re.findall(r"docs/[\w-]+\.md", SETTINGS))
    there = {f"docs/{path.name}" for path in (ROOT / "docs").glob("*.md")}
    assert named == there | {"docs/api.md"}


def test_the_pictures_are_there_for_light_and_dark_pages() -> None:
    readme = (ROOT / "README.md").read_text("utf-8")
    for name in re.findall(r'(?:src|srcset)="(docs/pictures/[^"]+)"', readme):
        assert (ROOT / name).is_file(), name
    for name in ("verdict", "watch"):
        for theme in ("light", "dark"):
            picture = ROOT / "docs" / "pictures" / f"{name}-{theme}.svg"
            text = "".join(ElementTree.parse(picture).getroot().itertext()).replace("\xa0", " ")
            assert "DIVERGED" in text
            assert "all_gatherv [14,256] int32" in text
            assert picture.stat().st_size < 200_000
