"""Point-to-point calls: pairs that do not fit, and what only looks like it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ncclscope.engine.case import Case
from ncclscope.engine.verdict import diagnose
from ncclscope.engine.waits import transfers
from ncclscope.engine.waits.transfers import pairs, short_rank, stuck_transfers
from tests.support.cluster import Cluster, agrees

ClusterOf = Callable[[int], Cluster]


def _transfer(cluster: Cluster, sender: int, receiver: int, rows: int, received: int) -> None:
    cluster.post([sender], "pp:0", "send", peer=receiver, shape=(rows, 2))
    cluster.post([receiver], "pp:0", "recv", peer=sender, shape=(received, 2))


def test_a_pair_that_does_not_fit_names_both(cluster_of: ClusterOf) -> None:
    cluster = cluster_of(4)
    cluster.history("pp:0")
    _transfer(cluster, 0, 2, rows=4, received=4)
    _transfer(cluster, 0, 2, rows=5, received=6)

    verdict = cluster.verdict()

    assert verdict.status == "diverged"
    assert verdict.cause is not None
    assert verdict.cause.kind == "p2p_mismatch"
    assert verdict.cause.diverging_ranks == ()
    assert verdict.cause.candidate_ranks == (0, 2)
    assert verdict.cause.seq == 2


def test_directions_and_peers_are_paired_apart(cluster_of: ClusterOf) -> None:
    """Posted in another order on each side, with collectives between: all of it fits."""
    cluster = cluster_of(4)
    cluster.history("pp:0")
    cluster.post([0], "pp:0", "send", peer=1, shape=(1, 2))
    cluster.post([0], "pp:0", "send", peer=2, shape=(2, 2))
    cluster.post([0], "pp:0", "recv", peer=1, shape=(3, 2))
    cluster.post([1], "pp:0", "send", peer=0, shape=(3, 2))
    cluster.post([1], "pp:0", "recv", peer=0, shape=(1, 2))
    cluster.post([2], "pp:0", "recv", peer=0, shape=(2, 2))
    cluster.post(cluster.everybody, "pp:0")
    cluster.post([3], "pp:0", "send", peer=0, shape=(9, 2))  # not received yet

    verdict = cluster.verdict()

    assert agrees(verdict)
    assert verdict.findings == ()


# --- one half only -------------------------------------------------------------------------


def _send(cluster: Cluster, sender: int, receiver: int, **more: Any) -> None:
    cluster.post([sender], "pp:0", "send", peer=receiver, shape=(4, 2), **more)


def _recv(cluster: Cluster, receiver: int, sender: int, **more: Any) -> None:
    cluster.post([receiver], "pp:0", "recv", peer=sender, shape=(4, 2), **more)


def _ring_step(cluster: Cluster) -> None:
    """Each rank hands something to the next one."""
    for rank in cluster.everybody:
        _transfer(cluster, rank, (rank + 1) % cluster.size, rows=4, received=4)


def test_a_send_to_the_wrong_rank_is_singled_out(cluster_of: ClusterOf) -> None:
    cluster = cluster_of(4)
    cluster.history("pp:0")
    _ring_step(cluster)
    for rank in cluster.everybody:
        _send(cluster, rank, 3 if rank == 1 else (rank + 1) % 4, done=rank != 1)
        _recv(cluster, rank, (rank - 1) % 4, done=rank != 2)
    cluster.post(cluster.everybody, "pp:0", done=False)

    verdict = cluster.verdict()

    assert verdict.status == "diverged"
    (finding,) = verdict.findings
    assert (finding.kind, finding.diverging_ranks) == ("p2p_mismatch", (1,))
    assert finding.candidate_ranks == ()
    assert finding.confidence == "likely"
    assert finding.odd is not None
    assert (finding.odd.op, finding.odd.peer) == ("send", 3)
    assert finding.peers is not None
    assert (finding.peers.op, finding.peers.peer) == ("recv", 1)
    assert "1 transfer before it" in " ".join(finding.evidence)


def test_a_send_without_a_receive_names_both(cluster_of: ClusterOf) -> None:
    cluster = cluster_of(4)
    cluster.history("pp:0")
    _ring_step(cluster)
    _send(cluster, 0, 2, done=False)
    cluster.post(cluster.everybody, "pp:0", done=False)

    cause = cluster.verdict().cause

    assert cause is not None
    assert (cause.kind, cause.diverging_ranks) == ("p2p_mismatch", ())
    assert cause.candidate_ranks == (0, 2)
    assert cause.confidence == "ambiguous"


def test_a_receiver_that_waits_for_its_sender_elsewhere_is_named(cluster_of: ClusterOf) -> None:
    """The sender does not come to the collective, since its send waits for the receive."""
    cluster = cluster_of(2)
    cluster.history("pp:0")
    _ring_step(cluster)
    _send(cluster, 0, 1, done=False)
    cluster.post([1], "pp:0", done=False)

    cause = cluster.verdict().cause

    assert cause is not None
    assert (cause.kind, cause.candidate_ranks) == ("p2p_mismatch", (0, 1))


def test_a_pipeline_is_held_up_by_its_end(cluster_of: ClusterOf) -> None:
    """The middle has two transfers without another half, and no part in either."""
    cluster = cluster_of(3)
    cluster.history("pp:0")
    _send(cluster, 1, 2, done=False)
    _send(cluster, 0, 1, done=False)

    verdict = cluster.verdict()

    assert verdict.cause is not None
    assert (verdict.cause.diverging_ranks, verdict.cause.candidate_ranks) == ((), (1, 2))
    assert [finding.role for finding in verdict.findings] == ["cause", "consequence"]


def test_transfers_are_signs_of_life(cluster_of: ClusterOf) -> None:
    """A pipeline without collectives, of which one transfer is always half posted."""
    cluster = cluster_of(2)
    cluster.history("pp:0")
    _transfer(cluster, 0, 1, rows=4, received=4)
    _send(cluster, 0, 1, done=False)
    run = cluster.run(quiet=60.0)
    assert diagnose(run).cause is not None
    late = [
        replace(
            rank,
            p2p={
                key: [replace(call, time_ns=(call.time_ns or 0) + 59_500_000_000) for call in calls]
                for key, calls in rank.p2p.items()
            },
        )
        for rank in run.ranks
    ]

    assert diagnose(replace(run, ranks=tuple(late))).findings == ()


def test_a_transfer_under_way_is_none_that_waits_in_vain(cluster_of: ClusterOf) -> None:
    cluster = cluster_of(4)
    cluster.history("pp:0")
    _send(cluster, 0, 2, done=False)
    cluster.post(cluster.everybody, "pp:0", done=False)

    assert cluster.verdict(quiet=0.3).findings == ()


def test_a_rank_that_ended_is_no_mismatch(cluster_of: ClusterOf) -> None:
    cluster = cluster_of(4)
    cluster.history("pp:0")
    _send(cluster, 0, 2, done=False)
    cluster.post([0, 2], "pp:0", done=False)

    kinds = {finding.kind for finding in cluster.verdict(quiet={2: 5.0}).findings}

    assert "p2p_mismatch" not in kinds


def test_a_receive_from_anybody_may_have_taken_it(cluster_of: ClusterOf) -> None:
    cluster = cluster_of(4)
    cluster.history("pp:0")
    cluster.post([2], "pp:0", "recv", shape=(4, 2))
    _transfer(cluster, 0, 2, rows=4, received=6)
    _send(cluster, 0, 2, done=False)
    cluster.post(cluster.everybody, "pp:0", done=False)

    assert "p2p_mismatch" not in {finding.kind for finding in cluster.verdict().findings}


def test_a_transfer_that_does_not_end_is_no_stall_of_the_collective_after_it(
    cluster_of: ClusterOf,
) -> None:
    cluster = cluster_of(4)
    cluster.history("pp:0")
    _ring_step(cluster)
    _transfer(cluster, 0, 2, rows=4, received=4)
    _send(cluster, 0, 2, done=False)
    _recv(cluster, 2, 0, done=False)
    cluster.post(cluster.everybody, "pp:0", done=False)

    verdict = cluster.verdict()

    assert verdict.status == "hung"
    (finding,) = verdict.findings
    assert (finding.kind, finding.diverging_ranks) == ("stalled", ())
    assert finding.candidate_ranks == (0, 2)
    assert "transfer 2 from rank 0 to rank 2" in finding.evidence[0]


@pytest.mark.parametrize(("backend", "has_tags"), [("gloo", True), ("nccl", False)])
def test_other_tags_may_keep_a_send_and_a_receive_apart(
    cluster_of: ClusterOf, backend: str, has_tags: bool
) -> None:
    cluster = cluster_of(2)
    cluster.history("world", backend=backend)
    for rank, op in ((0, "send"), (1, "recv")):
        for done in (True, False):
            cluster.post([rank], "world", op, peer=1 - rank, backend=backend, done=done)

    cause = cluster.verdict().cause
    assert cause is not None
    assert (cause.kind, cause.candidate_ranks) == ("stalled", (0, 1))
    assert ("their tags differ" in cause.summary) == has_tags
    assert ("no rank diverged" in cause.summary) != has_tags
    assert ("different tags" in cause.inferred[0]) == has_tags
    assert ("call order is consistent" in cause.inferred[0]) != has_tags


def stuck_beside_a_barrier(cluster: Cluster) -> None:
    """Ranks 2 and 3 are in a transfer with different tags, and ranks 0 and 1 in a barrier."""
    for sender, receiver in ((0, 1), (2, 3)):
        for done in (True, sender == 0):
            cluster.post([sender], "world", "send", peer=receiver, done=done)
            cluster.post([receiver], "world", "recv", peer=sender, done=done)
    cluster.post([0, 1], "world", "barrier", done=False)


def test_who_cannot_come_from_a_stuck_transfer_is_no_second_cause(cluster_of: ClusterOf) -> None:
    cluster = cluster_of(4)
    stuck_beside_a_barrier(cluster)

    cause, barrier = cluster.verdict().findings

    assert (cause.kind, cause.role, cause.candidate_ranks) == ("stalled", "cause", (2, 3))
    assert (barrier.kind, barrier.role) == ("not_joined", "consequence")


def test_who_waits_behind_a_transfer_with_other_tags_is_no_second_cause(
    cluster_of: ClusterOf,
) -> None:
    """A ring in which rank 1 gave its send a tag of its own; ranks 0 and 3 are a step ahead."""
    cluster = cluster_of(4)
    for step in range(3):
        for rank in cluster.everybody:
            stuck = step == 1 and rank in (1, 2)
            if step == 2 and rank in (1, 2):
                continue
            after, before = (rank + 1) % 4, (rank - 1) % 4
            waits = step == 2
            cluster.post([rank], "w", "send", peer=after, done=not (waits or (stuck and rank == 1)))
            cluster.post(
                [rank], "w", "recv", peer=before, done=not (waits or (stuck and rank == 2))
            )

    found = cluster.verdict().findings

    assert (found[0].kind, found[0].role, found[0].candidate_ranks) == ("stalled", "cause", (1, 2))
    assert {one.role for one in found[1:]} <= {"consequence"}


def test_who_is_late_for_another_reason_than_a_transfer_is_a_cause(cluster_of: ClusterOf) -> None:
    """Near miss: rank 4 is in no transfer, and has not come to the barrier either."""
    cluster = cluster_of(5)
    stuck_beside_a_barrier(cluster)
    cluster.comm(4, "world", cluster.everybody)

    roles = {finding.kind: finding.role for finding in cluster.verdict().findings}

    assert roles["stalled"] == "cause"
    assert "consequence" not in roles.values()


def test_who_waits_behind_a_transfer_stalls_nowhere_else(cluster_of: ClusterOf) -> None:
    """Rank 1 sends to nobody; what the others wait for is all posted, and waits for it."""
    cluster = cluster_of(4)
    for pair in ([0, 1], [2, 3]):
        cluster.history("tp:0", members=pair)
    _ring_step(cluster)
    _send(cluster, 1, 3, done=False)
    _send(cluster, 1, 0, done=False)
    _recv(cluster, 0, 1, done=False)
    _send(cluster, 0, 2, done=False)
    _recv(cluster, 2, 0, done=False)
    for pair in ([0, 1], [2, 3]):
        cluster.post(pair, "tp:0", members=pair, done=False)
    cluster.post(cluster.everybody, "pp:0", done=False)

    kinds = [finding.kind for finding in cluster.verdict().findings]

    assert kinds == ["p2p_mismatch"]


def test_a_backend_without_completions_of_transfers_stalls_in_none(cluster_of: ClusterOf) -> None:
    cluster = cluster_of(4)
    cluster.history("pp:0")
    _send(cluster, 0, 2, done=False)
    _recv(cluster, 2, 0, done=False)
    cluster.post(cluster.everybody, "pp:0", done=False)

    (finding,) = cluster.verdict().findings

    assert (finding.kind, finding.candidate_ranks) == ("stalled", (0, 1, 2, 3))


# --- chains ----------------------------------------------------------------------------------


def _pipeline(cluster: Cluster, batches: dict[int, int]) -> None:
    """Each stage receives and sends microbatches, until one side has no more."""
    cluster.history("pp:0")
    last = cluster.size - 1
    for rank in cluster.everybody:
        for number in range(batches.get(rank, 4)):
            before, after = (batches.get(other, 4) for other in (rank - 1, rank + 1))
            if rank:
                done = number < min(before, batches.get(rank, 4))
                _recv(cluster, rank, rank - 1, done=done)
                if not done:
                    break
            if rank < last:
                _send(cluster, rank, rank + 1, done=number < after)


def test_a_stage_that_is_short_towards_both_neighbours_is_named(cluster_of: ClusterOf) -> None:
    cluster = cluster_of(4)
    _pipeline(cluster, {1: 3})

    verdict = cluster.verdict()

    assert verdict.cause is not None
    assert (verdict.cause.kind, verdict.cause.diverging_ranks) == ("not_joined", (1,))
    assert verdict.status == "hung"  # it may yet post its half, and waits nowhere
    assert verdict.cause.confidence == "likely"
    assert {finding.role for finding in verdict.findings[1:]} <= {"consequence"}


def _forgotten_send(cluster: Cluster, odd: int) -> None:
    """The last microbatch gets lost at one stage, which goes on to the collective at the end."""
    cluster.history("pp:0")
    for number in range(4):
        for rank in range(1, cluster.size):
            sent = number < 3 or rank - 1 != odd
            lost = number == 3 and rank - 1 > odd
            if sent and not lost:
                _send(cluster, rank - 1, rank)
            _recv(cluster, rank, rank - 1, done=sent and not lost)
    cluster.post(range(odd + 1), "pp:0", done=False)


@pytest.mark.parametrize("odd", [0, 1, 2])
def test_a_stage_that_forgot_a_send_and_went_on_is_named(cluster_of: ClusterOf, odd: int) -> None:
    cluster = cluster_of(4)
    _forgotten_send(cluster, odd)

    verdict = cluster.verdict()

    assert verdict.cause is not None
    assert (verdict.cause.kind, verdict.cause.diverging_ranks) == ("p2p_mismatch", (odd,))
    assert verdict.cause.confidence == "likely"


@pytest.mark.parametrize("unreceived", [True, False])
def test_a_receive_from_the_wrong_rank_is_singled_out(
    cluster_of: ClusterOf, unreceived: bool
) -> None:
    """The send that was meant for it completes without it, as small ones of gloo's do."""
    cluster = cluster_of(4)
    cluster.history("pp:0")
    for _ in range(2):
        for rank in cluster.everybody:
            _send(cluster, rank, (rank + 1) % 4)
        for rank in cluster.everybody:
            _recv(cluster, rank, (rank - 1) % 4)
    for rank in cluster.everybody:
        if unreceived or rank:
            _send(cluster, rank, (rank + 1) % 4)
        if rank != 1:
            _recv(cluster, rank, (rank - 1) % 4, done=bool(unreceived or rank))
    _recv(cluster, 1, 2, done=False)
    _send(cluster, 2, 3)
    _recv(cluster, 2, 1, done=False)
    cluster.post([0, 3], "pp:0", done=False)

    cause = cluster.verdict().cause

    assert cause is not None
    if unreceived:
        assert (cause.kind, cause.diverging_ranks) == ("p2p_mismatch", (1,))
        assert "has sent it 3 times" in " ".join(cause.evidence)
    else:
        assert cause.candidate_ranks == (1, 2)


