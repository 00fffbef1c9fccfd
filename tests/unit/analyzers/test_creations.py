"""Groups created in another order, or not by all: who diverges, and who only waits for it."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import pytest

from ncclscope.engine.verdict import Verdict, diagnose
from ncclscope.parity.sequence import CallStream, Vocabulary
from ncclscope.readers import open_run
from tests.support.cluster import Cluster, agrees

ClusterOf = Callable[[int], Cluster]

FIRST, OWN, ALL = (0, 1), (2, 3), (0, 1, 2, 3)


@pytest.fixture
def cluster(cluster_of: ClusterOf) -> Cluster:
    cluster = cluster_of(4)
    cluster.history("world")
    return cluster


def create(
    cluster: Cluster,
    ranks: Iterable[int],
    group: tuple[int, ...],
    *,
    done: bool = True,
    comm: tuple[int, ...] = ALL,
    gloo: str = "gloo",
) -> None:
    """Create a group; ranks that are not members only pass."""
    for rank in ranks:
        cluster.post(
            [rank],
            "world/groups" if comm == ALL else "groups",
            "new_group",
            members=comm,
            done=done or rank not in group,
            backend="store",
            shape=None,
            dtype=gloo,
            sizes=group,
        )


def answer(verdict: Verdict) -> tuple[str, tuple[int, ...], str]:
    assert verdict.cause is not None
    return verdict.cause.kind, verdict.cause.diverging_ranks, verdict.cause.confidence


def test_another_order_is_no_group_more_and_none_less(cluster: Cluster) -> None:
    for group in (OWN, (1, 3), ALL):
        create(cluster, [0, 1, 2], group)
    for group in ((1, 3), OWN, ALL):
        create(cluster, [3], group)

    verdict = cluster.verdict()

    assert answer(verdict) == ("op_mismatch", (3,), "certain")
    assert verdict.cause is not None
    assert "posted new_group of ranks 1 3 (gloo) as call 1" in verdict.cause.summary
    assert "ranks 0-2 posted new_group of ranks 2 3 (gloo)" in verdict.cause.summary


def test_a_communicator_that_is_lacking_since_groups_were_mixed_says_so(cluster: Cluster) -> None:
    """All ranks exited: rank 3 used what it took for the other group, with another member."""
    for group in ((1, 3), (2, 3)):
        create(cluster, [0, 1, 2], group)
    for group in ((2, 3), (1, 3)):
        create(cluster, [3], group)
    for number, members, other in ((1, (1, 3), "pg1"), (2, (2, 3), "pg2")):
        cluster.post([number], other, members=members)
        cluster.post([3], other, members=(3 - number, 3))
    for tracer in cluster.tracers:
        tracer.close()

    verdict = diagnose(open_run(cluster.directory))

    assert (verdict.status, verdict.cause) == ("incomplete", None)
    assert verdict.summary.endswith(
        "On world/groups the ranks differ in call 1 and completed calls after it."
    )


@pytest.mark.parametrize("rank", [0, 2])
def test_a_group_that_a_rank_did_not_make_is_what_it_left_out(cluster: Cluster, rank: int) -> None:
    """Its peers wait in the group's first call; it has come round to the next call of all."""
    others = [one for one in ALL if one != rank]
    create(cluster, others, ALL)
    cluster.post(others, "pg1", members=ALL, shape=(4,), done=False)
    cluster.post([rank], "world", shape=(99,), done=False)

    verdict = cluster.verdict()

    assert answer(verdict) == ("missing_call", (rank,), "likely")
    assert verdict.cause is not None
    assert verdict.cause.peers is not None
    assert (verdict.cause.peers.op, verdict.cause.seq) == ("new_group", 1)


def test_a_rank_that_has_not_come_to_a_group_did_not_leave_it_out(cluster: Cluster) -> None:
    """It waits nowhere: what holds it up may be before the creation."""
    create(cluster, [0, 1, 3], ALL)
    cluster.post([0, 1, 3], "pg1", members=ALL, shape=(4,), done=False)

    verdict = cluster.verdict()

    assert answer(verdict)[:2] == ("not_joined", (2,))
    assert verdict.cause is not None
    assert verdict.cause.comm is not None
    assert verdict.cause.comm.label == "pg1"


def test_another_backend_is_another_group(cluster: Cluster) -> None:
    create(cluster, [0, 1, 2], OWN, gloo="nccl", done=False)
    create(cluster, [3], OWN, done=False)

    assert answer(cluster.verdict()) == ("op_mismatch", (3,), "certain")


def test_a_group_of_others_must_be_created_too(cluster: Cluster) -> None:
    create(cluster, ALL, (0, 1, 2))
    create(cluster, [0, 1, 2], FIRST)
    create(cluster, ALL, OWN, done=False)

    verdict = cluster.verdict()

    assert answer(verdict) == ("missing_call", (3,), "likely")
    assert verdict.cause is not None
    assert verdict.cause.seq == 2


@pytest.mark.parametrize("before", [True, False])
def test_rank_that_goes_on_without_its_own_group(cluster: Cluster, before: bool) -> None:
    """2 waits for 3 in the creation, 3 for 2 in the world: 3 is where its peers are not yet."""
    if before:
        create(cluster, ALL, FIRST)
    create(cluster, [0, 1, 2], OWN, done=False)
    cluster.post([0, 1, 3], "world", shape=(99,), done=False)

    verdict = cluster.verdict()

    assert answer(verdict) == ("not_joined", (3,), "likely")
    assert verdict.cause is not None
    assert "new_group of ranks 2 3 (gloo), in which rank 2 waits" in verdict.cause.summary
    assert [finding.diverging_ranks for finding in verdict.findings if finding.role == "cause"] == [
        (3,)
    ]


