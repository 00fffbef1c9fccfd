"""Sequences that agree, and ranks that wait; for each kind a test that triggers, a near miss."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from ncclscope.engine.verdict import Verdict, diagnose
from ncclscope.model.activities import COMPILE, STORE_WAIT
from tests.support.cluster import Cluster, agrees
from tests.worlds.sample import sample, verdict_on

ClusterOf = Callable[[int], Cluster]


def test_not_joined_names_the_rank_that_is_elsewhere(cluster_of: ClusterOf) -> None:
    cluster = cluster_of(4)
    cluster.history()
    cluster.post([0, 1, 3], "tp:0", "all_gather", done=False)

    verdict = cluster.verdict()

    assert verdict.status == "hung"
    assert verdict.cause is not None
    assert (verdict.cause.kind, verdict.cause.diverging_ranks) == ("not_joined", (2,))
    assert verdict.cause.seq == 6
    assert verdict.cause.peers is not None
    assert verdict.cause.peers.op == "all_gather"


def test_a_chain_of_waiting_is_followed_to_its_end(cluster_of: ClusterOf) -> None:
    """0 and 1 wait in world for 2; 2 waits in its pair for 3, which is elsewhere."""
    cluster = cluster_of(4)
    cluster.history("world")
    cluster.history("tp:0", members=(2, 3))
    cluster.post([2], "tp:0", members=(2, 3), done=False)
    cluster.post([0, 1], "world", done=False)

    verdict = cluster.verdict()

    assert verdict.cause is not None
    assert (verdict.cause.kind, verdict.cause.diverging_ranks) == ("not_joined", (3,))


def test_ranks_that_wait_for_a_moment_only_are_no_hang(cluster_of: ClusterOf) -> None:
    cluster = cluster_of(4)
    cluster.history()
    cluster.post([0, 1, 3], "tp:0", "all_gather", done=False)

    assert cluster.verdict(quiet=0.3).status == "ok"
    assert cluster.verdict(quiet=1.0).status == "unknown"


def test_an_idle_job_is_no_hang(cluster_of: ClusterOf) -> None:
    cluster = cluster_of(4)
    cluster.history(count=10)

    assert agrees(cluster.verdict(quiet=600.0))


def test_dead_rank_is_recognised_by_its_heartbeat(cluster_of: ClusterOf) -> None:
    cluster = cluster_of(4)
    cluster.history()
    cluster.post([0, 1, 3], "tp:0", "all_gather", done=False)

    verdict = cluster.verdict(quiet={2: 0.3})

    assert verdict.status == "hung"
    assert verdict.cause is not None
    assert (verdict.cause.kind, verdict.cause.diverging_ranks) == ("dead_rank", (2,))
    assert verdict.cause.confidence == "likely"
    # A signal or a call that keeps Python's lock ends the heartbeat of a living process, too.
    assert "is dead, gone or stuck (its heartbeat ends" in verdict.cause.summary
    assert any("stopped by a signal" in line for line in verdict.cause.inferred)


@pytest.mark.parametrize(("lived", "kind"), [(560.0, "not_joined"), (500.0, "dead_rank")])
def test_a_rank_that_came_late_to_a_call_lived_as_long_as_its_peers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lived: float, kind: str
) -> None:
    """Calls before were posted at one time on all hosts, so that their clocks agree."""
    now = 10**18
    monkeypatch.setenv("NCCLSCOPE_NATIVE", "0")
    monkeypatch.setattr("ncclscope.ring.writer.now_ns", lambda: now)
    cluster = Cluster(tmp_path / "rings", 8)
    cluster.history(backend="nccl")
    others = [rank for rank in cluster.everybody if rank != 5]
    cluster.post(others, "tp:0", "all_reduce", backend="nccl")
    cluster.post(others, "tp:0", "all_gather", done=False, backend="nccl")
    now += 40 * 10**9
    cluster.post([5], "tp:0", "all_reduce", backend="nccl")

    cause = cluster.verdict(quiet={**dict.fromkeys(others, 600.0), 5: lived}).cause

    assert cause is not None
    assert (cause.kind, cause.diverging_ranks) == (kind, (5,))


@pytest.mark.parametrize("entered", [False, True])
@pytest.mark.parametrize("stopped", [False, True])
def test_a_process_that_exists_is_not_called_dead(
    cluster_of: ClusterOf, entered: bool, stopped: bool
) -> None:
    cluster = cluster_of(4)
    cluster.history()
    cluster.post([0, 1, 3, *([2] if entered else [])], "tp:0", "all_gather", done=False)
    run = cluster.run(quiet={2: 0.3})
    ranks = tuple(replace(rank, alive=True) for rank in run.ranks)
    if stopped:
        ranks[2].details["stopped"] = True

    cause = diagnose(replace(run, ranks=ranks)).cause

    assert cause is not None
    assert cause.kind == ("stalled" if entered else "not_joined")
    assert cause.diverging_ranks == (2,)
    assert ("a signal" in cause.summary) is stopped
    assert not any("stayed alive" in line for line in cause.evidence)


@pytest.mark.parametrize("all_stopped", [False, True])
def test_of_two_ranks_the_stopped_one_is_named_unless_both_are(
    cluster_of: ClusterOf, all_stopped: bool
) -> None:
    cluster = cluster_of(2)
    cluster.history()
    cluster.post([0], "tp:0", "all_gather", done=False)
    run = cluster.run(quiet=30.0)
    ranks = tuple(replace(rank, alive=True) for rank in run.ranks)
    for rank in ranks[0 if all_stopped else 1 :]:
        rank.details["stopped"] = True

    cause = diagnose(replace(run, ranks=ranks)).cause

    assert cause is not None
    named = ((), "ambiguous") if all_stopped else ((1,), "likely")
    assert (cause.diverging_ranks, cause.confidence) == named


def test_dead_rank_that_left_no_record(cluster_of: ClusterOf) -> None:
    cluster = cluster_of(4)
    cluster.history()
    cluster.post(cluster.everybody, "tp:0", "all_gather", done=False)
    next(cluster.directory.glob("*.ring")).parent.joinpath(
        cluster.tracers[1].ring.path.name
    ).unlink()

    verdict = cluster.verdict()

    assert verdict.run.missing == (1,)
    assert verdict.cause is not None
    assert (verdict.cause.kind, verdict.cause.diverging_ranks) == ("dead_rank", (1,))
    assert verdict.cause.seq == 6


@pytest.mark.parametrize("recorded", [True, False], ids=["its record ends", "no record"])
def test_a_dead_rank_on_nccl_where_hosts_have_gone_on(
    cluster_of: ClusterOf, recorded: bool
) -> None:
    cluster = cluster_of(4)
    cluster.history(backend="nccl")
    for _ in range(8):
        cluster.post([0, 1, 3], "tp:0", "all_gather", done=False, backend="nccl")
    if not recorded:
        cluster.tracers[2].ring.path.unlink()

    cause = cluster.verdict(quiet={2: 0.3} if recorded else 30.0).cause

    assert cause is not None
    assert (cause.kind, cause.diverging_ranks) == ("dead_rank", (2,))
    # Devices wait in the first call that it has not posted. Where that is not known: the last.
    assert cause.seq == (6 if recorded else 13)


def test_a_rank_that_waits_for_a_dead_rank_elsewhere_has_not_posted_the_same(
    cluster_of: ClusterOf,
) -> None:
    cluster = cluster_of(4)
    cluster.history()
    cluster.history("dp:0", members=(2, 3))
    cluster.post([0, 1], "tp:0", "all_gather", done=False)
    cluster.post([3], "dp:0", members=(2, 3), done=False)

    cause = cluster.verdict(quiet={2: 0.3}).cause

    assert cause is not None
    assert (cause.kind, cause.diverging_ranks) == ("dead_rank", (2,))
    assert cause.comm is not None
    assert cause.comm.label == "tp:0"
    assert "ranks 0 1 wait for it" in cause.summary
    assert cause.evidence[0].startswith("ranks 0 1 posted call 6 on tp:0")


def test_a_missing_file_of_a_finished_job_is_incomplete(cluster_of: ClusterOf) -> None:
    cluster = cluster_of(4)
    cluster.history()
    cluster.tracers[1].ring.path.unlink()

    verdict = cluster.verdict()

    assert verdict.status == "incomplete"
    assert verdict.cause is None
    assert verdict.exit_status == 0


def test_order_cycle_names_the_rank_with_the_diverging_order(cluster_of: ClusterOf) -> None:
    cluster = cluster_of(4)
    cluster.history("world")
    cluster.history("tp:0", members=(0, 1, 2))
    for rank in (0, 1, 2):
        order = ["tp:0", "world"] if rank != 1 else ["world", "tp:0"]
        for label in order:
            members = (0, 1, 2) if label == "tp:0" else None
            cluster.post([rank], label, members=members, done=False)
    cluster.post([3], "world", done=False)

    verdict = cluster.verdict()

    assert verdict.status == "hung"
    assert verdict.cause is not None
    assert (verdict.cause.kind, verdict.cause.diverging_ranks) == ("order_cycle", (1,))


def _replicas(cluster: Cluster, steps: bool) -> None:
    """Two replicas of two; one has had steps without tokens, which post one call less.

    In the last step, rank 1 leaves out the all_reduce before the dispatch.
    """
    pairs = ((0, 1), (2, 3))
    for number in range(1, 8):
        for rank in cluster.everybody:
            if steps:
                cluster.tracers[rank].step(number, tokens=int(rank < 2), dummy=rank > 1)
        last = number == 7
        for pair in pairs:
            ranks = [rank for rank in pair if not last or rank != 1]
            cluster.post(ranks, "tp:0", members=pair, done=not last or 0 not in pair)
        ranks = [rank for rank in cluster.everybody if not last or rank != 0]
        cluster.post(ranks, "ep:0", "all_gather", done=not last)
        if not last:
            cluster.post(pairs[0], "tp:0", "all_gather", members=pairs[0])


def test_replicas_are_evidence_at_the_same_place_of_a_step(cluster_of: ClusterOf) -> None:
    cluster = cluster_of(4)
    _replicas(cluster, steps=True)

    cause = cluster.verdict().cause

    assert cause is not None
    # Neither side posted the other's call, so that no order is recorded.
    assert (cause.kind, cause.diverging_ranks) == ("not_joined", (1,))
    assert "it was skipped, or would have come later" in cause.summary
    assert cause.confidence == "likely"
    assert cause.comm is not None
    assert cause.comm.ranks == (0, 1)


def test_replicas_at_another_place_are_no_evidence(cluster_of: ClusterOf) -> None:
    """By their numbers alone, the calls of the other replica would speak against rank 0.

    But rank 1 departs from its rounds.
    """
    cluster = cluster_of(4)
    _replicas(cluster, steps=False)

    cause = cluster.verdict().cause

    assert cause is not None
    assert cause.kind == "not_joined"
    assert (cause.diverging_ranks, cause.confidence) == ((1,), "likely")


def test_a_rank_that_takes_one_new_communicator_for_the_other_is_named(
    cluster_of: ClusterOf,
) -> None:
    """It made the two in another order, so that all wait in calls that are new there."""
    cluster = cluster_of(4)
    cluster.history("world")
    for rank in cluster.everybody:
        cluster.comm(rank, "a", cluster.everybody)
        cluster.comm(rank, "b", cluster.everybody)
        cluster.post([rank], "b" if rank == 2 else "a", done=False)

    cause = cluster.verdict().cause

    assert cause is not None
    assert (cause.kind, cause.diverging_ranks) == ("not_joined", (2,))
    assert cause.confidence == "likely"
    assert "mixes up two communicators" in cause.inferred[0]


def test_a_rank_whose_life_ends_in_a_call_that_all_posted_is_named(cluster_of: ClusterOf) -> None:
    cluster = cluster_of(4)
    cluster.history("world")
    cluster.post(cluster.everybody, "world", done=False)

    verdict = cluster.verdict(quiet={2: 0.3})

    assert verdict.status == "hung"
    (finding,) = verdict.findings
    assert (finding.kind, finding.diverging_ranks) == ("dead_rank", (2,))
    assert finding.confidence == "likely"
    assert finding.seq == 6


def test_where_all_ranks_ended_in_a_call_no_rank_is_named(cluster_of: ClusterOf) -> None:
    """They were killed one after the other, a second apart and right after posting."""
    cluster = cluster_of(4)
    cluster.history("world")
    cluster.post(cluster.everybody, "world", done=False)

    assert cluster.verdict(quiet={0: 1.9, 1: 0.9, 2: 0.3, 3: 1.5}).findings == ()


def test_two_sides_in_different_calls_are_candidates_as_a_whole(cluster_of: ClusterOf) -> None:
    cluster = cluster_of(4)
    for label in ("a", "b"):
        cluster.history(label)
    cluster.post([0, 2], "a", shape=(4,), done=False)
    cluster.post([1, 3], "b", shape=(4,), done=False)

    cause = cluster.verdict().cause

    assert cause is not None
    assert (cause.diverging_ranks, cause.candidate_ranks) == ((), (0, 1, 2, 3))


def test_opposite_orders_that_completed_are_no_cycle(cluster_of: ClusterOf) -> None:
    cluster = cluster_of(3)
    cluster.history("world")
    for rank in cluster.everybody:
        for label in ("world", "tp:0") if rank == 1 else ("tp:0", "world"):
            cluster.post([rank], label)

    assert agrees(cluster.verdict())


def test_a_rank_alone_in_a_call_of_its_own_never_joined(cluster_of: ClusterOf) -> None:
    """A cycle, but no order: nobody else was ever going to make the call it is in."""
    cluster = cluster_of(4)
    cluster.history("tp:0")
    cluster.history("dp:0")
    cluster.post([0, 1, 2], "tp:0", done=False)
    cluster.post([3], "dp:0", "barrier", shape=None, dtype=None, done=False)

    for verdict in (cluster.verdict(), cluster.verdict(quiet=None)):
        assert verdict.status == "hung"
        assert verdict.cause is not None
        assert (verdict.cause.kind, verdict.cause.diverging_ranks) == ("not_joined", (3,))
        assert verdict.cause.comm is not None
        assert verdict.cause.comm.label == "tp:0"


def test_the_first_call_on_a_communicator_shows_no_stray(cluster_of: ClusterOf) -> None:
    """Rank 0 posts it, and rank 1, the other member, went on: either may be wrong."""
    cluster = cluster_of(4)
    cluster.history("world")
    cluster.post([0], "pair", members=(0, 1), done=False)
    cluster.post([1, 2, 3], "world", done=False)

    cause = cluster.verdict().cause

    assert cause is not None
    assert (cause.kind, cause.diverging_ranks, cause.candidate_ranks) == ("not_joined", (), (0, 1))


def test_alone_in_the_first_call_of_many_is_a_stray(cluster_of: ClusterOf) -> None:
    """Rank 2 has left the loop, and waits in the last barrier, the first call on the world."""
    cluster = cluster_of(4)
    cluster.history("dp:0")
    cluster.post([0, 1, 3], "dp:0", done=False)
    cluster.post([2], "world", "barrier", shape=None, dtype=None, done=False)

    cause = cluster.verdict().cause

    assert cause is not None
    assert (cause.kind, cause.diverging_ranks) == ("not_joined", (2,))


@pytest.mark.usefixtures("python_writer")  # the core has a clock of its own
@pytest.mark.parametrize(
    ("alive", "seconds", "status"),
    [(True, 12, "unknown"), (True, 5, "ok"), (False, 5, "unknown"), (False, 1, "ok")],
)
def test_ranks_that_go_on_past_a_call_leave_their_peers_waiting(
    cluster_of: ClusterOf,
    monkeypatch: pytest.MonkeyPatch,
    alive: bool,
    seconds: int,
    status: str,
) -> None:
    """Ranks 0 and 1 wait in a call that rank 2 left out, and all go on elsewhere."""
    clock = [1_000_000 * 10**9]
    monkeypatch.setattr("ncclscope.ring.writer.now_ns", lambda: clock[0])
    cluster = cluster_of(3)
    cluster.history("world")
    cluster.post([0, 1], "other", done=False)
    for _ in range(seconds):
        clock[0] += 10**9
        cluster.post(cluster.everybody, "world")
    run = cluster.run()
    ranks = [replace(rank, alive=alive, last_seen_ns=clock[0]) for rank in run.ranks]

    verdict = diagnose(replace(run, ranks=tuple(ranks)))

    assert verdict.status == status
    if status == "unknown":
        assert "which rank 2 has not posted" in verdict.summary


def test_ranks_that_wait_for_keys_of_each_other_acquit_nobody(cluster_of: ClusterOf) -> None:
    cluster = cluster_of(3)
    cluster.history("world")
    for rank, key in ((0, "b2"), (1, "a2")):
        cluster.tracers[rank].activity(STORE_WAIT).begin(f"get {key}")
    cluster.post([2], "world", "barrier", shape=None, dtype=None, done=False)

    cause = cluster.verdict().cause

    assert cause is not None
    assert (cause.kind, cause.diverging_ranks) == ("not_joined", ())
    assert cause.candidate_ranks == (0, 1, 2)
    assert "keys that nobody sets" in cause.inferred[-1]


def test_whoever_is_no_member_did_not_miss_a_call(cluster_of: ClusterOf) -> None:
    """Rank 2 waits for rank 1 in a pair, and rank 1 for rank 0 in the world."""
    cluster = cluster_of(3)
    cluster.history("world")
    cluster.post([2], "pair", members=(1, 2), done=False)
    cluster.post([1], "world", done=False)

    cause = cluster.verdict().cause

    assert cause is not None
    assert cause.comm is not None
    assert {*cause.diverging_ranks, *cause.candidate_ranks} <= {*cause.comm.ranks}


def test_of_a_cycle_of_pairs_those_that_changed_their_order_are_shown(
    cluster_of: ClusterOf,
) -> None:
    """Ranks 0 to 3 share one pair each with the next, and 1 and 2 begin with the other pair."""
    cluster = cluster_of(4)
    pairs = {"a": (0, 1), "b": (1, 2), "c": (2, 3), "d": (0, 3)}
    usual = {0: "ad", 1: "ab", 2: "bc", 3: "dc"}
    for _ in range(4):
        for rank, order in usual.items():
            for label in order:
                cluster.post([rank], label, members=pairs[label])
    for rank, label in enumerate("abcd"):
        cluster.post([rank], label, members=pairs[label], done=False)

    verdict = cluster.verdict()

    assert verdict.cause is not None
    assert (verdict.status, verdict.cause.kind) == ("hung", "not_joined")
    cause, cycle = verdict.findings
    assert cause.diverging_ranks == (1, 2)
    assert "in the opposite order" in cause.summary
    assert (cycle.role, cycle.candidate_ranks) == ("consequence", (0, 1, 2, 3))
    assert "wait for each other in a cycle" in cycle.summary
    assert [text for text in cycle.inferred if "the other way round" in text] == [
        "rank 1 went to b of ranks 1 2 before a of ranks 0 1, and each time until then it was the "
        "other way round",
        "rank 2 went to c of ranks 2 3 before b of ranks 1 2, and each time until then it was the "
        "other way round",
    ]


def test_without_heartbeats_only_a_deadlock_cycle_is_a_hang(cluster_of: ClusterOf) -> None:
    cluster = cluster_of(4)
    cluster.history("tp:0")
    cluster.post([0, 1, 2], "tp:0", done=False)

    assert cluster.verdict(quiet=None).status == "ok"


def test_a_rank_whose_probe_ended_is_not_blamed(cluster_of: ClusterOf) -> None:
    """Its record stops, and it may have made every call since."""
    cluster = cluster_of(4)
    cluster.history()
    cluster.tracers[2].describe(probe_failed="c10d: Trouble: asked for by the test")
    cluster.post([0, 1, 3], "tp:0", "all_gather", done=False)

    verdict = cluster.verdict()

    assert verdict.cause is None
    assert verdict.status == "unknown"
    assert any("rank 2" in text and "Trouble" in text for text in verdict.coverage.unseen)


def test_stalled_names_the_call_and_no_rank(cluster_of: ClusterOf) -> None:
    """A pair waits in a call that both have posted; the others wait for the pair."""
    cluster = cluster_of(4)
    cluster.history("world")
    cluster.history("tp:0", members=(2, 3))
    cluster.post([2, 3], "tp:0", "all_gather", members=(2, 3), done=False)
    cluster.post([0, 1], "world", done=False)

    verdict = cluster.verdict()

    assert verdict.status == "hung"
    assert verdict.cause is not None
    assert verdict.cause.kind == "stalled"
    assert verdict.cause.diverging_ranks == ()
    assert verdict.cause.candidate_ranks == (2, 3)
    causes = [finding.kind for finding in verdict.findings if finding.role == "cause"]
    assert causes == ["stalled"]


def test_a_call_under_way_is_not_stalled(cluster_of: ClusterOf) -> None:
    cluster = cluster_of(4)
    cluster.history("world")
    cluster.post(cluster.everybody, "world", "all_gather", done=False)

    assert cluster.verdict(quiet=0.4).status == "ok"


def test_a_backend_without_completions_is_not_stalled(cluster_of: ClusterOf) -> None:
    """NCCL's calls stay scheduled for ever: an idle job looks the same."""
    cluster = cluster_of(4)
    for _ in range(5):
        cluster.post(cluster.everybody, "tp:0", done=False, backend="nccl")

    assert agrees(cluster.verdict(quiet=600.0))


