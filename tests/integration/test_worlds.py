"""Verdicts on random small jobs, and on all of the smallest ones: no more bad ones than today."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.proofs.tally import AGREES, REFUSED

ROOT = Path(__file__).parents[2]
pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]

COUNT = 1250
# Ceilings only go down: whoever mends a verdict lowers them to what is reached then.
RANDOM: Mapping[int, Mapping[str, int]] = {
    1: {"other story": 15},
    2: {"other story": 12},
}
# Dumps hold no roots and reductions: some of the wrong answers cannot be right.
DUMPS: Mapping[str, tuple[int, Mapping[str, int]]] = {
    "torch-2.13": (1, {"other story": 16, "wrong": 6}),
    "torch-2.15": (2, {"other story": 12, "wrong": 4, "ok and hung": 1}),
}
ENDED: Mapping[str, int] = {"other story": 2}
RUNNING: Mapping[str, int] = {"other story": 2}
PROOFS: Mapping[int, int] = {1: 29, 2: 26}
"""Causes with a proof that the independent checker refuses.

It takes the calls of ranks that lost a connection for waits like others: that is five of these.
"""
NOT_BAD = ("right", "fair", "unknown")
SMALL = {
    "end": (("--calls", "3", "--part", "3/20"), ENDED),
    "run": (("--moments", "--calls", "2", "--part", "3/16"), RUNNING),
}


def results(file: Path, *options: str) -> list[dict[str, Any]]:
    command = [sys.executable, "-m", "tests.worlds", "--jobs", "2", "--json", str(file), *options]
    subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
    found: list[dict[str, Any]] = json.loads(file.read_text())
    return found


def over(found: list[dict[str, Any]], ceilings: Mapping[str, int]) -> dict[str, list[Any]]:
    """Return the cases of each bad word of which there are more than its ceiling."""
    counts = Counter(each["word"] for each in found if each["word"] not in NOT_BAD)
    return {
        word: [each.get("case", each.get("world")) for each in found if each["word"] == word][:20]
        for word, count in counts.items()
        if count > ceilings.get(word, 0)
    }


@pytest.mark.parametrize("seed", RANDOM)
def test_random_jobs_get_no_more_bad_verdicts(seed: int, tmp_path: Path) -> None:
    options = ("--proofs", "--count", str(COUNT), "--seed", str(seed))
    found = results(tmp_path / "random.json", *options)

    assert len(found) == COUNT
    assert over(found, RANDOM[seed]) == {}
    proofs = [one for each in found for one in each["proofs"]]
    refused = [one for one in proofs if one["word"] == REFUSED]
    assert len([one for one in proofs if one["word"] == AGREES]) > 10 * len(refused)
    assert len(refused) <= PROOFS[seed], refused


@pytest.mark.parametrize("kind", DUMPS)
def test_dumps_of_random_jobs_get_no_more_bad_verdicts(kind: str, tmp_path: Path) -> None:
    seed, ceilings = DUMPS[kind]
    options = ("--count", str(COUNT), "--seed", str(seed), "--records", kind)

    found = results(tmp_path / "dumps.json", *options)

    assert len(found) == COUNT
    assert over(found, ceilings) == {}


@pytest.mark.parametrize("state", SMALL)
def test_small_jobs_get_no_more_bad_verdicts(state: str, tmp_path: Path) -> None:
    options, ceilings = SMALL[state]

    found = results(tmp_path / "small.json", "--exhaustive", *options)

    assert len(found) > 300
    assert over(found, ceilings) == {}


@pytest.mark.parametrize("kind", [(), ("--small",)], ids=["random", "small"])
def test_executor_agrees_with_gloo(kind: tuple[str, ...]) -> None:
    """Ten programs get stuck in the same calls on paper and as real processes."""
    command = [sys.executable, "-m", "tests.worlds.on_gloo", "--count", "10", *kind]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)

    assert run.returncode == 0, run.stdout
