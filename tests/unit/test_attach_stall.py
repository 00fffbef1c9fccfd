"""How long living ranks must have been quiet, where their processes were looked at, too."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from ncclscope.analysis.verdict import diagnose
from ncclscope.model import Run
from tests.captures import capture, elsewhere, in_collective, worker
from tests.cluster import Cluster


def living(directory: Path, seconds: float) -> Run:
    """Rank 0 waits for rank 1; each gave its last sign of life so long after its last call."""
    cluster = Cluster(directory, 2)
    cluster.post((0, 1), "world")
    cluster.post((0,), "world", done=False)
    run = cluster.run()
    ranks = []
    for rank in run.ranks:
        call = rank.last_call()
        assert call is not None
        ranks.append(replace(rank, alive=True, last_seen_ns=call.time_ns + int(seconds * 1e9)))
    return replace(run, ranks=tuple(ranks))


@pytest.mark.parametrize(("seconds", "status"), [(1.2, "hung"), (0.8, "ok")])
def test_the_last_beat_may_be_a_second_older_than_the_look(
    tmp_path: Path, seconds: float, status: str
) -> None:
    still = capture([worker(0, in_collective("all_reduce", 10)), worker(1, elsewhere(12))], gap=2.0)

    verdict = diagnose(replace(living(tmp_path, seconds), capture=still))

    assert verdict.status == status


def test_a_process_that_computes_may_be_on_its_way(tmp_path: Path) -> None:
    computes = worker(1, elsewhere(12), elsewhere(13), cpu=2.0, state="R")
    seen = capture([worker(0, in_collective("all_reduce", 10)), computes], gap=2.0)

    assert diagnose(replace(living(tmp_path, 20.0), capture=seen)).status == "ok"


def test_without_a_look_half_a_minute_counts(tmp_path: Path) -> None:
    assert diagnose(living(tmp_path, 20.0)).status == "ok"
    assert diagnose(living(tmp_path, 40.0)).status == "hung"
