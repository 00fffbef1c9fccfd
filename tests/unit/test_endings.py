"""Verdicts on jobs whose processes have ended by themselves."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from ncclscope import Verdict, diagnose, open_run
from ncclscope.clock import now_ns
from ncclscope.model import Activity, Rank, Run
from tests.support.cluster import Cluster

SIZE = 4
ERROR = "AssertionError: no device \x1b[31m"


def ended(directory: Path, calls: int, errors: dict[int, str]) -> Verdict:
    """Return the verdict on ranks that ended, some of them with exceptions."""
    cluster = Cluster(directory, SIZE)
    for rank in cluster.everybody:
        cluster.comm(rank, "world", cluster.everybody)
    cluster.history("world", calls)
    run = cluster.run()
    ranks = tuple(
        replace(
            rank,
            exited=True,
            alive=False,
            details={**rank.details, "ended_with": errors[rank.rank]}
            if rank.rank in errors
            else rank.details,
        )
        for rank in run.ranks
    )
    return diagnose(replace(run, ranks=ranks))


@pytest.mark.parametrize("calls", [0, 3])
def test_processes_without_an_exception_exited_normally(tmp_path: Path, calls: int) -> None:
    verdict = ended(tmp_path, calls, {})

    assert (verdict.status, verdict.summary.partition(".")[0]) == (
        "ok",
        "All processes exited normally",
    )


def test_exceptions_before_the_first_call_are_no_agreement(tmp_path: Path) -> None:
    verdict = ended(tmp_path, 0, dict.fromkeys(range(SIZE), ERROR))

    assert verdict.status == "unknown"
    assert verdict.summary.startswith("Ranks 0-3 ended with AssertionError: no device")
    assert "\x1b" not in verdict.summary
    assert "exited normally" not in verdict.summary


def test_exceptions_of_some_ranks_are_no_agreement(tmp_path: Path) -> None:
    verdict = ended(tmp_path, 3, {0: ERROR, 2: "KeyError: 'loss'"})

    assert verdict.status == "unknown"
    assert "Rank 0 ended with AssertionError" in verdict.summary
    assert "Rank 2 ended with KeyError: 'loss'." in verdict.summary
    assert "exited normally" not in verdict.summary


def exited(run: Run, *ranks: int) -> Run:
    """Return the run with ranks whose processes exited in order."""
    return replace(run, ranks=tuple(replace(rank, exited=rank.rank in ranks) for rank in run.ranks))


@pytest.mark.parametrize(
    ("alive", "done", "status"),
    [(False, True, "unknown"), (None, False, "unknown"), (None, True, "ok")],
)
def test_a_rank_without_a_recorded_end_is_named_where_its_peers_exited(
    tmp_path: Path, alive: bool | None, done: bool, status: str
) -> None:
    """It was killed, or called os._exit(); or its ring was copied just before its end."""
    cluster = Cluster(tmp_path, SIZE)
    cluster.history("world")
    cluster.post(range(SIZE - 1), "world")
    cluster.post([SIZE - 1], "world", done=done)
    run = exited(cluster.run(quiet=1.0), 0, 1, 2)
    run = replace(run, ranks=tuple(replace(rank, alive=alive) for rank in run.ranks))

    verdict = diagnose(run)

    assert verdict.status == status
    assert verdict.summary.startswith("Rank 3 recorded no end") == (status != "ok")


@pytest.mark.parametrize("op", ["recv", "all_reduce"])
def test_a_call_on_nccl_of_a_rank_without_a_recorded_end_may_be_left_open(
    tmp_path: Path, op: str
) -> None:
    """NCCL shows no completion: a later call that completed says nothing of an earlier one."""
    cluster = Cluster(tmp_path, SIZE)
    cluster.history("world", backend="nccl")
    cluster.post([2], "world", "send", peer=3, backend="nccl", done=False)
    cluster.post([3], "world", "recv", peer=2, backend="nccl", done=False)
    cluster.post(cluster.everybody, "world", "barrier", backend="nccl", done=op == "recv")
    run = exited(cluster.run(quiet=1.0), 0, 1, 2)
    run = replace(run, ranks=tuple(replace(rank, alive=None) for rank in run.ranks))

    verdict = diagnose(run)

    assert verdict.status == "unknown"
    assert verdict.summary.startswith("Rank 3 recorded no end")


def test_ranks_that_exited_in_order_wait_for_nobody_without_a_record(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path, SIZE)
    cluster.post([0, 1, 2], "world", backend="nccl", done=False)
    cluster.tracers[3].ring.path.unlink()
    run = cluster.run()

    assert diagnose(run).status == "hung"
    assert diagnose(exited(run, 0, 1, 2)).status == "incomplete"


def test_ranks_that_exited_in_order_were_stuck_in_nothing(tmp_path: Path) -> None:
    """NCCL shows no completion; they waited at their end, for one that was busy for a minute."""
    cluster = Cluster(tmp_path, SIZE)
    cluster.post(cluster.everybody, "world", "barrier", backend="nccl")
    for members in ((0, 1), (2, 3)):
        cluster.post(members, f"dp:{members[0]}", members=members, backend="nccl")
        cluster.post(
            members, f"dp:{members[0]}", "broadcast", root=0, members=members, backend="nccl"
        )
        cluster.post(members, f"dp:{members[0]}", members=members, backend="nccl", done=False)
    run = cluster.run()

    assert diagnose(exited(run)).status == "hung"
    assert diagnose(exited(run, *cluster.everybody)).status == "ok"


@pytest.mark.parametrize(
    ("error", "status"),
    [(ERROR, "unknown"), ("KeyboardInterrupt", "ok"), ("RuntimeError: Timed out", "unknown")],
)
def test_ranks_that_fail_alike_are_no_agreement_unless_they_were_interrupted(
    tmp_path: Path, error: str, status: str
) -> None:
    assert ended(tmp_path, 3, dict.fromkeys(range(SIZE), error)).status == status


def failed_at(rank: Rank, error: str, place: str) -> Rank:
    """Return a rank that an exception at this place ended."""
    raised = Activity("raised", f"{error.partition(':')[0]} at {place}", 1, 1, 1, 1)
    details = {**rank.details, "ended_with": error}
    return replace(rank, exited=True, alive=False, activities={"raised": raised}, details=details)


def failed_in_last_call(
    directory: Path, errors: dict[int, str], place: str = "model.py:10 all_reduce"
) -> Verdict:
    """Return the verdict on ranks that all posted a call over NCCL, which ended some of them."""
    cluster = Cluster(directory, SIZE)
    cluster.post(range(SIZE), "world", backend="nccl", done=False)
    run = cluster.run(quiet=3.0)
    ranks = tuple(
        failed_at(rank, errors[rank.rank], place)
        if rank.rank in errors
        else replace(rank, alive=False)
        for rank in run.ranks
    )
    return diagnose(replace(run, ranks=ranks))


def test_a_rank_that_failed_in_a_call_of_all_is_named(tmp_path: Path) -> None:
    error = "DistBackendError: NCCL error, unhandled system error"
    verdict = failed_in_last_call(tmp_path, {3: error})

    assert verdict.cause is not None
    assert (verdict.cause.kind, verdict.cause.diverging_ranks) == ("dead_rank", (3,))
    assert verdict.cause.confidence == "likely"
    assert "unhandled system error" in verdict.summary


def test_an_exception_from_another_line_is_not_of_the_call(tmp_path: Path) -> None:
    verdict = failed_in_last_call(tmp_path, {3: "ValueError: no"}, "model.py:11 step")

    assert verdict.cause is None
    assert verdict.status == "unknown"
    assert "Rank 3 ended with ValueError: no. Ranks 0-2 are gone without an exit." in (
        verdict.summary
    )


def test_most_of_the_ranks_cannot_have_failed_alone(tmp_path: Path) -> None:
    verdict = failed_in_last_call(tmp_path, dict.fromkeys((0, 1, 3), "ValueError: no"))

    assert verdict.cause is None
    assert verdict.status == "unknown"


def test_a_call_whose_timeout_ended_its_ranks_does_not_complete(tmp_path: Path) -> None:
    error = "RuntimeError: Timed out waiting 20000ms for recv operation to complete"
    verdict = failed_in_last_call(tmp_path, dict.fromkeys(range(SIZE), error))

    assert verdict.cause is not None
    assert (verdict.status, verdict.cause.kind) == ("hung", "stalled")
    assert verdict.cause.candidate_ranks == tuple(range(SIZE))


@pytest.mark.parametrize(("behind", "seq"), [((), 5), ((3,), 4)])
def test_a_rank_that_failed_behind_its_peers_misses_their_next_call(
    tmp_path: Path, behind: tuple[int, ...], seq: int
) -> None:
    """Rank 1 caught an exception in a backward, so that its buckets 5 and 6 are missing."""
    cluster = Cluster(tmp_path, SIZE)
    cluster.history("world", 3)
    cluster.post(range(SIZE), "world", done=False)
    for _ in range(2):
        cluster.post([n for n in (0, 2, 3) if n not in behind], "world", done=False)
    run = cluster.run(quiet=3.0)
    error = "RuntimeError: Expected to have finished reduction"
    ranks = tuple(
        failed_at(rank, error, "model.py:10 all_reduce") if rank.rank == 1 else rank
        for rank in run.ranks
    )

    cause = diagnose(replace(run, ranks=ranks)).cause

    assert cause is not None
    assert (cause.kind, cause.diverging_ranks, cause.seq) == ("dead_rank", (1,), seq)


def test_a_worker_whose_engine_failed_with_it_is_named(tmp_path: Path) -> None:
    """An engine ends all workers when one is gone, so that none has to wait for it."""
    cluster = Cluster(tmp_path, 2)
    cluster.history("world", 3)
    run = cluster.run(quiet=1.0)
    ranks = tuple(
        replace(rank, alive=False, exited=rank.rank != 1, labels={"engine": "0"})
        for rank in run.ranks
    )
    engine = failed_at(replace(ranks[0], rank=-1, logs={}), "RuntimeError: Executor failed.", "x")

    verdict = diagnose(replace(run, ranks=ranks, others=(engine,)))

    assert verdict.status == "unknown"
    assert f"Engine 0 (pid {engine.pid}) ended with RuntimeError: Executor failed." in (
        verdict.summary
    )
    assert "Rank 1 is gone without an exit." in verdict.summary


def test_a_job_that_was_killed_as_a_whole_lost_no_worker(tmp_path: Path) -> None:
    """Its engine sees the first of them end; an exception long before was handled."""
    cluster = Cluster(tmp_path, 2)
    cluster.history("world", 3)
    run = cluster.run(quiet=1.0)
    handled = Activity("raised", "KeyError at a.py:1 setup", 0, 1, 1, 1)
    ranks = tuple(
        replace(rank, alive=False, labels={"engine": "0"}, activities={"raised": handled})
        for rank in run.ranks
    )
    died = Activity("worker_died", "VllmWorker-0, exit status -9", 1, 1, 1, 1)
    engine = failed_at(replace(ranks[0], rank=-1, logs={}), "RuntimeError: Executor failed.", "x")
    engine = replace(engine, activities={**engine.activities, "worker_died": died})

    verdict = diagnose(replace(run, ranks=ranks, others=(engine,)))

    assert (verdict.status, verdict.cause) == ("ok", None)


def with_engine(run: Run, noted: Activity) -> Verdict:
    """Return the verdict on workers of one engine that are gone, and what the engine noted."""
    ranks = tuple(
        replace(rank, alive=False, exited=rank.rank != 1, labels={"engine": "0"})
        for rank in run.ranks
    )
    engine = replace(ranks[0], rank=-1, logs={}, exited=False, activities={noted.name: noted})
    return diagnose(replace(run, ranks=ranks, others=(engine,)))


@pytest.mark.parametrize(("number", "named"), [(2, (1,)), (9, ())])
def test_a_worker_that_its_engine_saw_end_is_named(
    tmp_path: Path, number: int, named: tuple[int, ...]
) -> None:
    cluster = Cluster(tmp_path, 2)
    cluster.history("world", 3)
    died = Activity("worker_died", "VllmWorker-1, exit status -9", number, 1, 1, 1)

    verdict = with_engine(cluster.run(quiet=1.0), died)

    assert (verdict.cause.diverging_ranks if verdict.cause else ()) == named
    if verdict.cause is not None:
        assert (verdict.cause.kind, verdict.cause.confidence) == ("dead_rank", "certain")
        assert "exit status -9" in verdict.cause.evidence[0]


@pytest.mark.parametrize("started", [False, True])
def test_workers_that_an_engine_ends_as_it_fails_to_start_have_not_died(
    tmp_path: Path, started: bool
) -> None:
    cluster = Cluster(tmp_path, 2)
    cluster.history("world", 3)
    run = cluster.run(quiet=1.0)
    ranks = tuple(
        replace(rank, alive=False, exited=True, labels={"engine": "0"}) for rank in run.ranks
    )
    noted = [Activity("worker_died", "VllmWorker-0, exit status 0", 1, 1, 1, 1)]
    noted += [Activity("input", None, 0, 1, 1, 1)] if started else []
    engine = failed_at(replace(ranks[0], rank=-1, logs={}), "ValueError: too small", "x")
    engine = replace(engine, activities={**engine.activities, **{one.name: one for one in noted}})

    verdict = diagnose(replace(run, ranks=ranks, others=(engine,)))

    assert (verdict.cause.diverging_ranks if verdict.cause else ()) == ((0,) if started else ())
    assert started or verdict.summary.startswith(f"Engine 0 (pid {engine.pid}) ended with")


def test_a_call_that_raised_in_a_process_that_is_gone_is_no_agreement(tmp_path: Path) -> None:
    """As where workers lost a peer in the call that all had posted, and were killed then."""
    cluster = Cluster(tmp_path, SIZE)
    cluster.post(range(SIZE), "world", backend="nccl", done=False)
    run = cluster.run(quiet=1.0)
    ranks = []
    for rank in run.ranks:
        raised = Activity("raised", "RuntimeError at a.py:1 step", 0, 1, rank.last_seen_ns or 0, 1)
        noted = {"raised": raised} if rank.rank in (0, 2) else {}
        ranks.append(replace(rank, alive=False, activities=noted))

    verdict = diagnose(replace(run, ranks=tuple(ranks)))

    assert verdict.status == "unknown"
    assert verdict.summary.startswith("Ranks 0 2 raised RuntimeError at a.py:1 step, and posted")


@pytest.mark.parametrize("seconds", [0.01, 60.0])
def test_the_exception_that_a_worker_answers_with_comes_before_its_engines(
    tmp_path: Path, seconds: float
) -> None:
    """An engine of vLLM raises one of its own for it. Much later, it has another reason."""
    cluster = Cluster(tmp_path, 2)
    cluster.post(range(2), "world")
    run = cluster.run(quiet=100.0)
    now = run.ranks[0].last_seen_ns or 0
    own, later = now - int(seconds * 1e9), now + 1
    raised = Activity("raised", "NotImplementedError at moe.py:9 apply", 0, 1, own, own)
    wrapped = Activity("raised", "RuntimeError at core.py:1496 run_engine_core", 0, 1, later, later)
    labels = {"engine": "0"}
    rank0, rank1 = (replace(one, alive=False, exited=False, labels=labels) for one in run.ranks)
    rank1 = replace(rank1, activities={"raised": raised})
    engine = Rank(-1, 0, pid=9, labels=labels, alive=False, activities={"raised": wrapped})
    engine = replace(engine, last_seen_ns=now)

    verdict = diagnose(replace(run, ranks=(rank0, rank1), others=(engine,)))

    assert verdict.status == "unknown"
    assert verdict.summary.startswith(
        "Rank 1 raised NotImplementedError at moe.py:9 apply, and posted nothing since. Engine 0 "
        "(pid 9) then raised RuntimeError at core.py:1496 run_engine_core"
        if seconds < 1
        else "Engine 0 (pid 9) raised RuntimeError"
    )


def killed(directory: Path, seconds: dict[int, float]) -> Verdict:
    """Return the verdict on a killed job whose last heartbeats came that long after its calls.

    Ranks 0 to 2 are in a call on ``ep``, and rank 3 in one on ``world``.
    """
    cluster = Cluster(directory, SIZE)
    cluster.history("world", 3)
    cluster.history("ep", 3)
    cluster.post([0, 1, 2], "ep", "broadcast", root=0, done=False)
    cluster.post([3], "world", "barrier", done=False)
    run = cluster.run()
    latest = max(call.time_ns or 0 for rank in run.ranks if (call := rank.last_call()))
    ranks = tuple(
        replace(
            rank,
            alive=False,
            exited=False,
            last_seen_ns=latest + int(seconds[rank.rank] * 1e9),
            details={**rank.details, "boot_id": "one", "host": "node"},
        )
        for rank in run.ranks
    )
    return diagnose(replace(run, ranks=ranks))


def test_a_call_that_keeps_the_heartbeat_waits_as_well(tmp_path: Path) -> None:
    # Calls of a C++ library that keep Python's lock: no thread of Python runs meanwhile.
    verdict = killed(tmp_path, {0: -0.5, 1: -0.5, 2: -0.5, 3: 10.0})

    assert verdict.status == "hung"
    assert verdict.cause is not None
    assert (verdict.cause.kind, verdict.cause.diverging_ranks) == ("not_joined", (3,))


def test_a_job_that_was_killed_at_once_did_not_hang(tmp_path: Path) -> None:
    assert killed(tmp_path, dict.fromkeys(range(SIZE), 0.1)).status == "ok"
    assert killed(tmp_path, dict.fromkeys(range(SIZE), -0.5)).status == "ok"


def late(directory: Path, boot: str, ahead: int = 0) -> Verdict:
    """Return the verdict on a job that was killed just after rank 3 had posted a call late.

    Args:
        directory: Where the traces go.
        boot: What names the boot of the host of each rank.
        ahead: Seconds by which the clock of rank 3 is ahead at its first call.
    """
    began = 10**18
    for rank in range(SIZE):
        posted = began + (50_000_000_000 if rank == 3 else 0)
        first = began + (ahead * 1_000_000_000 if rank == 3 else 0)
        lines: list[dict[str, object]] = [
            {
                "ncclscope_trace": 1,
                "rank": rank,
                "world_size": SIZE,
                "host": "node",
                "pid": 9 + rank,
            }
            | {"last_seen_ns": began + 50_100_000_000, "started_ns": began},
            {"comm": "k", "label": "world", "ranks": list(range(SIZE)), "backend": "gloo"},
            {"call": "barrier", "comm": "k", "t_ns": first, "state": "completed"},
            {"call": "all_reduce", "comm": "k", "t_ns": posted, "state": "scheduled"},
        ]
        text = "".join(json.dumps(line) + "\n" for line in lines)
        (directory / f"{rank}.jsonl").write_text(text)
    run = open_run(directory)
    ranks = (
        replace(rank, alive=False, details={**rank.details, "boot_id": boot}) for rank in run.ranks
    )
    return diagnose(replace(run, ranks=tuple(ranks)))


@pytest.mark.parametrize("boot", ["one", ""])
def test_a_rank_that_came_late_has_not_ended_before_its_peers(tmp_path: Path, boot: str) -> None:
    """All are of one host, or posted the call before at one time."""
    verdict = late(tmp_path, boot)

    assert verdict.cause is None
    assert "heartbeat" not in verdict.summary


def test_without_a_common_clock_its_heartbeat_counts_from_its_last_call(tmp_path: Path) -> None:
    cause = late(tmp_path, "", ahead=10).cause

    assert cause is not None
    assert (cause.kind, cause.diverging_ranks) == ("dead_rank", (3,))


LOST = "RuntimeError: [pair.cc:553] Connection closed by peer [127.0.0.1]:42933"


def lost(directory: Path, size: int, error: str, *, after: float, failing: int) -> Verdict:
    """Return the verdict where the last rank recorded no end, and others failed in a call.

    Args:
        directory: Where the rings go.
        size: Number of ranks.
        error: With what the first ranks ended.
        after: Seconds from the call to their exceptions.
        failing: How many ended so; the others but the last recorded no end either.
    """
    cluster = Cluster(directory, size)
    cluster.history("world", 3)
    cluster.post(range(failing), "world", done=False)
    run = cluster.run(quiet=after)
    ranks = []
    for rank in run.ranks:
        if rank.rank < failing:
            last = rank.last_call()
            assert last is not None
            assert last.time_ns is not None
            moment = last.time_ns + int(after * 1e9)
            raised = Activity("raised", "RuntimeError at train.py:3", 1, 1, moment, moment)
            rank = replace(
                rank,
                exited=True,
                activities={"raised": raised},
                details={**rank.details, "ended_with": error},
            )
        ranks.append(rank)
    return diagnose(replace(run, ranks=tuple(ranks)))


@pytest.mark.parametrize("size", [2, 4])
def test_rank_whose_peers_lost_it_at_once_is_named(tmp_path: Path, size: int) -> None:
    verdict = lost(tmp_path, size, LOST, after=0.1, failing=size - 1)

    cause = verdict.cause
    assert cause is not None, verdict.summary
    assert (verdict.status, cause.kind, cause.diverging_ranks) == (
        *("hung", "dead_rank", (size - 1,)),
    )
    assert cause.confidence == "likely"
    assert "its process is gone, and recorded no end" in cause.summary
    assert f"rank 0 ended with {LOST}" in cause.evidence


def test_ranks_that_were_ended_for_one_that_failed_in_a_call_are_not_blamed(
    tmp_path: Path,
) -> None:
    verdict = lost(tmp_path, SIZE, "ValueError: no such split", after=0.1, failing=1)

    assert verdict.cause is None or not {1, 2, 3} & {*verdict.cause.diverging_ranks}


def test_rank_that_was_killed_after_its_peers_gave_up_is_not_said_to_have_died_before(
    tmp_path: Path,
) -> None:
    verdict = lost(tmp_path, SIZE, "RuntimeError: Timed out", after=8.0, failing=SIZE - 1)

    assert verdict.cause is not None
    assert (verdict.cause.kind, verdict.cause.diverging_ranks) == ("not_joined", (SIZE - 1,))


def failed_after_waiting(
    directory: Path, detail: str, error: str, *, waited: float, met: bool = False, calls: int = 0
) -> Verdict:
    """Return the verdict where all ranks failed right after a wait at a store had ended.

    Args:
        directory: Where the rings go.
        detail: What they waited for; the timeout is 60 s.
        error: With what they ended.
        waited: Seconds for which they waited.
        met: Whether the wait was part of an ``init_process_group`` that returned.
        calls: Sends that they posted between the wait and the error.
    """
    cluster = Cluster(directory, SIZE)
    for rank in cluster.everybody:
        cluster.comm(rank, "world", cluster.everybody)
    begun = now_ns() - int(waited * 1e9)
    until = now_ns()
    for rank in cluster.everybody:
        for _ in range(calls):
            cluster.post([rank], "world", "send", peer=(rank + 1) % SIZE)
    now = now_ns()
    activities = {
        "store_wait": Activity("store_wait", detail, 60, 1, begun, until),
        "raised": Activity("raised", f"{error} at train.py:3", 1, 1, now, now),
    }
    if met:
        activities["init_process_group"] = Activity("init_process_group", "gloo", 60, 1, begun, now)
    run = cluster.run()
    ranks = tuple(
        replace(
            rank,
            exited=True,
            alive=False,
            activities=activities,
            details={**rank.details, "ended_with": error},
        )
        for rank in run.ranks
    )
    return diagnose(replace(run, ranks=ranks))


def test_ranks_that_fail_right_after_they_met_do_not_wait(tmp_path: Path) -> None:
    """A missing file ends all ranks within a second of ``init_process_group``."""
    error = "RuntimeError: no such dataset"

    verdict = failed_after_waiting(tmp_path, "connect 127.0.0.1:29500", error, waited=0.1, met=True)

    assert (verdict.status, verdict.cause) == ("unknown", None)
    assert "ended with RuntimeError: no such dataset" in verdict.summary


def test_ranks_that_fail_right_after_a_key_was_set_do_not_wait(tmp_path: Path) -> None:
    verdict = failed_after_waiting(tmp_path / "other", "get weights", ERROR, waited=0.1)
    later = failed_after_waiting(
        tmp_path / "later", "get weights", "DistNetworkError: reset", waited=0.1, calls=1
    )

    assert verdict.cause is None
    assert later.cause is None or later.cause.kind != "init_stalled"


@pytest.mark.parametrize(
    ("error", "waited"), [("DistStoreError: wait timeout", 0.1), ("RuntimeError: no key", 60.0)]
)
def test_ranks_that_fail_in_a_wait_at_a_store_waited(
    tmp_path: Path, error: str, waited: float
) -> None:
    verdict = failed_after_waiting(tmp_path, "get weights", error, waited=waited)

    assert verdict.cause is not None
    assert verdict.cause.kind == "init_stalled"
    assert "key 'weights'" in verdict.summary
    timed_out = "rank 0: its timeout of 60 s ended the wait"
    assert (timed_out in verdict.cause.evidence) == (waited == 60.0)


def test_ranks_that_failed_in_the_rendezvous_do_not_wait_any_more(tmp_path: Path) -> None:
    """Peers that are gone refuse the connections of `init_process_group`, at once."""
    cluster = Cluster(tmp_path, SIZE)
    run = cluster.run()
    now = now_ns()
    ranks = tuple(
        replace(
            rank,
            exited=True,
            alive=False,
            activities={
                "init_process_group": Activity(
                    "init_process_group", "gloo at a.py:3", 60, 1, now - 1000, now + rank.rank
                ),
                "raised": Activity("raised", "RuntimeError at a.py:3", 1, 1, now, now),
            },
            details={**rank.details, "ended_with": f"RuntimeError: refused, {rank.rank}"},
        )
        for rank in run.ranks
    )

    verdict = diagnose(replace(run, ranks=ranks))

    assert verdict.cause is not None
    assert (verdict.cause.kind, verdict.cause.diverging_ranks) == ("init_stalled", ())
    assert verdict.summary == (
        "All ranks failed in init_process_group (gloo at a.py:3) after less than a second (rank 0 "
        "ended with RuntimeError: refused, 0), and no record shows why."
    )


def test_a_rank_that_was_killed_in_the_rendezvous_had_come_to_it(tmp_path: Path) -> None:
    """An engine kills the other workers when one fails: they are not why peers wait."""
    cluster = Cluster(tmp_path, SIZE)
    run = cluster.run()
    now = now_ns()
    waits = Activity("init_process_group", "nccl at a.py:3", 600, 1, now - 60_000_000_000, None)
    raised = Activity("raised", "DistNetworkError at a.py:3", 0, 1, now, now)
    ranks = [
        replace(rank, alive=rank.rank > 1, last_seen_ns=now, activities={waits.name: waits})
        for rank in run.ranks
    ]
    ranks[0] = replace(ranks[0], exited=True, activities={"raised": raised})

    verdict = diagnose(replace(run, ranks=tuple(ranks)))

    assert verdict.cause is not None
    assert (verdict.cause.kind, verdict.cause.diverging_ranks) == ("dead_rank", (0,))


@pytest.mark.parametrize(
    ("detail", "absent", "expected"),
    [
        ("connect host:29500", (0,), "rank 0, which is to serve it, has not come"),
        ("connect host:29500", (0, 3), "rank 0, which is to serve it, has not come"),
        ("connect host:29500", (3,), "rank 3, which may have to serve it, has not come"),
        ("connect host:29500", (), "all ranks wait, and none serves it"),
        ("get weights", (0,), "rank 0 has not set it"),
        ("get weights", (), "all ranks wait, and none sets it"),
    ],
)
def test_who_cannot_connect_to_a_store_waits_for_its_server(
    tmp_path: Path, detail: str, absent: tuple[int, ...], expected: str
) -> None:
    run = Cluster(tmp_path, SIZE).run()
    ranks = []
    for rank in run.ranks:
        now = rank.last_seen_ns or 0
        wait = Activity("store_wait", detail, 1800, 1, now - 60_000_000_000, None)
        if rank.rank not in absent:
            ranks.append(replace(rank, alive=True, activities={"store_wait": wait}))
    missing = replace(run, ranks=tuple(ranks))

    cause = diagnose(missing).cause

    assert cause is not None
    assert cause.kind == "init_stalled"
    assert expected in cause.summary
    assert ("set it" in cause.summary) == ("set it" in expected)


def test_ranks_that_lost_the_connection_to_ended_ones_are_no_candidates(tmp_path: Path) -> None:
    """As in a pipeline: two stages fail by an error of their own, the third in its receive."""
    cluster = Cluster(tmp_path, 3)
    cluster.history("world", 2)
    cluster.post([1], "world", "send", shape=(4, 32), redop=None, peer=2)
    cluster.post([2], "world", "recv", shape=(4, 32), redop=None, peer=1, done=False)
    for rank, error in ((0, "ValueError: grad"), (1, "ValueError: grad"), (2, LOST)):
        cluster.tracers[rank].describe(ended_with=error)

    cause = cluster.verdict(quiet=0.1).cause

    assert cause is not None
    assert (cause.kind, cause.candidate_ranks) == ("dead_rank", (0, 1))
    assert not any("not recorded" in line for line in cause.inferred)


def test_groups_that_were_made_are_no_calls_of_a_dead_rank(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path, 3)
    cluster.post(range(3), "groups", "new_group", shape=None, dtype=None)
    cluster.history("world", 4)
    cluster.post([0, 1], "world", done=False)
    cluster.tracers[2].close()

    cause = cluster.verdict().cause

    assert cause is not None
    assert any(line.startswith("it made 4 calls") for line in cause.evidence), cause.evidence


@pytest.mark.parametrize("error", ["RuntimeError: planted", LOST, ""])
def test_of_a_pair_the_rank_that_failed_is_named(tmp_path: Path, error: str) -> None:
    """Near misses: a normal exit may be too early, and a lost connection is a consequence."""
    cluster = Cluster(tmp_path, 2)
    cluster.history("world", 3)
    cluster.post([0], "world", done=False)
    if error:
        cluster.tracers[1].describe(ended_with=error)
    cluster.tracers[1].close()

    cause = cluster.verdict().cause

    assert cause is not None
    named = (1,) if error == "RuntimeError: planted" else ()
    assert (cause.kind, cause.diverging_ranks) == ("dead_rank", named)


@pytest.mark.parametrize(
    ("exited", "engine_exited", "status"),
    [(True, False, "unknown"), (False, False, "ok"), (True, True, "ok")],
)
def test_an_engine_that_its_workers_outlive_has_failed(
    tmp_path: Path, exited: bool, engine_exited: bool, status: str
) -> None:
    """Something killed it, and they ended in order; a job killed as a whole is no failure."""
    cluster = Cluster(tmp_path, 2)
    cluster.history("world", 3)
    run = cluster.run(quiet=1.0)
    ranks = tuple(
        replace(rank, alive=False, exited=exited, labels={"engine": "0"}) for rank in run.ranks
    )
    engine = replace(ranks[0], rank=-1, logs={}, exited=engine_exited)

    verdict = diagnose(replace(run, ranks=ranks, others=(engine,)))

    assert verdict.status == status
    named = f"Engine 0 (pid {engine.pid}) is gone without an exit, unlike its workers."
    assert (named in verdict.summary) == (status == "unknown")


def gave_up(directory: Path, error: str | None, *, raised: bool, op: str) -> Verdict:
    """Return the verdict where three ranks gave up a call that rank 3 never joined."""
    cluster = Cluster(directory, SIZE)
    cluster.history("world", 3)
    cluster.post(range(SIZE - 1), "world", op, done=False)
    run = cluster.run(quiet=0.1)
    ranks = []
    for rank in run.ranks:
        details, activities = dict(rank.details), {}
        if rank.rank < SIZE - 1 and raised:
            now = rank.last_seen_ns or 0
            activities = {"raised": Activity("raised", "RuntimeError at a.py:3", 0, 1, now, now)}
        if error:
            details["ended_with"] = error
        ranks.append(replace(rank, exited=True, details=details, activities=activities))
    return diagnose(replace(run, ranks=tuple(ranks)))


@pytest.mark.parametrize(("raised", "op"), [(True, "all_reduce"), (False, "monitored_barrier")])
def test_a_call_that_was_given_up_hangs_nobody(tmp_path: Path, raised: bool, op: str) -> None:
    verdict = gave_up(tmp_path, None, raised=raised, op=op)

    assert (verdict.status, verdict.cause) == ("unknown", None)
    assert "Rank 3 never joined call 4 on world of ranks 0-3" in verdict.summary
    assert "ranks 0-2 gave it up. All of them went on, and exited normally." in verdict.summary


def test_a_call_that_nobody_gave_up_is_missed(tmp_path: Path) -> None:
    cause = gave_up(tmp_path, None, raised=False, op="all_reduce").cause

    assert cause is not None
    assert (cause.kind, cause.diverging_ranks) == ("dead_rank", (3,))


def test_lost_connections_of_all_ranks_are_no_agreement(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path, SIZE)
    cluster.history("world", 3)
    run = cluster.run(quiet=0.1)
    ranks = [
        replace(rank, exited=True, details={**rank.details, "ended_with": LOST})
        for rank in run.ranks
    ]

    assert diagnose(replace(run, ranks=tuple(ranks))).status != "ok"


def test_a_deadlock_that_lost_connections_ended_at_once_is_one(tmp_path: Path) -> None:
    """Rank 1 destroyed its pair's group, and went to the barrier of all."""
    cluster = Cluster(tmp_path, SIZE)
    for members in ((0, 1), (2, 3)):
        cluster.history("pair", 3, members=members)
    cluster.history("world", 3)
    cluster.post([0], "pair", members=(0, 1), done=False)
    cluster.post([1], "world", "barrier", done=False)
    run = cluster.run(quiet=0.1)
    ranks = [
        replace(rank, exited=True, details={**rank.details, "ended_with": LOST})
        for rank in run.ranks
    ]

    verdict = diagnose(replace(run, ranks=tuple(ranks)))

    assert verdict.status == "hung"
    assert verdict.cause is not None
    assert 1 in (verdict.cause.diverging_ranks or verdict.cause.candidate_ranks)