@pytest.mark.parametrize(
    ("rounds", "is_served", "is_out_of_turn"),
    [(4, False, True), (4, True, False), (1, False, False)],
)
def test_a_second_answer_to_one_that_asks_again_is_for_another_that_waits(
    cluster_of: ClusterOf, rounds: int, is_served: bool, is_out_of_turn: bool
) -> None:
    """Rank 1 answers all others. Near misses: nobody waits for it; too few turns so far."""
    cluster = cluster_of(4)
    cluster.history("pp:0")
    clients = [0, 2, 3]
    for number in range(rounds + 1):
        is_last = number == rounds
        for client in clients:
            _send(cluster, client, 1)
            cluster.post([1], "pp:0", "recv", shape=(4, 2))
        clients = [*clients[1:], clients[0]] if not is_last else [0, 2, 3]
        for client in clients:
            whom = 2 if is_last and client == 3 and not is_served else client
            _send(cluster, 1, whom, done=whom == client)
            _recv(cluster, client, 1, done=whom == client)
    if is_served:
        _send(cluster, 1, 2, done=False)
    _send(cluster, 2, 1, done=False)

    causes = cluster.verdict().causes

    assert ("took turns" in " ".join(causes[0].inferred)) == is_out_of_turn
    assert causes[0].diverging_ranks == (1,) or not is_out_of_turn


