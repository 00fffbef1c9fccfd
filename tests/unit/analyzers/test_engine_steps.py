"""Which step of the engine each rank is in."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import replace
from typing import Any

import pytest

from ncclscope import Verdict, diagnose, open_run
from ncclscope.model import Activity
from ncclscope.tracing.tracer import Tracer
from tests.support.cluster import Cluster

ClusterOf = Callable[[int], Cluster]


def _steps(cluster: Cluster) -> tuple[str, ...]:
    cause = cluster.verdict(quiet=60.5).cause
    assert cause is not None
    return tuple(fact for fact in cause.evidence if "step" in fact or "engine" in fact)


def test_ranks_of_one_step_are_reported_together(cluster_of: ClusterOf) -> None:
    cluster = cluster_of(4)
    for number in (811, 812):
        for rank in cluster.everybody:
            cluster.tracers[rank].step(number, tokens=0 if rank > 1 else 16, dummy=rank > 1)
        cluster.post(cluster.everybody, "ep:0", done=number == 811)
    cluster.post([0, 1, 3], "ep:0", done=False)
    cluster.tracers[1].step(813, tokens=1)
    cluster.post([2], "ep:0", "all_gather", done=False)

    assert _steps(cluster) == (
        "rank 0 in step 812 (16 tokens), in call 3 on ep:0, all_reduce at model.py:10 all_reduce; "
        "rank 1 in step 813 (1 token), in call 3 on ep:0, all_reduce at model.py:10 all_reduce; "
        "ranks 2 3 in step 812 (dummy)",
    )


def test_many_steps_are_summarised(cluster_of: ClusterOf) -> None:
    cluster = cluster_of(9)
    for rank in cluster.everybody:
        cluster.tracers[rank].step(rank + 1, tokens=4)
    cluster.post(range(8), "ep:0", done=False)
    cluster.post([8], "ep:0", "all_gather", done=False)

    assert _steps(cluster) == (
        "rank 8 in step 9 (4 tokens), in call 1 on ep:0, all_gather at model.py:10 all_gather",
    )


def test_steps_that_were_not_recorded_are_not_mentioned(cluster_of: ClusterOf) -> None:
    cluster = cluster_of(3)
    cluster.post([0, 1], "tp:0", done=False)
    cluster.post([2], "tp:0", "all_gather", done=False)

    assert _steps(cluster) == ()


def _engine(cluster: Cluster, number: int) -> Tracer:
    return Tracer(
        cluster.directory,
        labels={"engine": str(number)},
        heartbeat=False,
        details={
            "host": "node-0",
            "pid": 2000 + number,
            "boot_id": "",
            "role": "engine",
        },
    )


def test_an_engine_that_waits_for_its_peers_is_reported(cluster_of: ClusterOf) -> None:
    cluster = cluster_of(3)
    for rank in cluster.everybody:
        cluster.tracers[rank].step(7, tokens=3)
    cluster.post([0, 1], "tp:0", done=False)
    cluster.post([2], "tp:0", "all_gather", done=False)
    for number in (0, 1):
        engine = _engine(cluster, number)
        comm = engine.communicator("E", "engines", (), "gloo")
        for _ in range(2 if number else 1):
            position = engine.record(comm, "all_reduce", shape=(2,), dtype="int32", redop="sum")
            if number == 0:
                engine.complete(position)
    assert len(open_run(cluster.directory).others) == 2

    assert _steps(cluster) == (
        "ranks 0-2 in step 7 (3 tokens)",
        "engine 1 (pid 2001) waits in call 2 on engines, all_reduce sum [2] int32, "
        "for the other engines",
    )


def _idle_replica(cluster: Cluster) -> Tracer:
    """One replica goes into a dummy step that the other never began; returns that one's engine."""
    for rank in cluster.everybody:
        tracer = cluster.tracers[rank]
        tracer.describe(
            labels={"dp": str(rank // 2), "tp": str(rank % 2), "engine": f"{rank // 2}"}
        )
        tracer.step(811, tokens=3)
        slot = tracer.activity("step")
        slot.end(slot.begin("execute_model", 811))
    cluster.post(cluster.everybody, "ep:0", "all_gather", site="all2all.py:148 dispatch")
    idle = _engine(cluster, 0)
    slot = idle.activity("enqueue")
    slot.end(slot.begin("execute_model"))
    for rank in (0, 1):
        cluster.tracers[rank].activity("dequeue").begin("work")
    for rank in (2, 3):
        cluster.tracers[rank].step(812, tokens=0, dummy=True)
        cluster.tracers[rank].activity("step").begin("execute_dummy_batch", 812)
    cluster.post([2, 3], "ep:0", "all_gather", site="all2all.py:148 dispatch", done=False)
    return idle


def test_a_worker_without_work_differs_from_one_that_waits_for_it(
    cluster_of: ClusterOf,
) -> None:
    cluster = cluster_of(4)
    comm = (idle := _idle_replica(cluster)).communicator("E", "engines", (), "gloo")
    idle.record(comm, "all_reduce", shape=(2,), dtype="int32", redop="sum")
    busy = _engine(cluster, 1)
    slot = busy.activity("enqueue")
    slot.end(slot.begin("execute_dummy_batch"))
    busy.activity("dequeue").begin()

    cause = cluster.verdict().cause
    assert cause is not None
    assert (cause.kind, cause.diverging_ranks) == ("not_joined", (0, 1))
    assert cause.summary.endswith("in which ranks 2 3 wait; they are idle, in dequeue.")
    assert "rank 0 waits for a request from its engine" in cause.inferred
    assert _steps(cluster) == (
        "ranks 0 1 (DP0) idle in dequeue for 60 s after step 811 (3 tokens); "
        "ranks 2 3 (DP1) in step 812 (dummy), in call 2 on ep:0, "
        "all_gather at all2all.py:148 dispatch",
        "engine 0 (pid 2000) waits in call 1 on engines, all_reduce sum [2] int32, "
        "for the other engines",
        "engine 1 (pid 2001) waits: ranks 2 3 have not answered execute_dummy_batch",
    )


def test_an_engine_that_a_signal_stopped_is_reported(cluster_of: ClusterOf) -> None:
    _idle_replica(cluster := cluster_of(4))
    run = cluster.run()
    (engine,) = run.others
    stopped = replace(engine, details={**engine.details, "stopped": True})

    cause = diagnose(replace(run, others=(stopped,))).cause

    assert cause is not None
    assert cause.diverging_ranks == (0, 1)
    assert "engine 0 (pid 2000) is stopped by a signal (state T)" in cause.evidence


def test_a_message_that_a_worker_did_not_see_is_reported(cluster_of: ClusterOf) -> None:
    cluster = cluster_of(4)
    slot = _idle_replica(cluster).activity("enqueue")
    slot.end(slot.begin("execute_dummy_batch"))

    (steps,) = _steps(cluster)
    assert steps.startswith(
        "ranks 0 1 (DP0) idle in dequeue for 60 s after step 811 (3 tokens), though its engine has "
        "sent it execute_dummy_batch; "
    )


def test_sampling_belongs_to_its_step(cluster_of: ClusterOf) -> None:
    cluster = cluster_of(3)
    for rank in cluster.everybody:
        cluster.tracers[rank].step(7, tokens=3)
        method = "execute_model" if rank == 2 else "sample_tokens"
        cluster.tracers[rank].activity("step").begin(method, 7)
    cluster.post([0, 1], "tp:0", done=False)
    cluster.post([2], "tp:0", "all_gather", done=False, site=None)

    assert _steps(cluster)[0].startswith(
        "ranks 0 1 in sample_tokens of step 7 (3 tokens), in call 1 on tp:0, all_reduce at "
    )


def test_the_last_step_is_found_behind_many_calls(cluster_of: ClusterOf) -> None:
    cluster = cluster_of(3)
    for rank in cluster.everybody:
        for number in range(1, 4):
            cluster.tracers[rank].step(number, tokens=1)
        for _ in range(3000):
            cluster.post([rank], "tp:0")
    cluster.post([0, 1], "tp:0", done=False)
    cluster.post([2], "tp:0", "all_gather", done=False)

    steps = open_run(cluster.directory).ranks[0].steps
    assert [step.number for step in reversed(steps)] == [3, 2, 1]
    assert [step.number for step in steps] == [1, 2, 3]
    assert _steps(cluster) == ("ranks 0-2 in step 3 (1 token)",)


def test_a_rank_with_steps_that_never_created_the_communicator(cluster_of: ClusterOf) -> None:
    """Ranks 0 and 2 call on a pair's communicator that rank 1, which has steps, does not know."""
    cluster = cluster_of(3)
    for rank in cluster.everybody:
        cluster.tracers[rank].step(1, tokens=2)
    cluster.post(cluster.everybody, "world")
    for number in range(3):
        cluster.post([0, 2], "ep:0", shape=(number + 1,), done=False)

    cause = cluster.verdict(quiet=60.5).cause

    assert cause is not None
    assert any("in step 1 (2 tokens)" in fact for fact in cause.evidence)


def _pipeline(cluster: Cluster, last: Collection[int], done: bool = False) -> None:
    """Let two stages pass on what each of four steps makes, and some of them that of a fifth."""
    for number in range(1, 6):
        for rank in (0, 1):
            cluster.tracers[rank].step(number, tokens=2)
            slot = cluster.tracers[rank].activity("step")
            slot.end(slot.begin("execute_model", number))
            if number < 5 or rank in last:
                op, is_done = ("recv", number < 5 or done) if rank else ("send", True)
                cluster.post([rank], "pp:0", op, peer=1 - rank, done=is_done)


@pytest.mark.parametrize("rests", [True, False])
def test_a_stage_that_rests_after_a_step_has_left_out_its_send(
    cluster_of: ClusterOf, rests: bool
) -> None:
    cluster = cluster_of(2)
    _pipeline(cluster, [1])
    if rests:
        cluster.tracers[0].activity("dequeue").begin("work")

    verdict = cluster.verdict()

    assert verdict.status == "hung"
    assert verdict.cause is not None
    kind, ranks = ("missing_call", {0}) if rests else ("p2p_mismatch", set())
    assert (verdict.cause.kind, {*verdict.diverging_ranks}) == (kind, ranks)
    if rests:
        assert verdict.summary == (
            "Rank 0 (node-0, pid 1000) waits for work after step 5, and has not posted its call 1; "
            "each step before had send [4,2] float32 peer 1 on pp:0 of ranks 0 1 there."
        )
        assert "rank 0 waits for work after step 5, in which it posted 0 calls" in (
            verdict.cause.evidence
        )


def test_a_stage_that_receives_once_more_than_before_may_be_wrong(cluster_of: ClusterOf) -> None:
    cluster = cluster_of(2)
    _pipeline(cluster, [0, 1], done=True)
    cluster.post([1], "pp:0", "recv", peer=0, done=False)
    cluster.tracers[0].activity("dequeue").begin("work")

    cause = cluster.verdict().cause

    assert cause is not None
    assert (cause.kind, cause.diverging_ranks) == ("p2p_mismatch", ())


def _verdict(cluster: Cluster, **engine: Any) -> Verdict:
    """Return the verdict once all have lived on for a minute, with changes to the idle engine."""
    run = cluster.run(quiet=60.0)
    last = max(rank.last_seen_ns or 0 for rank in run.ranks)
    others = [replace(one, last_seen_ns=last) for one in run.others]
    others[0] = replace(others[0], **engine)
    return diagnose(replace(run, others=tuple(others)))


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        (
            {"activities": {"input": Activity("input", None, 0, 1, 1, 2)}},
            "engine 0 (pid 2000) has sent no work for",
        ),
        (
            {"activities": {"asked": Activity("asked", "add_lora", 0, 1, 1)}},
            " s, in add_lora.",
        ),
        (
            {"activities": {"paused": Activity("paused", None, 0, 1, 1)}},
            "engine 0 (pid 2000) has been paused for",
        ),
        ({"details": {"stopped": True}}, "engine 0 (pid 2000) is stopped by a signal (state T)."),
        (
            {"details": {"ended_with": "ValueError: planted"}},
            "engine 0 (pid 2000) ended with ValueError: planted.",
        ),
    ],
)
def test_what_keeps_an_engine_is_said_of_its_workers(
    cluster_of: ClusterOf, changes: dict[str, Any], says: str
) -> None:
    _idle_replica(cluster := cluster_of(4))

    verdict = _verdict(cluster, **changes)

    assert verdict.cause is not None
    assert (verdict.cause.kind, verdict.diverging_ranks) == ("not_joined", {0, 1})
    assert "they are idle, in dequeue: engine 0" in verdict.cause.summary
    assert says in verdict.cause.summary