def test_rank_that_creates_what_nobody_else_does(cluster: Cluster) -> None:
    create(cluster, [2], OWN, done=False)
    cluster.post([0, 1, 3], "world", "barrier", done=False)

    assert answer(cluster.verdict())[1] == (2,)


def test_local_group_that_one_member_does_not_create(cluster: Cluster) -> None:
    create(cluster, FIRST, FIRST, comm=FIRST)
    create(cluster, [2], OWN, comm=OWN, done=False)
    cluster.post([0, 1, 3], "world", done=False)

    assert answer(cluster.verdict()) == ("not_joined", (3,), "likely")


def test_in_a_pair_no_rank_is_named_by_its_habits(cluster: Cluster) -> None:
    """Nobody else creates a group like that: 2 may be wrong to do it, or 3 not to."""
    create(cluster, [2], OWN, comm=OWN, done=False)
    cluster.post([0, 1, 3], "world", done=False)

    verdict = cluster.verdict()

    assert answer(verdict) == ("not_joined", (), "ambiguous")
    assert verdict.cause is not None
    assert verdict.cause.candidate_ranks == (2, 3)


def test_late_rank_is_not_waited_for_by_a_group_of_others(cluster: Cluster) -> None:
    create(cluster, [1, 2], OWN, done=False)

    verdict = cluster.verdict()

    assert answer(verdict) == ("not_joined", (3,), "likely")


def test_whoever_splits_a_communicator_waits_for_all_its_members(cluster: Cluster) -> None:
    for rank in (1, 2, 3):
        cluster.post(
            [rank], "world/groups", "new_group", members=ALL, done=False, backend="nccl",
            shape=None, dtype="nccl", sizes=OWN,
        )  # fmt: skip

    assert answer(cluster.verdict())[:2] == ("not_joined", (0,))


def test_creation_at_different_moments_is_no_divergence(cluster: Cluster) -> None:
    create(cluster, [0, 1, 2], FIRST)
    create(cluster, [2], OWN, done=False)

    assert cluster.verdict(quiet=0.3).status == "ok"


@pytest.mark.parametrize("op", ["barrier", "send"])
def test_creation_that_raised_on_all_ranks_is_left(cluster: Cluster, op: str) -> None:
    create(cluster, ALL, ALL)
    create(cluster, ALL, ALL, done=False)
    if op == "barrier":
        cluster.post(ALL, "world", op)
    else:
        for rank in ALL:
            cluster.post([rank], "world", "send", peer=(rank + 1) % 4)
            cluster.post([rank], "world", "recv", peer=(rank - 1) % 4)

    verdict = cluster.verdict()

    assert agrees(verdict)
    assert not verdict.findings


def test_table_shows_creations_only_where_they_differ(cluster: Cluster) -> None:
    create(cluster, ALL, FIRST)
    assert [list(row.cells) for row in cluster.verdict().table] == [["world"]] * 4

    create(cluster, [0, 1, 2], OWN, done=False)
    rows = cluster.verdict().table
    assert [list(row.cells) for row in rows] == [["world", "world/groups"]] * 4
    assert [row.cells["world/groups"].delta for row in rows] == [0, 0, 0, -1]


def test_sequences_of_a_baseline_hold_no_creation(cluster: Cluster) -> None:
    before = Vocabulary()
    without = CallStream(cluster.run().ranks[0]).lines(before)
    create(cluster, ALL, FIRST)
    cluster.post(ALL, "world")

    words = Vocabulary()
    stream = CallStream(cluster.run().ranks[0])
    lines = stream.lines(words)

    assert len(lines) == len(without) + 1
    assert not any("new_group" in text for text in words.texts)
    assert [call.op for call in stream.calls] == ["all_reduce"] * len(lines)


@pytest.mark.parametrize("ended", [True, False])
def test_groups_that_each_half_divides_for_itself(cluster: Cluster, ended: bool) -> None:
    """As new_subgroups(1, group=...) does: healthy where all end in order."""
    for rank in ALL:
        create(cluster, [rank], (rank % 2,))
        create(cluster, [rank], (2 + rank % 2,))
    if ended:
        for tracer in cluster.tracers:
            tracer.close()

    verdict = cluster.verdict()

    assert (verdict.cause is None) is ended
    if ended:
        assert verdict.status == "ok"
        assert [finding.role for finding in verdict.findings] == ["latent"]


def test_most_members_of_a_group_decide_who_gave_another_list(cluster: Cluster) -> None:
    create(cluster, [1, 3], (1, 2, 3), done=False, comm=(1, 2, 3))
    create(cluster, [2], (1, 2), done=False, comm=(1, 2))

    cause = cluster.verdict().cause

    assert cause is not None
    assert (cause.kind, cause.diverging_ranks, cause.confidence) == ("not_joined", (2,), "likely")
    assert "2 of 3 members create the group of ranks 1-3" in " ".join(cause.inferred)


def test_lists_of_which_none_has_most_of_its_members_blame_nobody(cluster: Cluster) -> None:
    """Rank 2 is no member of the group that ranks 0 and 1 cannot agree in."""
    for rank, other in ((0, 1), (1, 2), (2, 0)):
        pair = tuple(sorted((rank, other)))
        create(cluster, [rank], pair, done=False, comm=pair)

    cause = cluster.verdict().cause

    assert cause is not None
    assert (cause.kind, cause.diverging_ranks) == ("not_joined", ())
