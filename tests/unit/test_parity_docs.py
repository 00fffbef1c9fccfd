"""The names, defaults and files in docs/parity.md are right."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

from ncclscope.parity.lockfile import read_baseline
from ncclscope.parity.sequence import Vocabulary
from ncclscope.parity.trial import Settings

TEXT = (Path(__file__).parents[2] / "docs" / "parity.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```\w*\n(.*?)^```$", TEXT, re.MULTILINE | re.DOTALL)


def test_the_lock_file_is_one(tmp_path: Path) -> None:
    (block,) = [block for block in BLOCKS if "ncclscope baseline 1" in block]
    path = tmp_path / "calls.lock"
    path.write_text(block, encoding="utf-8")

    (section,) = read_baseline(path, Vocabulary()).sections

    assert len(section.lines) == 1 + 61 * 2


def test_the_marker_takes_what_is_listed() -> None:
    rows = dict(re.findall(r"^\| `(\w+)` \| ([^|]+) \|", TEXT, re.MULTILINE))
    words = {None: ("none", "by backend"), False: ("false",), "gloo": ('`"gloo"`',)}

    fields = {field.name: field.default for field in dataclasses.fields(Settings)}

    assert rows.keys() == fields.keys()
    for name, default in fields.items():
        if isinstance(default, int | float) and not isinstance(default, bool):
            assert float(rows[name]) == default
        else:
            assert rows[name] in words[default]
