"""Damage moves a verdict only downwards: parts of the sweep that ``make damage`` runs whole.

A damaged record beside a swap may leave ``op_mismatch`` where the whole one showed ``comm_swap``
(NAMED).
"""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest

from tests.damage import __main__ as command
from tests.damage.__main__ import MOST_LOST

NEVER = ("WRONG_CERTAIN", "SILENT_OK", "ALARM", "CRASH")
MOST_NAMED = 0.005
"""Share of damages that may leave another story of the rank in question as likely."""


def swept(folder: Path, *options: str) -> Counter[str]:
    """Return how many damages had each outcome."""
    counts = folder / "counts.json"
    command.main([*options, "--json", str(counts)])
    found: Counter[str] = Counter()
    for _, _, word, count in json.loads(counts.read_text(encoding="utf-8"))["counts"]:
        found[word] += count
    return found


def check(found: Counter[str]) -> None:
    assert {word: found[word] for word in NEVER if found[word]} == {}
    assert found["NAMED"] <= 2 + MOST_NAMED * found.total()
    assert found["SAME"] > found["LOST"]


@pytest.mark.slow
@pytest.mark.timeout(2400)
@pytest.mark.parametrize("part", ["3/20", "13/20"])
def test_no_damage_of_a_tenth_makes_a_verdict_surer(tmp_path: Path, part: str) -> None:
    found = swept(tmp_path, "--part", part)

    check(found)
    assert found["LOST"] + found["ASTRAY"] <= MOST_LOST * found.total()


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_no_lost_or_exchanged_file_makes_a_verdict_surer(tmp_path: Path) -> None:
    check(swept(tmp_path, "--kind", "dropped", "--kind", "exchanged"))
