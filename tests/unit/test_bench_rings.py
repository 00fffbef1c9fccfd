"""Rings of the benchmark: sparse ones are read as full ones are, and nowhere else."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from benchmarks.runners.reads import joined, read_ranges
from benchmarks.runners.rings import DIVERGING, make_rings
from ncclscope.engine.verdict import diagnose
from ncclscope.errors import DamagedFileError
from ncclscope.readers import open_run
from ncclscope.ring.reader import RingFile

RANKS, CAPACITY = 18, 40_000


def document(directory: Path) -> dict[str, Any]:
    verdict = diagnose(open_run(directory)).to_dict()
    del verdict["verdict"]["evidence"]  # which speaks of times
    return {name: verdict[name] for name in ("status", "ranks", "verdict", "table")}


@pytest.fixture(scope="module")
def jobs(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    directory = tmp_path_factory.mktemp("jobs")
    for name in ("full", "sparse"):
        make_rings(directory / name, RANKS, capacity=CAPACITY, sparse=name == "sparse")
    return directory / "full", directory / "sparse"


@pytest.mark.timeout(400)  # it writes 36 rings
def test_both_say_the_same_and_are_read_alike(jobs: tuple[Path, Path]) -> None:
    full, sparse = jobs

    assert document(sparse) == document(full)
    assert document(sparse)["verdict"]["diverging_ranks"] == [DIVERGING]
    assert read_ranges(sparse) == read_ranges(full)


def test_holes_are_not_read_as_records(jobs: tuple[Path, Path]) -> None:
    full, sparse = jobs
    size = sum(file.stat().st_blocks for file in full.iterdir())
    assert sum(file.stat().st_blocks for file in sparse.iterdir()) < size / 2

    for rank in open_run(sparse).ranks[:DIVERGING]:
        log = next(log for key, log in rank.logs.items() if key.startswith("tp"))
        with RingFile(Path(rank.source)) as ring:
            assert len(ring.window(ring.oldest, ring.head)) < CAPACITY / 2
        with pytest.raises(DamagedFileError, match=r"call .* is missing"):
            log.span(log.first, log.calls + 1)


def test_ranges_that_touch_are_one() -> None:
    assert joined([(8, 12), (0, 4), (4, 6), (9, 10)]) == [(0, 6), (8, 12)]
