"""Jobs that a rank of another job starts, whose processes record in the same directory."""

from __future__ import annotations

import os
from pathlib import Path

from ncclscope import procfs
from ncclscope.engine.verdict import diagnose
from ncclscope.readers import open_run
from tests.support.cluster import Cluster

LAUNCHER = 3000
"""Pid of the torchrun that rank 0, of pid 1000, has started."""


def _outer(directory: Path) -> Cluster:
    cluster = Cluster(directory, 2)
    cluster.history("world")
    cluster.post((1,), "world", "barrier", done=False)
    return cluster


def _inner(directory: Path, label: str = "inner") -> Cluster:
    cluster = Cluster(directory, 2)
    for rank, tracer in enumerate(cluster.tracers):
        tracer.describe(pid=2000 + rank, ancestors=[LAUNCHER, 1000, 900])
    cluster.history(label)
    return cluster


def test_a_job_that_a_rank_starts_is_a_job_of_its_own(tmp_path: Path) -> None:
    outer, _ = _outer(tmp_path), _inner(tmp_path)
    launcher = Cluster(tmp_path, 1)
    launcher.tracers[0].describe(pid=LAUNCHER, ancestors=[1000, 900])

    run = open_run(tmp_path)

    assert [rank.pid for rank in run.ranks] == [1000, 1001]
    assert (run.expected, run.notes) == (2, ())
    (inner,) = run.linked
    assert inner.started_by == 0
    assert [rank.pid for rank in inner.ranks] == [2000, 2001]
    assert [other.pid for other in inner.others] == [LAUNCHER], "it has inherited its rank"
    assert "Rank 0" in outer.verdict().summary


def test_a_hang_in_it_is_why_the_ranks_outside_wait(tmp_path: Path) -> None:
    outer, inner = _outer(tmp_path), _inner(tmp_path)
    inner.post((0,), "inner", "all_gather", done=False)
    inner.post((1,), "inner", "broadcast", root=0, done=False)

    verdict = diagnose(outer.run())

    assert verdict.summary.startswith("Job started by rank 0: At call 6 on inner of ranks 0 1")
    assert [rank.pid for rank in verdict.run.ranks] == [2000, 2001]
    assert "rank 0 of another job started these ranks" in verdict.notes[-1]


def test_ranks_that_a_rank_starts_for_its_own_job_belong_to_it(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path, 4)
    for rank in (1, 2, 3):
        cluster.tracers[rank].describe(ancestors=[1000, 900])
    cluster.history("world")

    run = open_run(tmp_path)

    assert [rank.rank for rank in run.ranks] == [0, 1, 2, 3]
    assert not run.linked


def test_a_process_knows_its_ancestors() -> None:
    found = procfs.ancestors(os.getpid())

    assert not found or found[0] == os.getppid()
    assert 1 not in found
    assert len(set(found)) == len(found)