def test_a_receive_that_nobody_else_has_come_to_names_both(cluster_of: ClusterOf) -> None:
    cluster = cluster_of(4)
    cluster.history("pp:0")
    for _ in range(3):
        for rank in range(1, 4):
            _send(cluster, rank - 1, rank)
            _recv(cluster, rank, rank - 1)
    _recv(cluster, 2, 1, done=False)
    cluster.post([0, 1, 3], "pp:0", done=False)

    cause = cluster.verdict().cause

    assert cause is not None
    assert (cause.diverging_ranks, cause.candidate_ranks) == ((), (1, 2))


def test_a_cycle_of_sends_names_all_its_ranks(cluster_of: ClusterOf) -> None:
    cluster = cluster_of(4)
    cluster.history("pp:0")
    for rank in cluster.everybody:
        _send(cluster, rank, (rank + 1) % 4, done=False)

    verdict = cluster.verdict()

    (finding,) = verdict.findings
    assert (finding.kind, finding.diverging_ranks) == ("p2p_mismatch", ())
    assert (finding.candidate_ranks, finding.confidence) == ((0, 1, 2, 3), "ambiguous")
    assert "cycle" in finding.summary


# --- transfers without a number in a pair ------------------------------------------------------


def _serve(cluster: Cluster, requests: int = 3, *, dropped: int | None = None) -> None:
    """Rank 2 receives from any source and answers; ranks 0 and 1 ask it, and synchronize.

    Args:
        cluster: The cluster.
        requests: Requests of each client.
        dropped: A client whose last request the server never receives.
    """
    cluster.history("pp:0")
    for number in range(requests):
        for client in (0, 1):
            last = client == dropped and number == requests - 1
            cluster.post([client], "dp:0", members=[0, 1])
            _send(cluster, client, 2, done=not last)
            if not last:
                cluster.post([2], "pp:0", "recv", shape=(4, 2))
                _send(cluster, 2, client)
                _recv(cluster, client, 2)


