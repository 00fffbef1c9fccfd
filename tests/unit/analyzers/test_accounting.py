"""Causes account for all that waits: victims follow from them, rivals limit their confidence."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from ncclscope import open_run
from ncclscope.engine.verdict import diagnose
from tests.corpus.workload import Workload
from tests.corpus.writers import write
from tests.support.cluster import Cluster
from tests.worlds.sample import sample, verdict_on

ClusterOf = Callable[[int], Cluster]


def transfer(cluster: Cluster, sender: int, receiver: int, *, halves: str = "sr") -> None:
    done = halves == "sr"
    if "s" in halves:
        cluster.post([sender], "world", "send", peer=receiver, done=done)
    if "r" in halves:
        cluster.post([receiver], "world", "recv", peer=sender, done=done)


def test_who_waits_in_a_transfer_is_a_victim_of_the_rank_at_its_other_end(
    cluster_of: ClusterOf,
) -> None:
    """Rank 2 was named, which sends to the stopped rank 3 while ranks 0 and 1 wait for it."""
    cluster = cluster_of(4)
    cluster.history("world")
    for _ in range(3):
        transfer(cluster, 2, 3)
    transfer(cluster, 2, 3, halves="s")
    cluster.post([0, 1], "world", done=False)
    run = cluster.run(quiet={0: 600.0, 1: 600.0, 2: 600.0, 3: 0.0})

    causes = [one for one in diagnose(run).findings if one.role == "cause"]

    assert [one.diverging_ranks for one in causes] == [(3,)]


def test_a_rank_that_lost_its_connection_is_no_second_dead_rank(cluster_of: ClusterOf) -> None:
    cluster = cluster_of(3)
    cluster.history("world")
    for _ in range(2):
        transfer(cluster, 2, 1)
    transfer(cluster, 2, 1, halves="r")
    cluster.post([0], "world", done=False)
    lost = "RuntimeError: [pair.cc:553] Connection closed by peer [10.0.0.9]:4242"
    for rank, error in ((0, lost), (1, lost), (2, "RuntimeError: loss is not finite")):
        cluster.tracers[rank].describe(ended_with=error)
        cluster.tracers[rank].close()

    causes = [one for one in cluster.verdict().findings if one.role == "cause"]

    assert [one.diverging_ranks for one in causes] == [(2,)]


def test_in_a_cycle_of_two_calls_nobody_is_named_with_certainty(cluster_of: ClusterOf) -> None:
    """Rank 1 may have posted an extra call on the pair, or rank 0 have left it out."""
    cluster = cluster_of(2)
    cluster.history("world")
    cluster.history("tp:0")
    cluster.post([0], "world", done=False)
    cluster.post([1], "tp:0", "all_gather", shape=(3, 3), done=False)

    causes = [one for one in cluster.verdict().findings if one.role == "cause"]

    assert causes
    assert "certain" not in {one.confidence for one in causes}


def test_ranks_that_waited_until_the_job_was_killed_are_no_ok(tmp_path: Path) -> None:
    """Ranks 0 and 1 are killed, and ranks 2 and 3 wait for ten minutes: it was ok."""
    job = Workload(4, seed="killed", quiet=600.0)
    for number in range(20):
        ranks = [*([0] if number < 16 else []), *([1] if number < 19 else []), 2, 3]
        job.post(ranks, "all_reduce", 8, 2, redop="sum")
    for rank in (0, 1):
        job.end(rank, "killed")
    write(job, tmp_path, "jsonl")

    verdict = diagnose(open_run(tmp_path))

    causes = [(one.kind, one.diverging_ranks) for one in verdict.findings if one.role == "cause"]
    assert verdict.status == "hung"
    assert causes == [("dead_rank", (0,)), ("dead_rank", (1,))]


def test_who_failed_in_a_call_and_is_missed_by_nobody_is_not_described_as_missed(
    cluster_of: ClusterOf,
) -> None:
    """Rank 1 failed while it waited for rank 2, as another thread of it can: it raised here."""
    cluster = cluster_of(4)
    cluster.history("world")
    cluster.post([0, 1, 3], "world", done=False)
    cluster.tracers[1].describe(ended_with="RuntimeError: loss is not finite")
    cluster.tracers[1].close()

    causes = [one for one in cluster.verdict().findings if one.role == "cause"]

    assert [one.diverging_ranks for one in causes] == [(2,)]


@pytest.mark.parametrize("absent", [[2], [2, 3]])
def test_the_proof_counts_what_a_repair_releases(cluster_of: ClusterOf, absent: list[int]) -> None:
    cluster = cluster_of(6)
    cluster.history("world")
    waiting = [rank for rank in range(6) if rank not in absent]
    cluster.post(waiting, "world", done=False)

    cause = cluster.verdict().cause

    assert cause is not None
    assert cause.diverging_ranks == tuple(absent)
    proof = cause.to_dict()["proof"]
    assert proof["repair"] == {"kind": "not_joined", "ranks": absent, "calls": [], "comes": []}
    assert proof["releases"] == proof["of"] == len(waiting)
    assert proof["rival"]["releases"] < proof["of"]
    assert proof["rival_against"] == [
        f"releases {proof['rival']['releases']} of {len(waiting)} waiting ranks"
    ]


def test_a_rank_that_lost_a_connection_in_its_last_call_makes_no_job_ok() -> None:
    """Rank 3 is in a barrier of a pair whose other rank was killed; all others have exited."""
    drawn = sample(970, 2391)

    assert drawn.outcome.ended == {0: "exit", 1: "exit", 2: "kill", 3: "lost", 4: "exit"}
    assert verdict_on(drawn.world, drawn.outcome)["status"] == "hung"


def test_a_rank_without_a_dump_accounts_for_calls_that_its_peers_have_not_reached() -> None:
    """Rank 4 exited. Ranks 0 and 1 were said to be in a call too many, and rank 5 to be wrong."""
    drawn = sample(1, 290, records="torch-2.13")

    causes = verdict_on(drawn.world, drawn.outcome, "torch-2.13")["verdict"]["causes"]

    assert [(one["kind"], one["diverging_ranks"]) for one in causes] == [("dead_rank", [4])]


def test_who_waits_for_a_root_that_is_not_recorded_is_not_named() -> None:
    """Rank 4 takes another rank for the root; ranks 0 and 2 get nothing, and did nothing wrong."""
    drawn = sample(1, 283, records="torch-2.13")

    verdict = verdict_on(drawn.world, drawn.outcome, "torch-2.13")["verdict"]

    assert (verdict["diverging_ranks"], verdict["candidate_ranks"]) == ([], [*range(8)])
    assert "Ranks 0 2 4 are in broadcast" in verdict["summary"]


def test_who_is_late_beside_another_cause_is_not_certain(cluster_of: ClusterOf) -> None:
    cluster = cluster_of(6)
    cluster.history("world")
    cluster.post([0, 1, 2], "world", done=False)
    cluster.post([5], "world", "all_gather", done=False)

    causes = [one for one in cluster.verdict().findings if one.role == "cause"]

    assert {rank for one in causes for rank in one.diverging_ranks} == {3, 4, 5}
    assert all(one.confidence != "certain" for one in causes if one.kind == "not_joined")


@pytest.mark.parametrize(("exchange", "confidence"), [(True, "likely"), (False, "certain")])
def test_ranks_that_exchange_may_hold_each_other_up(
    cluster_of: ClusterOf, exchange: bool, confidence: str
) -> None:
    """NCCL does not show whether the transfer between them has completed."""
    cluster = cluster_of(6)
    nodes = {"node:0": (0, 1, 2), "node:1": (3, 4, 5)}
    for label, members in nodes.items():
        for _ in range(3):
            cluster.post(members, label, "barrier", members=members, backend="nccl")
    if exchange:
        cluster.post([2], "world", "send", peer=3, backend="nccl", done=False)
        cluster.post([3], "world", "recv", peer=2, backend="nccl", done=False)
    cluster.post([2, 3], "pp:1", members=(2, 3), backend="nccl", done=False)
    for label, members in nodes.items():
        waiting = {*members} - {2, 3}
        cluster.post(waiting, label, "barrier", members=members, backend="nccl", done=False)

    cause = cluster.verdict().cause

    assert cause is not None
    assert (cause.kind, cause.diverging_ranks) == ("not_joined", (2, 3))
    assert cause.confidence == confidence


def _causes(seed: int, number: int) -> list[tuple[str, list[int], list[int], str]]:
    """Return what the causes of a random small job name, and how certain they are."""
    drawn = sample(seed, number)
    found = verdict_on(drawn.world, drawn.outcome)["findings"]
    return [
        (one["kind"], one["diverging_ranks"], one["candidate_ranks"], one["confidence"])
        for one in found
        if one["role"] == "cause"
    ]


@pytest.mark.parametrize(("number", "absent"), [(7025, 5), (337, 2)])
def test_an_open_send_to_a_rank_without_a_record_holds_its_rank_up(
    number: int, absent: int
) -> None:
    """The sender received later, or another of its threads went on: it was named itself."""
    assert _causes(1205, number) == [("dead_rank", [absent], [], "likely")]


def test_a_rank_without_a_record_is_none_of_those_that_never_posted_a_call() -> None:
    """Rank 0 waits, rank 1 has exited, and what rank 2 did is not recorded: rank 0 was named."""
    assert _causes(1201, 2432) == [("dead_rank", [], [0, 1, 2], "ambiguous")]


@pytest.mark.parametrize(("seed", "number", "guilty"), [(1201, 3159, 3), (1203, 13964, 7)])
def test_peers_that_are_through_are_not_missing_in_a_round_too_many(
    seed: int, number: int, guilty: int
) -> None:
    """A rank posted a round twice, and its last calls find no peer: these were named as well."""
    assert _causes(seed, number) == [("extra_call", [guilty], [], "likely")]


def test_a_call_that_ranks_have_gone_on_from_is_not_what_they_wait_in() -> None:
    """Ranks 0 to 2 wait for rank 3 in a barrier, behind the first broadcast of its line."""
    assert _causes(1203, 13947) == [("not_joined", [3], [], "certain")]


def test_a_call_is_no_wait_because_others_of_its_operation_were_waited_for() -> None:
    """Ranks 0 and 1 were said to be in a broadcast of a line that nobody had waited for."""
    assert _causes(1202, 8570) == [("dead_rank", [2], [], "certain")]


def test_a_rank_is_not_late_after_milliseconds_beside_one_that_has_exited() -> None:
    assert _causes(1203, 322) == [("dead_rank", [3], [], "likely")]


def test_a_rank_whose_repair_releases_less_than_a_rival_is_not_named() -> None:
    """Rank 2 posted a call too many; with rank 1, which was named, all others would still wait."""
    assert _causes(1205, 14874) == [("not_joined", [], [0, 1, 2], "ambiguous")]


def test_who_waits_behind_a_transfer_that_does_not_fit_is_not_named_as_late() -> None:
    """Ranks 4 and 5 wait in a later call of their own, and were said with certainty to be late."""
    assert "not_joined" not in {kind for kind, *_ in _causes(1203, 17257)}


def test_a_majority_that_skipped_the_call_of_each_round_proves_nothing() -> None:
    """Ranks 1 and 2 skipped a call; rank 0, which posted it as always, was named with certainty."""
    assert _causes(1204, 10952) == [("extra_call", [0], [], "likely")]


def test_a_rank_whose_own_calls_differ_is_no_part_of_a_majority() -> None:
    """Ranks 0 and 1 each left out calls of their own; rank 2 was named with certainty."""
    assert ("extra_call", [2], [], "likely") in _causes(1205, 10095)


def test_a_rank_may_wait_in_a_call_whose_record_is_overwritten() -> None:
    """Rank 2 waits in a pair for rank 3, which went to the world instead; a thread wrote on."""
    assert _causes(1202, 9221) == [("not_joined", [2], [], "likely")]


def test_ranks_in_a_transfer_that_may_not_fit_are_not_certainly_late() -> None:
    """Ranks 0 and 1 wait in it, and were said with certainty to stay away from the others."""
    assert ("not_joined", [0, 1], [], "likely") in _causes(1301, 3889)


@pytest.mark.parametrize(
    ("number", "expected"),
    [
        (4364, ("p2p_mismatch", [], [5, 6], "ambiguous")),
        (4758, ("order_cycle", [], [2, 3], "ambiguous")),
    ],
)
def test_no_cause_is_about_ranks_beside_those_whose_repair_releases_all(
    number: int, expected: tuple[str, list[int], list[int], str]
) -> None:
    """Rank 0, whose transfers wait for others, was named or a candidate; a call was stalled."""
    assert _causes(1401, number) == [expected]


@pytest.mark.parametrize(
    ("seed", "number", "ended"), [(1508, 9442, 2), (1508, 18039, 1), (1509, 18779, 0)]
)
def test_ranks_wait_for_who_has_ended_in_transfers_without_numbers(
    seed: int, number: int, ended: int
) -> None:
    """Their rings had overwritten the first transfers, and nobody was recorded to wait."""
    assert _causes(seed, number) == [("dead_rank", [ended], [], "likely")]


@pytest.mark.parametrize(
    ("seed", "number"),
    [
        (1204, 11020),  # killed; only rank 3 exchanged transfers with it
        (1202, 15705),
        (1510, 8688),
        (1205, 2291),  # failed, in a call that others did not come to
    ],
)
def test_calls_on_nccl_stay_open_when_a_process_that_posted_them_ends(
    seed: int, number: int
) -> None:
    """All members had posted all calls, and the call itself was said not to complete."""
    assert _causes(seed, number) == [("dead_rank", [4], [], "likely")]


def test_a_line_that_nobody_waited_for_holds_no_rank_because_others_did() -> None:
    """All had posted a call of a new line, and it was said not to complete: rank 2 is elsewhere."""
    assert _causes(1510, 13759) == []


def test_who_is_late_for_a_call_on_the_wrong_group_is_not_late_for_certain() -> None:
    """Rank 0 alone waits on the group of all, in a call that belongs on that of its pair."""
    assert _causes(1802, 17131) == [
        ("comm_swap", [0], [], "likely"),
        ("dead_rank", [2, 4], [], "likely"),
    ]


def test_each_rank_whose_repair_alone_releases_all_is_a_candidate() -> None:
    """Rank 0 posted a round once more; ranks 1 and 2, the ends of a transfer, were candidates."""
    drawn = sample(1802, 544, "")

    document = verdict_on(drawn.world, drawn.outcome)

    causes = [one for one in document["findings"] if one["role"] == "cause"]
    assert [one["candidate_ranks"] for one in causes] == [[0, 1, 2]]


@pytest.mark.parametrize(
    ("seed", "number", "either"), [(1801, 6171, [0, 1, 2, 3, 4]), (1802, 5471, [1, 2])]
)
def test_in_a_cycle_a_rank_that_went_its_known_way_is_not_named(
    seed: int, number: int, either: list[int]
) -> None:
    """Another rank left out a collective and came to its next transfer, which is new there."""
    assert _causes(seed, number) == [("p2p_mismatch", [], either, "ambiguous")]


def test_who_is_inside_a_group_whose_calls_differ_is_not_late_for_certain() -> None:
    """Ranks 1 and 3 are in a broadcast of a group, the members of which name other roots."""
    assert _causes(1910, 3034) == [("not_joined", [1, 3], [], "likely")]