def test_a_rank_that_failed_past_the_call_in_which_its_peers_are(cluster_of: ClusterOf) -> None:
    """On NCCL a call may end on one rank alone: it met another call of its peers."""
    cluster = cluster_of(4)
    cluster.history("world", backend="nccl")
    cluster.post([0, 2, 3], "world", "barrier", done=False, backend="nccl")
    cluster.post([1], "world", "barrier", backend="nccl")
    cluster.tracers[1].describe(ended_with="RuntimeError: Expected to have finished reduction")

    verdict = cluster.verdict(quiet={1: 0.3})

    assert verdict.status == "hung"
    assert verdict.cause is not None
    assert (verdict.cause.kind, verdict.cause.diverging_ranks) == ("dead_rank", (1,))
    assert verdict.cause.confidence == "likely"
    assert "rank 1: it ended with RuntimeError" in " ".join(verdict.cause.evidence)


def test_a_rank_that_ended_in_order_past_that_call_is_no_cause(cluster_of: ClusterOf) -> None:
    cluster = cluster_of(4)
    cluster.history("world", backend="nccl")
    cluster.post([0, 2, 3], "world", "barrier", done=False, backend="nccl")
    cluster.post([1], "world", "barrier", backend="nccl")
    cluster.tracers[1].close()

    cause = cluster.verdict(quiet={1: 0.3}).cause

    assert cause is None or cause.diverging_ranks != (1,)


