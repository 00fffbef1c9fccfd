"""Ranks with another world size, some of which have come to their calls."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from ncclscope.engine.verdict import Verdict, diagnose
from ncclscope.model import Activity
from ncclscope.model.activities import INIT
from tests.support.cluster import Cluster
from tests.support.snapshots import in_collective, judged, worker

SIZE = 4


def verdict_on(cluster: Cluster, sizes: Mapping[int, int], inside: tuple[int, ...]) -> Verdict:
    """Return the verdict where ranks have other world sizes, or are in init_process_group."""
    run = cluster.run()
    ranks = []
    for rank in run.ranks:
        began = (rank.started_ns or 0) + 1
        entered = Activity(INIT, "gloo at train.py:9 main", 0, 1, began, None)
        ranks.append(
            replace(
                rank,
                world_size=sizes.get(rank.rank, SIZE),
                activities={INIT: entered} if rank.rank in inside else {},
            )
        )
    return diagnose(replace(run, ranks=tuple(ranks)))


def test_a_rank_with_another_world_size_is_named(tmp_path: Path) -> None:
    """Rank 1 sees three ranks: it and rank 0 go on, and rank 0 waits for all four."""
    cluster = Cluster(tmp_path, SIZE)
    cluster.post([0], "world", done=False)
    cluster.post([1], "world", members=range(3), done=False)

    verdict = verdict_on(cluster, {1: 3}, inside=(2, 3))

    cause = verdict.cause
    assert cause is not None
    assert (verdict.status, cause.kind, cause.diverging_ranks) == ("hung", "init_stalled", (1,))
    assert cause.summary.startswith("Rank 1 has world size 3, ranks 0 2 3 have 4: ")
    assert {one.role for one in verdict.findings[1:]} <= {"consequence", "latent"}


def test_two_sizes_of_two_ranks_each_single_out_none(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path, SIZE)
    cluster.post([0], "world", done=False)
    cluster.post([1], "world", members=range(3), done=False)

    cause = verdict_on(cluster, {1: 3, 2: 3}, inside=(2, 3)).cause

    assert cause is not None
    assert (cause.kind, cause.diverging_ranks) == ("init_stalled", ())
    assert cause.candidate_ranks == (0, 1, 2, 3)


def test_worlds_of_their_own_may_have_their_own_sizes(tmp_path: Path) -> None:
    """Near miss: rank 3 is no member of the world whose ranks wait for rank 2."""
    cluster = Cluster(tmp_path, SIZE)
    cluster.post([0, 1], "world", members=range(3), done=False)

    cause = verdict_on(cluster, {0: 3, 1: 3, 2: 3, 3: 4}, inside=()).cause

    assert cause is not None
    assert (cause.kind, cause.diverging_ranks) == ("not_joined", (2,))


def test_who_has_come_through_the_rendezvous_keeps_nobody_in_it(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path, SIZE)
    cluster.post([0], "world", done=False)

    cause = verdict_on(cluster, {}, inside=(1, 2, 3)).cause

    assert cause is not None
    assert (cause.kind, cause.diverging_ranks) == ("init_stalled", ())
    assert cause.candidate_ranks == (1, 2, 3)


def test_stacks_do_not_blame_who_has_come_through_the_rendezvous() -> None:
    inside = [worker(rank, in_collective("init_process_group", 9)) for rank in (0, 2, 3)]
    verdict = judged(*inside, worker(1, in_collective("all_reduce", 12)), gap=12.0)

    cause = verdict.cause
    assert cause is not None
    assert cause.diverging_ranks == ()
    assert {*cause.candidate_ranks} >= {0, 2, 3}
