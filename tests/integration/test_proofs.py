"""An independent checker verifies what verdicts claim of their repairs and rivals."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from ncclscope import diagnose, open_run
from tests.corpus.registry import all_cases
from tests.proofs.tally import Checked, examine, table
from tests.worlds.sample import examined, sample

WORLDS = 120
# Ceilings only go down: whoever mends a proof lowers them to what is reached then.
REFUSED_WORLDS, REFUSED_CASES = 3, 8
CASES = all_cases()


def worlds() -> Iterator[Checked]:
    for number in range(WORLDS):
        drawn = sample(1, number)
        yield from examined(drawn.world, drawn.outcome, examine)


def refused(checked: list[Checked]) -> list[str]:
    return [str(one) for one in checked if one.is_refused]


@pytest.mark.timeout(600)
def test_proofs_of_random_jobs_hold() -> None:
    checked = list(worlds())

    assert len(checked) > WORLDS / 3
    assert len(refused(checked)) <= REFUSED_WORLDS, "\n".join([table(checked), *refused(checked)])


@pytest.mark.timeout(600)
@pytest.mark.parametrize("part", [0, pytest.param(None, marks=pytest.mark.slow)])
def test_proofs_of_the_corpus_hold(part: int | None, tmp_path: Path) -> None:
    """The formats of a case differ in what they know, not in what was posted."""
    names = [name for name in CASES if name.endswith((".rings", ".jsonl"))]
    checked = []
    for name in names if part is None else names[part::8]:
        CASES[name].write(tmp_path / name)
        run = open_run(tmp_path / name)
        checked += examine(run, diagnose(run).to_dict())

    assert len(checked) > (10 if part == 0 else 100)
    assert len(refused(checked)) <= REFUSED_CASES, "\n".join([table(checked), *refused(checked)])
