"""Hooks of mkdocs: links as they are written for a checkout lead to pages of the site."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

_SHIM = "https://unpkg.com/iframe-worker/shim"
_FENCE = re.compile(r"^```(\w+)(?: [^\n`]+)?$", re.MULTILINE)
"""Beginning of a block; tests read what follows the language."""

__all__ = ["github_slug", "on_page_markdown", "on_post_page", "on_post_template"]

_LINK = re.compile(r"\[([^]\n]*)\]\((?!https?:|#)([^)#\s]+)(#[^)\s]*)?\)")


def github_slug(text: str, separator: str) -> str:
    """Return the anchor that GitHub gives a heading, so that a link holds in both places."""
    plain = re.sub(r"[^\w\- ]", "", text.lower()).strip()
    return plain.replace(" ", separator)


def on_page_markdown(markdown: str, page: Any, config: Any, **_: Any) -> str:
    """Return a page whose links and blocks the site understands.

    Links to folders lead to their README; those to sources, which are no pages, become text.
    """
    root = Path(config["docs_dir"])
    folder = (root / page.file.src_uri).parent

    def led(link: re.Match[str]) -> str:
        text, target, anchor = link[1], link[2], link[3] or ""
        found = folder / target
        if found.is_dir() and (found / "README.md").is_file():
            return f"[{text}]({target.rstrip('/')}/README.md{anchor})"
        return link[0] if found.is_file() else text

    return _FENCE.sub(_block, _LINK.sub(led, markdown))


def on_post_page(output: str, page: Any, **_: Any) -> str:
    """Run the search of pages on a disk by a script of ours, not by one from another server."""
    return output.replace(_SHIM, "../" * page.file.dest_uri.count("/") + "assets/worker.js")


def on_post_template(output_content: str, **_: Any) -> str:
    """Do the same for pages that are no documents, which a server shows."""
    return output_content.replace(_SHIM, "/assets/worker.js")


def _block(fence: re.Match[str]) -> str:
    # A highlighter takes "#172" in the output of a command for a prompt.
    return f"```{'text' if fence[1] == 'console' else fence[1]}"