def test_a_send_that_a_receiver_from_any_source_never_takes_names_both(
    cluster_of: ClusterOf,
) -> None:
    cluster = cluster_of(4)
    _serve(cluster, dropped=1)
    cluster.post([0, 2, 3], "pp:0", "barrier", done=False)

    verdict = cluster.verdict()

    assert verdict.cause is not None
    assert (verdict.cause.kind, verdict.cause.confidence) == ("p2p_mismatch", "ambiguous")
    assert (verdict.cause.diverging_ranks, verdict.cause.candidate_ranks) == ((), (1, 2))
    assert "6 sends to rank 2 from all ranks, 5 receives there" in verdict.cause.evidence
    (joined,) = (one for one in verdict.findings if one.kind == "not_joined")
    assert (joined.role, joined.confidence) == ("consequence", "likely")
    assert "its last call, send [4,2] float32 peer 2 on pp:0" in joined.summary


def test_a_server_that_several_ranks_wait_for_is_named(cluster_of: ClusterOf) -> None:
    cluster = cluster_of(4)
    _serve(cluster)
    for client in (0, 1):
        _send(cluster, client, 2, done=False)
    cluster.post([2, 3], "pp:0", "barrier", done=False)

    cause = cluster.verdict().cause

    assert cause is not None
    assert (cause.kind, cause.diverging_ranks, cause.confidence) == ("p2p_mismatch", (2,), "likely")