def test_a_wait_that_timeouts_ended_is_one_however_short_the_last_call(tmp_path: Path) -> None:
    """A caught timeout, and then another call of the same ranks, which fails at once."""
    cluster = Cluster(tmp_path, SIZE)
    cluster.history("world", 3)
    for op in ("all_reduce", "barrier"):
        cluster.post([0, 1, 3], "world", op, done=False)
    run = cluster.run(quiet={0: 0.01, 1: 0.01, 2: 15.0, 3: 0.01})
    error = "RuntimeError: Application timeout caused pair closure"
    ranks = [
        replace(rank, exited=True, details={**rank.details, "ended_with": error})
        if rank.rank != 2
        else rank
        for rank in run.ranks
    ]

    cause = diagnose(replace(run, ranks=tuple(ranks))).cause

    assert cause is not None
    assert (cause.kind, cause.diverging_ranks, cause.seq) == ("not_joined", (2,), 4)


def rendezvous(directory: Path, errors: dict[int, str], *, calls: int = 0) -> Verdict:
    """Return the verdict on ranks that are in ``init_process_group``, where some failed in it.

    Args:
        directory: Where the rings go.
        errors: With what they failed.
        calls: Calls of an earlier world of all; rank 2 is in no later one.
    """
    cluster = Cluster(directory, SIZE)
    if calls:
        cluster.history("world", calls)
    run = cluster.run()
    since = now_ns()
    now = since + 30_000_000_000
    ranks = []
    for rank in run.ranks:
        error, details, until = errors.get(rank.rank), dict(rank.details), None
        activities = {}
        if error:
            until, details["ended_with"] = since + 1000, error
            activities["raised"] = Activity("raised", "Error at a.py:3", 1, 1, until, until)
        if calls and rank.rank == 2:
            until = since - 9_000_000_000
        name = "init_process_group"
        activities[name] = Activity(
            name, "gloo at a.py:3", 60, 1, min(since, until or since), until
        )
        ranks.append(
            replace(
                rank,
                alive=not error,
                exited=bool(error),
                last_seen_ns=now,
                activities=activities,
                details=details,
            )
        )
    return diagnose(replace(run, ranks=tuple(ranks)))