def test_a_call_pending_on_all_ranks_proves_nothing_beyond_the_records(
    cluster_of: ClusterOf,
) -> None:
    cluster = cluster_of(4)
    cluster.history("world", backend="nccl")
    cluster.post(cluster.everybody, "world", "barrier", done=False, backend="nccl")
    for tracer in cluster.tracers:
        tracer.describe(unseen=[{"kind": "ddp", "text": "gradient buckets", "comms": []}])

    cause = cluster.verdict().cause

    assert cause is not None
    assert (cause.kind, cause.diverging_ranks) == ("stalled", ())
    assert "no rank diverged in what was recorded" in cause.summary
    assert "unrecorded calls" in cause.inferred[0]


def test_completions_that_only_cpp_waits_for_leave_no_rank_behind(cluster_of: ClusterOf) -> None:
    """A tensor-parallel forward on gloo, whose completion is not recorded; its backward's is.

    Rank 2 skips a layer in both. Its calls look like all others, until it has ended.
    """
    cluster = cluster_of(4)
    for step in range(3):
        for rank in cluster.everybody:
            layers = 2 if (rank, step) == (2, 1) else 3
            pair = [0, 1] if rank < 2 else [2, 3]
            last = (rank, step) == (3, 2)
            for _ in range(layers):
                cluster.post([rank], "tp", members=pair, done=False)
            for _ in range(1 if last else layers - 1):
                cluster.post([rank], "tp", members=pair, done=not last)
    cluster.post([1, 3], "dp", "broadcast", root=0, members=[1, 3])
    cluster.post([1], "dp", members=[1, 3], done=False)
    cluster.post([0], "dp", members=[0, 2], done=False)
    cluster.tracers[2].close()
    cluster.tracers[3].describe(ended_with="RuntimeError: Connection closed by peer")
    cluster.tracers[3].close()

    verdict = cluster.verdict()

    causes = [finding for finding in verdict.findings if finding.role == "cause"]
    assert [(one.kind, one.diverging_ranks) for one in causes] == [("dead_rank", (2,))]