def test_a_receive_from_any_source_that_nobody_sends_names_its_senders(
    cluster_of: ClusterOf,
) -> None:
    cluster = cluster_of(4)
    _serve(cluster)
    cluster.post([2], "pp:0", "recv", shape=(4, 2), done=False)
    cluster.post([0, 1, 3], "pp:0", "barrier", done=False)

    cause = cluster.verdict().cause

    assert cause is not None
    assert (cause.kind, cause.candidate_ranks) == ("p2p_mismatch", (0, 1, 2))
    assert "waits in recv [4,2] float32 from any rank on pp:0" in cause.summary


def test_a_send_not_waited_for_and_received_is_no_mismatch(cluster_of: ClusterOf) -> None:
    """The program drops the handle of each isend; rank 1 then computes."""
    cluster = cluster_of(4)
    cluster.history("pp:0")
    for client in (0, 1):
        _send(cluster, client, 2, done=False)
        cluster.post([2], "pp:0", "recv", shape=(4, 2))
    cluster.post([0, 2, 3], "pp:0", "barrier", done=False)

    cause = cluster.verdict().cause

    assert cause is not None
    assert (cause.kind, cause.diverging_ranks, cause.confidence) == ("not_joined", (1,), "likely")


def test_a_send_without_a_receive_names_both_after_an_overwrite(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path / "rings", 4, capacity=1024)
    cluster.history("pp:0")
    for _ in range(600):
        _transfer(cluster, 1, 2, rows=4, received=4)
        _transfer(cluster, 2, 1, rows=4, received=4)
    _send(cluster, 1, 2, done=False)
    cluster.post([0, 2, 3], "pp:0", "barrier", done=False)

    run = cluster.run()
    cause = diagnose(run).cause

    assert run.by_rank[1].lost
    assert cause is not None
    assert (cause.kind, cause.candidate_ranks) == ("p2p_mismatch", (1, 2))