def test_the_rank_that_failed_in_the_rendezvous_is_named(tmp_path: Path) -> None:
    verdict = rendezvous(tmp_path, {0: "DistNetworkError: code: -98, name: EADDRINUSE"})

    assert verdict.cause is not None
    assert (verdict.cause.kind, verdict.cause.diverging_ranks) == ("dead_rank", (0,))
    assert "failed in init_process_group (gloo at a.py:3), in which ranks 1-3 wait for 30 s" in (
        verdict.summary
    )
    assert "EADDRINUSE" in verdict.summary


def test_a_rank_that_could_not_connect_neither_waits_nor_went_on(tmp_path: Path) -> None:
    verdict = rendezvous(tmp_path, {1: "RuntimeError: connectFullMesh failed, timed out"})

    assert verdict.cause is not None
    assert verdict.cause.diverging_ranks == ()
    assert verdict.summary.startswith("Ranks 0 2 3 wait in init_process_group (gloo at a.py:3)")
    assert "rank 1: it ended with RuntimeError: connectFullMesh failed" in verdict.summary
    assert "went on" not in verdict.summary


def test_a_rank_of_an_earlier_world_has_not_come_to_the_next_one(tmp_path: Path) -> None:
    cause = rendezvous(tmp_path, {}, calls=3).cause

    assert cause is not None
    assert (cause.kind, cause.diverging_ranks) == ("init_stalled", (2,))


