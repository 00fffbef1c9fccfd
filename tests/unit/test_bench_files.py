"""The files that a diagnosis goes through, as the benchmark counts them."""

from __future__ import annotations

from pathlib import Path

from benchmarks.runners.files import passed_through
from tests.support.cluster import Cluster


def test_a_diagnosis_comes_to_the_readers_then_the_engine_and_the_analyzers(
    tmp_path: Path,
) -> None:
    cluster = Cluster(tmp_path, 4)
    cluster.history()
    cluster.post([0, 1, 3], "tp:0", done=False)

    files = list(dict.fromkeys(passed_through(cluster.directory)))
    first = [
        next(number for number, path in enumerate(files) if path.startswith(room))
        for room in ("ncclscope/readers/", "ncclscope/engine/", "analyzers/")
    ]

    assert first == sorted(first)
    assert "analyzers/ncclscope_analyzers/not_joined.py" in files
