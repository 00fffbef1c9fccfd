"""The HTML page of ``ncclscope report``, one file.

The page carries its style, its script and its data. Its Content-Security-Policy forbids every
request and every script but its own, by their hashes. Texts of the job, such as host names, labels
and command lines, stay text: the template escapes them, and the script never parses markup.
"""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Callable
from importlib import resources
from typing import Any

import jinja2

from ncclscope.engine.verdict import Verdict
from ncclscope.render.console.attach import render_attach
from ncclscope.render.console.terminal import plain_text
from ncclscope.render.console.verdict import render_verdict
from ncclscope.render.html.document import build_document
from ncclscope.untrusted import printable

FIRST = "<!doctype html>\n<!-- ncclscope report -->"
"""First lines of each page, by which a report is recognised."""
LONGEST = 2000
"""Characters shown of one text: a name of a megabyte must not fill the page."""
COLUMNS = 100
"""Width in characters of the screen that the page holds as text."""
_PATH = re.compile(r"(?<![\w.:])/(?:[^\s/:;,'\"]+/)+([^\s/:;,'\"]+)")


def render_html(verdict: Verdict, *, redacted: bool = False) -> str:
    """Return the page as HTML.

    Args:
        verdict: Verdict to show.
        redacted: Whether to remove folders from every text of the page. The caller removes
            command lines and environments from the process snapshot.
    """
    draw = render_verdict if verdict.run.snapshot is None else render_attach
    document = build_document(verdict)
    document["screen"] = None
    document = _each_text(document, _shown_without_paths if redacted else _shown)
    screen = "\n".join(
        _shown(line) for line in plain_text(draw(verdict, COLUMNS), COLUMNS).splitlines()
    )
    document["screen"] = _PATH.sub(r"\1", screen) if redacted else screen
    document["redacted"] = redacted
    style, script = _part("report.css"), _part("report.js")
    environment = jinja2.Environment(
        loader=jinja2.FunctionLoader(_part),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    page = environment.get_template("report.html.j2").render(
        document,
        style=style,
        script=script,
        style_hash=_hash(style),
        script_hash=_hash(script),
    )
    return f"{FIRST}\n{page}"


def _part(name: str) -> str:
    return (resources.files(__package__) / "template" / name).read_text(encoding="utf-8")


def _hash(text: str) -> str:
    digest = hashlib.sha256(text.encode()).digest()
    return f"'sha256-{base64.b64encode(digest).decode('ascii')}'"


def _each_text(value: Any, change: Callable[[str], str]) -> Any:
    if isinstance(value, str):
        return change(value)
    if isinstance(value, dict):
        return {name: _each_text(item, change) for name, item in value.items()}
    if isinstance(value, list):
        return [_each_text(item, change) for item in value]
    return value


def _shown(text: str) -> str:
    """Return a text cut to ``LONGEST`` characters, with invisible ones escaped."""
    return printable(text if len(text) <= LONGEST else f"{text[:LONGEST]}…")


def _shown_without_paths(text: str) -> str:
    return _PATH.sub(r"\1", _shown(text))
