"""Roots, which are recorded as ranks of the communicator and shown as global ranks."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from ncclscope.engine.verdict import diagnose
from tests.support.cluster import Cluster


def test_a_root_is_shown_by_its_global_rank(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path, 4)
    cluster.post((0, 1), "tp:0", "broadcast", members=(0, 1), root=1)
    cluster.post((2, 3), "tp:1", "broadcast", members=(2, 3), root=1)
    cluster.post((2,), "tp:1", "broadcast", members=(2, 3), root=0, done=False)
    cluster.post((3,), "tp:1", "broadcast", members=(2, 3), root=1, done=False)

    verdict = cluster.verdict()

    assert "broadcast [4,2] float32 root 2" in verdict.summary
    assert "broadcast [4,2] float32 root 3" in verdict.summary
    assert verdict.cause is not None
    assert verdict.cause.odd is not None
    assert verdict.cause.peers is not None
    in_json = {verdict.cause.odd.to_dict()["root"], verdict.cause.peers.to_dict()["root"]}
    assert in_json == {0, 1}, "JSON has the ranks of the communicator"


def test_an_idle_server_on_a_group_is_no_hang(tmp_path: Path) -> None:
    """The root of a group's broadcast waits for requests, and is not rank 0 of the job."""
    cluster = Cluster(tmp_path, 6)
    for _ in range(3):
        cluster.post((3, 4, 5), "tp:1", "broadcast", members=(3, 4, 5), root=0)
    cluster.post((4, 5), "tp:1", "broadcast", members=(3, 4, 5), root=0, done=False)
    run = cluster.run(quiet=30.0)
    ranks = [
        replace(rank, alive=True, details={**rank.details, "waits_for_input": True})
        for rank in run.ranks
    ]

    verdict = diagnose(replace(run, ranks=tuple(ranks)))

    assert verdict.cause is None
    assert (verdict.findings[0].kind, verdict.findings[0].role) == ("not_joined", "latent")


def test_an_idle_pipeline_is_no_hang(tmp_path: Path) -> None:
    """The first stage waits for requests, and the others for what it sends."""
    cluster = Cluster(tmp_path, 3)
    for _ in range(4):
        cluster.post((0,), "world", "send", peer=1)
        cluster.post((1,), "world", "recv", peer=0)
        cluster.post((1,), "world", "send", peer=2)
        cluster.post((2,), "world", "recv", peer=1)
    cluster.post((1,), "world", "recv", peer=0, done=False)
    cluster.post((2,), "world", "recv", peer=1, done=False)
    run = cluster.run(quiet=40.0)
    ranks = [
        replace(
            rank,
            alive=True,
            last_seen_ns=max(c.time_ns or 0 for c in rank.last_transfers().values()) + 40 * 10**9,
            details={**rank.details, **({"waits_for_input": True} if rank.rank == 0 else {})},
        )
        for rank in run.ranks
    ]

    verdict = diagnose(replace(run, ranks=tuple(ranks)))

    assert verdict.cause is None
    assert verdict.status == "unknown"