def test_ranks_that_wait_for_each_other_are_the_cause_at_the_end_of_a_chain(
    tmp_path: Path,
) -> None:
    """Rank 0 waits for 1, which waits for 2; ranks 2 and 3 each wait for the other's half."""
    cluster = Cluster(tmp_path / "rings", 4, capacity=1024)
    cluster.history("pp:0")
    for _ in range(300):
        for rank, peer in ((0, 1), (1, 2), (2, 3)):
            _transfer(cluster, rank, peer, rows=4, received=4)
            _transfer(cluster, peer, rank, rows=4, received=4)
    for rank, peer in ((0, 1), (1, 2), (2, 3), (3, 2)):
        _send(cluster, rank, peer, done=False)

    run = cluster.run()
    findings = diagnose(run).findings

    assert all(rank.lost for rank in run.ranks if rank.rank in (1, 2))
    assert {(one.role, one.candidate_ranks) for one in findings} == {
        ("cause", (2, 3)),
        ("consequence", (0, 1)),
        ("consequence", (1, 2)),
        ("consequence", (2, 3)),
    }


def test_a_send_to_another_stage_is_named_within_a_cycle_of_waits(cluster_of: ClusterOf) -> None:
    """A pipeline of four: rank 1 sends to rank 3 what rank 2 waits for, and rank 3 for rank 2."""
    cluster = cluster_of(4)

    def send(rank: int, peer: int, *, done: bool = True) -> None:
        cluster.post([rank], "world", "send", shape=(64,), peer=peer, done=done)

    def receive(rank: int, peer: int, *, done: bool = True) -> None:
        cluster.post([rank], "world", "recv", shape=(64,), peer=peer, done=done)

    for _ in range(5):
        for rank in range(3):
            send(rank, rank + 1)
            receive(rank + 1, rank)
    send(0, 1)
    receive(1, 0)
    send(1, 3, done=False)
    send(0, 1, done=False)
    receive(2, 1, done=False)
    receive(3, 2, done=False)

    cause = cluster.verdict().cause

    assert cause is not None
    assert (cause.kind, cause.diverging_ranks, cause.confidence) == ("p2p_mismatch", (1,), "likely")