def asynchronous(cluster: Cluster, ahead: Sequence[int]) -> Verdict:
    """Return the verdict on two asynchronous calls, the second of which not all have posted.

    Their completion becomes known when the program waits for them, which it has not done.
    """
    cluster.history("world")
    cluster.post(cluster.everybody, "world", done=False)
    cluster.post(ahead, "world", done=False)
    return cluster.verdict()


def test_who_has_not_posted_a_later_asynchronous_call_is_named(tmp_path: Path) -> None:
    cause = asynchronous(Cluster(tmp_path, 4), [0, 1, 3]).cause

    assert cause is not None
    assert (cause.kind, cause.diverging_ranks, cause.seq) == ("not_joined", (2,), 7)


def test_a_call_that_is_known_to_run_is_waited_in(tmp_path: Path) -> None:
    """One executor carries out a rank's calls in order: later ones wait behind this one."""
    cluster = Cluster(tmp_path, 4)
    cluster.history("world")
    for rank in cluster.everybody:
        comm = cluster.comm(rank, "world", cluster.everybody)
        tracer = cluster.tracers[rank]
        place = tracer.record(comm, "all_reduce", shape=(4, 2), dtype="float32", redop="sum")
        if rank != 2:
            tracer.start(place)
    cluster.post([0, 1, 3], "world", done=False)

    cause = cluster.verdict().cause

    assert cause is None or cause.seq == 6