def test_a_key_that_did_not_come_is_no_failed_connection(tmp_path: Path) -> None:
    """C++ waits for keys, too, as in ``init_rpc``, which nothing notes."""
    verdict = failed_after_waiting(
        tmp_path, "connect host:29500", "DistStoreError: wait timeout, keys: /rpc/0", waited=0.1
    )

    assert verdict.cause is None
    assert "ended with DistStoreError: wait timeout" in verdict.summary


@pytest.mark.parametrize("ended", [True, False])
def test_a_stage_that_failed_is_named_and_not_those_that_were_ended(
    tmp_path: Path, ended: bool
) -> None:
    """A pipeline whose last stage raises; the stage before it loses the connection."""
    cluster = Cluster(tmp_path, SIZE)
    for rank in cluster.everybody:
        cluster.comm(rank, "world", cluster.everybody)
    for rank in (0, 1):
        cluster.post([rank], "world", "recv", redop=None, peer=rank + 1, done=False)
    cluster.post([2], "world", "send", redop=None, peer=3, done=False)
    errors = {2: LOST, 3: "ValueError: 3 microbatches"} if ended else {2: LOST}
    for rank, error in errors.items():
        cluster.tracers[rank].describe(ended_with=error)
        cluster.tracers[rank].close()
    run = cluster.run(quiet=4.0)

    cause = diagnose(run).cause

    assert cause is not None
    if ended:
        assert (cause.kind, cause.diverging_ranks) == ("dead_rank", (3,))
    else:
        assert cause.diverging_ranks != (0,)


def test_ranks_that_were_lost_with_their_node_are_one_finding(tmp_path: Path) -> None:
    verdict = lost(tmp_path, SIZE, LOST, after=0.1, failing=2)

    assert [one.diverging_ranks for one in verdict.findings if one.role == "cause"] == [(2, 3)]
    assert "Ranks 2 3 are dead or gone (their processes are gone" in verdict.summary