@pytest.mark.parametrize(
    ("workers", "line", "given", "short"),
    [
        ((1, 2, 3), "model.py:10 send", 4, 3),
        ((1, 3), "model.py:10 send", 4, None),  # one against one
        ((1, 2, 3), "other.py:7 send", 4, None),  # it does something else
        ((1, 2, 3), "model.py:10 send", 3, None),  # what it was given is short, too
    ],
)
def test_who_lacks_what_its_sisters_posted_is_short(
    cluster_of: ClusterOf, workers: Sequence[int], line: str, given: int, short: int | None
) -> None:
    """Rank 0 receives from each and answers each; rank 3 waits for more, and sends no more."""
    cluster = cluster_of(4)

    def rollouts(ranks: Iterable[int]) -> None:
        for rank in ranks:
            site = line if rank == 3 else "model.py:10 send"
            cluster.post([rank], "data", "send", peer=0, site=site)
            cluster.post([0], "data", "recv", peer=rank)

    for step in range(4):
        rollouts(workers)
        for rank in workers[: None if step < given else -1]:
            cluster.post([0], "weights", "send", peer=rank)
            cluster.post([rank], "weights", "recv", peer=0)
    rollouts(workers[:-1])
    cluster.post(workers, "weights", "recv", peer=0, done=False)
    cluster.post([0], "data", "recv", peer=3, done=False)
    case = Case(cluster.run())

    found = short_rank(case, stuck_transfers(case))

    assert (found and found[0]) == short


def test_pairs_are_sought_as_often_in_a_large_ring_as_in_a_small_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a ring all wait, and pairs are as many as the square of the ranks."""
    counts = []
    for size in (4, 12):
        cluster = Cluster(tmp_path / str(size), size)
        _ring_step(cluster)
        for rank in range(size):
            _recv(cluster, rank, (rank - 1) % size, done=False)
        case = Case(cluster.run())
        found, asked = stuck_transfers(case), []
        monkeypatch.setattr(
            transfers, "pairs", lambda of, asked=asked: asked.append(of) or pairs(of)
        )
        assert short_rank(case, found) is None
        counts.append(len(asked))

    assert counts[0] == counts[1]


def test_transfers_over_gloo_say_nothing_about_those_over_nccl(cluster_of: ClusterOf) -> None:
    """A stage sends the shapes over gloo, which reports their end, and the data over NCCL."""
    cluster = cluster_of(2)
    for _ in range(3):
        for label, backend in (("pp:0/cpu", "gloo"), ("pp:0/device", "nccl")):
            for rank, op in ((0, "send"), (1, "recv")):
                done = backend == "gloo"
                cluster.post([rank], label, op, peer=1 - rank, backend=backend, done=done)

    assert cluster.verdict().cause is None