def test_asynchronous_calls_that_all_have_posted_do_not_complete(tmp_path: Path) -> None:
    cause = asynchronous(Cluster(tmp_path, 4), range(4)).cause

    assert cause is not None
    assert (cause.kind, cause.diverging_ranks, cause.seq) == ("stalled", (), 6)


@pytest.mark.parametrize("compiles", [True, False])
def test_a_rank_that_compiled_until_it_was_killed_might_have_come(
    cluster_of: ClusterOf, compiles: bool
) -> None:
    cluster = cluster_of(4)
    cluster.history("world")
    if compiles:
        cluster.tracers[1].activity(COMPILE).begin("torch.compile of f (prog.py:4)")
    cluster.post([0, 2, 3], "world", done=False)

    cause = cluster.verdict(quiet=60.0).cause

    assert cause is not None
    assert (cause.kind, cause.diverging_ranks) == ("not_joined", (1,))
    assert cause.confidence == ("likely" if compiles else "certain")
    assert not any("may still come" in one for one in cause.inferred)


@pytest.mark.parametrize(("quiet", "status"), [(60.0, "unknown"), (0.3, "ok")])
def test_a_rank_of_another_host_that_ended_long_before_the_others_is_not_ok(
    cluster_of: ClusterOf, quiet: float, status: str
) -> None:
    """Its clock may be another one: the time since its last call counts."""
    cluster = cluster_of(4)
    cluster.history()
    run = cluster.run(quiet={0: quiet, 1: 0.3, 2: quiet, 3: quiet})
    ranks = tuple(replace(rank, alive=None, host=f"node-{rank.rank}") for rank in run.ranks)

    verdict = diagnose(replace(run, ranks=ranks))

    assert verdict.status == status
    if status == "unknown":
        assert "Rank 1 is gone" in verdict.summary


