"""Directories in which the rings of many jobs lie that are over."""

from __future__ import annotations

from pathlib import Path

import pytest

from ncclscope import open_run
from ncclscope.readers.ring import crowd
from ncclscope.ring import layout
from ncclscope.ring.image import RingImage
from ncclscope.watch.jobs import Rings
from tests.support.cluster import Cluster
from tests.support.rings import put_word

DAY = 86_400 * 10**9


@pytest.fixture(autouse=True)
def few_are_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(crowd, "MANY", 3)


def _job(directory: Path, label: str) -> Cluster:
    cluster = Cluster(directory, 2)
    cluster.history(label)
    for tracer in cluster.tracers:
        tracer.close()
    return cluster


def _set_heartbeat(path: str | Path, earlier_ns: int) -> None:
    """Move the last heartbeat of a process to an earlier time."""
    with RingImage(Path(path)) as ring:
        heartbeat = ring.word(layout.HEADER_HEARTBEAT)
    put_word(path, layout.HEADER_HEARTBEAT, heartbeat - earlier_ns)


def test_jobs_that_were_over_long_before_are_left_out(tmp_path: Path) -> None:
    for tracer in _job(tmp_path / "old", "tp:0").tracers:
        _set_heartbeat(tracer.path, DAY)
    _job(tmp_path / "new", "dp:0")

    run = open_run(tmp_path)

    assert {comm.label for comm in run.communicators.values()} == {"dp:0"}
    assert "2 rings of earlier jobs left out" in run.notes
    rings = Rings(tmp_path)
    rings.scan(0.0, 0)
    assert {path.parent.name for path in rings.cursors} == {"new"}


def test_a_rank_that_ended_while_its_job_ran_is_kept(tmp_path: Path) -> None:
    for tracer in _job(tmp_path / "old", "tp:0").tracers:
        _set_heartbeat(tracer.path, DAY)
    cluster = _job(tmp_path / "new", "dp:0")
    _set_heartbeat(cluster.tracers[1].path, crowd.SLACK_NS // 2)

    assert len(open_run(tmp_path).ranks) == 2


def test_a_file_that_is_no_ring_is_still_spoken_of(tmp_path: Path) -> None:
    _job(tmp_path / "new", "dp:0")
    _job(tmp_path / "more", "dp:0")
    (tmp_path / f"torn{layout.SUFFIX}").write_bytes(b"torn")

    assert any("torn" in note for note in open_run(tmp_path).notes)


def test_few_rings_are_all_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(crowd, "MANY", 4)
    for tracer in _job(tmp_path / "old", "tp:0").tracers:
        _set_heartbeat(tracer.path, DAY)
    _job(tmp_path / "new", "dp:0")

    assert not any("over before" in note for note in open_run(tmp_path).notes)