def test_a_worker_waits_for_the_one_whose_answer_its_engine_waits_for(
    cluster_of: ClusterOf,
) -> None:
    """Rank 0 has answered and is idle; rank 1 took the call, and has not come back."""
    idle = _idle_replica(cluster := cluster_of(4))
    slot = idle.activity("enqueue")
    slot.end(slot.begin("check_health"))
    taken = cluster.tracers[1].activity("dequeue")
    taken.end(taken.begin("work"))
    answer = cluster.tracers[0].activity("enqueue")
    answer.end(answer.begin("check_health"))
    idle.activity("dequeue").begin()

    verdict = cluster.verdict()

    assert verdict.cause is not None
    assert verdict.diverging_ranks == {1}
    assert verdict.cause.summary.startswith(
        "Rank 0 waits for work: engine 0 (pid 2000) waits: rank 1 has not answered check_health. "
    )


def test_no_engine_is_to_blame_where_engines_wait_for_each_other(cluster_of: ClusterOf) -> None:
    idle = _idle_replica(cluster := cluster_of(4))
    for engine, calls in ((idle, 2), (busy := _engine(cluster, 1), 1)):
        comm = engine.communicator("E", "engines", (), "gloo")
        for number in range(calls):
            at = engine.record(comm, "all_reduce", shape=(2,), dtype="int32", redop="sum")
            if not number:
                engine.complete(at)
    slot = busy.activity("enqueue")
    slot.end(slot.begin("execute_dummy_batch"))
    busy.activity("dequeue").begin()

    verdict = cluster.verdict()

    assert verdict.cause is not None
    assert verdict.diverging_ranks == {0, 1}
    assert verdict.cause.summary.endswith("in which ranks 2 3 wait; they are idle, in dequeue.")