def test_a_barrier_behind_a_call_that_all_have_posted_does_not_complete_by_itself(
    cluster_of: ClusterOf,
) -> None:
    cluster = cluster_of(3)
    for label, members in {"tp:0": (0, 1), "tp:1": (1, 2)}.items():
        cluster.post(members, label, "barrier", members=members, backend="nccl")
    cluster.post([1, 2], "tp:1", members=(1, 2), backend="nccl", done=False)
    cluster.post([0, 1], "tp:0", "barrier", members=(0, 1), backend="nccl", done=False)

    verdict = cluster.verdict(quiet=600.0)

    assert verdict.cause is not None
    assert (verdict.cause.kind, verdict.cause.confidence) == ("stalled", "likely")
    assert verdict.cause.candidate_ranks == (0, 1)


@pytest.mark.parametrize(
    ("seed", "number", "guilty"),
    [(1401, 10075, 4), (1501, 10563, 3), (1501, 17053, 0), (1510, 10278, 2)],
)
def test_a_call_that_may_be_behind_another_one_speaks_for_no_rank(
    seed: int, number: int, guilty: int
) -> None:
    """No rank was said to have diverged: the calls before it were not looked at.

    They are transfers without numbers, or calls of another thread on the same stream.
    """
    drawn = sample(seed, number)

    causes = [
        one for one in verdict_on(drawn.world, drawn.outcome)["findings"] if one["role"] == "cause"
    ]

    assert causes
    for cause in causes:
        assert (cause["kind"], cause["confidence"]) == ("stalled", "ambiguous")
        assert guilty in cause["candidate_ranks"]
        assert "no rank diverged" not in cause["summary"]


def test_a_rank_that_does_not_exit_as_the_others_did_is_in_the_summary(
    cluster_of: ClusterOf,
) -> None:
    cluster = cluster_of(4)
    cluster.history()
    for rank in (1, 2, 3):
        cluster.tracers[rank].close()
    run = cluster.run()
    ranks = [replace(one, alive=None if one.rank else True) for one in run.ranks]

    verdict = diagnose(replace(run, ranks=tuple(ranks)))

    assert verdict.status == "unknown"
    assert verdict.summary.startswith("Ranks 1-3 exited in order, rank 0 did not.")
