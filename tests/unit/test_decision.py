"""One decision from all evidence: what is recorded, what is not, and what else speaks of it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import pytest

from ncclscope.engine.coverage import survey
from ncclscope.engine.verdict import Verdict, diagnose, headline
from ncclscope.model import Blame, Finding, Run
from ncclscope.model.activities import CPU
from ncclscope.model.snapshot import RasAnswer, RasComm, RasRank, Stacks, Thread
from ncclscope.readers import open_run
from tests.support.cluster import Cluster
from tests.support.dumps import Job, history
from tests.support.snapshots import (
    elsewhere,
    gpus,
    in_collective,
    judged,
    snapshot,
    stack,
    worker,
)

DDP = [{"kind": "ddp", "text": "gradient buckets of DistributedDataParallel", "comms": []}]
IDLE = stack("worker.py:9 busy_loop", "vllm/distributed/shm_broadcast.py:300 acquire_read")
ELSEWHERE = stack("train.py:1 <module>", "train.py:31 train")
BACKWARD = stack(
    "train.py:1 <module>",
    "train.py:31 train",
    "torch/_tensor.py:600 backward",
    "torch/autograd/graph.py:800 _engine_run_backward",
)


def living(run: Run, seconds: float) -> Run:
    """Return the run with processes that live, their last calls so long ago."""
    ranks = []
    for rank in run.ranks:
        last = rank.last_call()
        since = last.time_ns if last is not None else rank.started_ns
        assert since is not None
        ranks.append(replace(rank, alive=True, last_seen_ns=since + int(seconds * 1e9)))
    return replace(run, ranks=tuple(ranks))


def killed_at(run: Run, moment: int) -> Run:
    """Return the run with processes of one host that were killed at a moment."""
    where = {"boot_id": "host"}
    killed = (
        replace(rank, alive=False, last_seen_ns=moment, details={**rank.details, **where})
        for rank in run.ranks
    )
    return replace(run, ranks=tuple(killed))


def with_ddp(directory: Path, waiting: tuple[int, ...], size: int = 4) -> Cluster:
    """Ranks that use DDP; some of them wait in a recorded all_reduce."""
    cluster = Cluster(directory, size)
    cluster.history("world")
    for tracer in cluster.tracers:
        tracer.describe(unseen=DDP)
    cluster.post(waiting, "world", done=False)
    return cluster


def singled_out(verdict: Verdict) -> tuple[str, tuple[int, ...], str]:
    cause = verdict.cause
    assert cause is not None
    return cause.kind, cause.diverging_ranks, cause.confidence


@pytest.mark.parametrize(
    ("waiting", "kind", "ranks"),
    [((3,), "extra_call", (3,)), ((0, 1, 2), "not_joined", (3,))],
)
def test_whoever_is_alone_is_singled_out_and_never_for_certain(
    tmp_path: Path, waiting: tuple[int, ...], kind: str, ranks: tuple[int, ...]
) -> None:
    verdict = with_ddp(tmp_path, waiting).verdict()

    assert singled_out(verdict) == (kind, ranks, "likely")
    assert not verdict.coverage.complete
    assert "DistributedDataParallel" in verdict.coverage.unseen[0]


def test_two_against_two_that_may_hide_name_nobody(tmp_path: Path) -> None:
    verdict = with_ddp(tmp_path, (0, 1)).verdict()

    assert singled_out(verdict) == ("not_joined", (), "ambiguous")
    assert verdict.cause is not None
    assert verdict.cause.candidate_ranks == (0, 1, 2, 3)


def test_nothing_is_ok_where_not_all_is_recorded_and_no_process_ended_in_order(
    tmp_path: Path,
) -> None:
    cluster = with_ddp(tmp_path, ())

    verdict = cluster.verdict()
    assert (verdict.status, verdict.exit_status, verdict.cause) == ("unknown", 3, None)
    assert "DistributedDataParallel" in verdict.summary

    for tracer in cluster.tracers:
        tracer.close()
    assert diagnose(open_run(tmp_path)).status == "ok"


def test_an_activity_says_who_is_inside_of_calls_that_are_not_recorded(tmp_path: Path) -> None:
    cluster = with_ddp(tmp_path, ())
    for tracer in cluster.tracers[:3]:
        tracer.activity("ddp_backward").begin()
    run = living(cluster.run(), 30.0)

    verdict = diagnose(run)

    assert verdict.status == "hung"
    assert singled_out(verdict) == ("not_joined", (3,), "likely")


def test_stacks_show_who_waits_past_all_probes(tmp_path: Path) -> None:
    run = living(with_ddp(tmp_path, (3,)).run(), 30.0)
    workers = [worker(rank, BACKWARD, world_size=4) for rank in range(3)]
    seen = snapshot([*workers, worker(3, in_collective("all_reduce", 40), world_size=4)], gap=12.0)

    verdict = diagnose(replace(run, snapshot=seen))

    assert singled_out(verdict) == ("extra_call", (3,), "likely")
    assert verdict.cause is not None
    assert "backward" in verdict.cause.summary


def test_a_stack_of_a_rank_that_waits_in_a_recorded_call_decides_nothing(tmp_path: Path) -> None:
    """Rank 2 waits for rank 3, which waits for it with all others: they disagree on their pair."""
    cluster = Cluster(tmp_path, 4)
    cluster.history("world")
    cluster.history("pair", members=(2, 3))
    cluster.post((0, 1, 3), "world", backend="nccl", done=False)
    cluster.post((2,), "pair", members=(2, 3), backend="nccl", done=False)
    run = living(cluster.run(), 30.0)
    assert singled_out(diagnose(run))[1:] == ((), "ambiguous")

    workers = [worker(rank, in_collective("all_reduce", 10)) for rank in (0, 1, 3)]
    seen = snapshot([*workers, worker(2, elsewhere(20))], gap=12.0)
    verdict = diagnose(replace(run, snapshot=seen))

    assert singled_out(verdict)[1:] == ((), "ambiguous")


def test_a_tie_in_the_records_is_decided_by_a_stack(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path, 2)
    cluster.history("world")
    cluster.post((0,), "world", done=False)
    run = living(cluster.run(), 30.0)
    assert singled_out(diagnose(run)) == ("not_joined", (), "ambiguous")

    workers = [worker(0, in_collective("all_reduce", 10)), worker(1, elsewhere(5))]
    verdict = diagnose(replace(run, snapshot=snapshot(workers, gap=12.0)))

    assert singled_out(verdict) == ("not_joined", (1,), "likely")


@pytest.mark.parametrize("gap", [12.0, 2.0])
def test_a_tie_in_a_group_is_decided_by_the_stacks_of_its_members(
    tmp_path: Path, gap: float
) -> None:
    """Of all ranks, most are in another call: they wait for ranks of their own."""
    cluster = Cluster(tmp_path, 5)
    for _ in range(3):
        cluster.post((0, 1), "pair", members=(0, 1))
        cluster.post((2, 3, 4), "trio", "all_gather", members=(2, 3, 4))
    cluster.post((0,), "pair", members=(0, 1), done=False)
    cluster.post((2, 3, 4), "trio", "all_gather", members=(2, 3, 4), done=False)
    run = living(cluster.run(), 30.0)
    workers = [worker(0, in_collective("all_reduce", 10)), worker(1, elsewhere(5))]
    workers += [worker(rank, in_collective("all_gather", 12)) for rank in (2, 3, 4)]

    causes = diagnose(replace(run, snapshot=snapshot(workers, gap=gap))).causes

    named = [one.diverging_ranks for one in causes if one.kind == "not_joined"]
    assert named == [(1,) if gap > 10 else ()]


def test_a_job_that_was_seen_to_post_is_ok(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path, 2)
    cluster.history("world")
    run = living(cluster.run(), 1.0)
    last = max(call.time_ns or 0 for rank in run.ranks if (call := rank.last_call()))
    seen = snapshot([worker(rank, elsewhere(5)) for rank in range(2)], gap=2.0)
    hosts = replace(seen, time_ns=last + 1, host="node-0")

    assert diagnose(replace(run, snapshot=hosts)).status == "ok"
    later = replace(hosts, time_ns=last + 60 * 10**9)
    assert diagnose(replace(living(run, 60.0), snapshot=later)).status == "unknown"


def test_dumps_beside_rings_hold_what_no_probe_recorded(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path / "rings", 4)
    cluster.post(range(4), "world", backend="nccl")
    job = Job(4)
    history(job)
    job.post((0, 1, 3), "all_reduce", state="scheduled")
    job.post((2,), "all_gather", state="scheduled", outs=[[16, 2]])
    job.write(tmp_path / "flight_recorder")

    verdict = diagnose(open_run(tmp_path))

    assert (verdict.status, verdict.coverage.complete) == ("diverged", False)
    assert singled_out(verdict)[:2] == ("op_mismatch", (2,))
    (counted,) = verdict.coverage.comms
    assert (counted.by, counted.recorded) == ("flight_recorder", 1)
    assert counted.counted > 1


def test_an_interrupt_is_how_the_job_ended_and_not_why_it_hung(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path, 4)
    cluster.history("world")
    cluster.post((0, 2, 3), "world", done=False)
    cluster.tracers[1].describe(ended_with="KeyboardInterrupt: ")
    cluster.tracers[1].close()

    verdict = cluster.verdict()

    assert singled_out(verdict)[:2] == ("not_joined", (1,))
    assert verdict.cause is not None
    assert any("how the job was stopped" in line for line in verdict.cause.evidence)


def test_a_rank_that_is_interrupted_while_nobody_waits_yet_is_gone(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path, 4)
    cluster.history("world")
    cluster.post((0, 2, 3), "world", done=False)
    cluster.tracers[1].describe(ended_with="KeyboardInterrupt: ")
    cluster.tracers[1].close()

    verdict = cluster.verdict(quiet={1: 0.5})

    assert singled_out(verdict)[:2] == ("dead_rank", (1,))


def test_a_rank_that_ended_before_its_peers_lost_the_connection_is_named(tmp_path: Path) -> None:
    cluster = with_ddp(tmp_path, ())
    for tracer in cluster.tracers[:3]:
        tracer.describe(ended_with="RuntimeError: [gloo] Connection closed by peer [127.0.0.1]:1")
    for tracer in cluster.tracers:
        tracer.close()

    verdict = cluster.verdict()

    assert singled_out(verdict) == ("dead_rank", (3,), "likely")


@pytest.mark.parametrize("first", [0, 2])
def test_who_ended_in_a_call_of_its_own_is_named_without_a_wait(tmp_path: Path, first: int) -> None:
    """A library ends the process that gets another size; any process may be killed as well."""
    cluster = with_ddp(tmp_path, (0,))
    for rank, tracer in enumerate(cluster.tracers):
        if rank != first:
            tracer.describe(ended_with="RuntimeError: [gloo] Connection reset by peer")

    verdict = cluster.verdict(quiet=0.1)

    if first == 0:
        assert singled_out(verdict) == ("extra_call", (0,), "likely")
    else:
        assert verdict.status == "unknown"


@pytest.mark.parametrize(("elsewhere", "failed"), [(True, True), (False, True), (True, False)])
def test_who_is_left_in_what_is_not_recorded_is_named(
    tmp_path: Path, elsewhere: bool, failed: bool
) -> None:
    """All others failed in the next recorded call; near misses: its place is not known, a kill."""
    cluster = with_ddp(tmp_path, (0, 2, 3))
    if elsewhere:
        cluster.tracers[1].activity("ddp_backward").begin()
    for rank in (2, 3) if failed else ():
        cluster.tracers[rank].describe(ended_with="RuntimeError: Connection closed by peer")
    run = cluster.run(quiet={0: 0.1, 1: 60.0, 2: 0.1, 3: 0.1})
    run = replace(run, ranks=tuple(replace(r, alive=r.rank == 1) for r in run.ranks))

    verdict = diagnose(run)

    if elsewhere and failed:
        assert singled_out(verdict) == ("not_joined", (1,), "likely")
    else:
        assert verdict.status == "unknown"


@pytest.mark.parametrize(
    ("gone", "quiet", "named"),
    [((3,), 60.0, True), ((3,), 4.0, False), ((2, 3), 60.0, False)],
    ids=["one", "not for long", "half of them"],
)
def test_a_rank_that_is_gone_is_named_where_nobody_posts_a_call_since(
    tmp_path: Path, gone: tuple[int, ...], quiet: float, named: bool
) -> None:
    """Its peers may wait for a file that it should have written."""
    cluster = Cluster(tmp_path, 4)
    cluster.history()
    run = cluster.run(quiet={rank: 0.1 if rank in gone else quiet for rank in range(4)})
    run = replace(run, ranks=tuple(replace(r, alive=r.rank not in gone) for r in run.ranks))

    verdict = diagnose(run)

    assert verdict.cause is None  # who left without a note, after its work, looks the same
    missed = [one for one in verdict.findings if one.kind == "dead_rank"]
    assert [(one.role, one.diverging_ranks) for one in missed] == ([("latent", gone)] * named)
    if named:
        assert verdict.status == "unknown"
        assert verdict.summary == missed[0].summary


def test_a_rank_that_was_gone_when_its_peers_were_sampled_does_not_wait_for_work(
    tmp_path: Path,
) -> None:
    """It recorded no end, and has no stack; what the others do says nothing of it."""
    cluster = Cluster(tmp_path, 4)
    cluster.history()
    run = cluster.run(quiet=4.0)
    run = replace(run, ranks=tuple(replace(r, alive=r.rank != 2) for r in run.ranks))
    seen = snapshot([worker(rank, IDLE) for rank in (0, 1, 3)])

    verdict = diagnose(replace(run, snapshot=seen))

    assert verdict.status == "unknown"
    assert verdict.summary.startswith("Rank 2 had ended")


def test_a_crash_inside_of_what_is_not_recorded_does_not_blame_the_many(tmp_path: Path) -> None:
    """Their all_reduce has another size than rank 0's call, and ends with a gloo error."""
    cluster = with_ddp(tmp_path, (0,))
    for tracer in cluster.tracers[1:]:
        tracer.describe(ended_with="RuntimeError: op.preamble.length <= op.nbytes")
        tracer.close()

    verdict = cluster.verdict()

    assert singled_out(verdict) == ("extra_call", (0,), "likely")


def test_a_job_that_posts_only_sends_moves(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path, 2)
    for _ in range(3):
        cluster.post([0], "world", "send", peer=1)
        cluster.post([1], "world", "recv", peer=0)
    posted = [one for rank in cluster.run().ranks for one in rank.last_transfers().values()]
    last = max(call.time_ns or 0 for call in posted)
    ranks = [replace(rank, alive=True, last_seen_ns=last) for rank in cluster.run().ranks]

    assert diagnose(replace(cluster.run(), ranks=tuple(ranks))).status == "ok"


@pytest.mark.parametrize("alive", [True, False])
def test_ranks_that_have_posted_nothing_are_no_evidence(tmp_path: Path, alive: bool) -> None:
    cluster = Cluster(tmp_path, 2)
    ranks = [replace(rank, alive=alive) for rank in cluster.run().ranks]
    run = replace(cluster.run(), ranks=tuple(ranks))

    assert diagnose(run).status == "unknown"
    assert diagnose(replace(run, ranks=run.ranks[:1])).status == "unknown"


def test_nothing_is_known_of_processes_that_had_ended_when_they_were_sampled() -> None:
    verdict = judged(*(worker(rank, (), state="X") for rank in range(3)), gap=10.0)

    assert (verdict.status, verdict.cause) == ("unknown", None)
    assert "had ended" in verdict.summary


def test_one_that_crashed_beside_idle_ranks_is_not_ok() -> None:
    queue = stack("serve.py:1 <module>", "serve.py:9 main", "selectors.py:468 EpollSelector.select")
    idle = [worker(rank, queue) for rank in (0, 1)]

    assert judged(*idle, gap=10.0).status == "ok"
    assert judged(*idle, worker(2, (), state="X"), gap=10.0).status != "ok"


def test_a_job_that_did_not_move_before_it_was_killed_is_not_ok(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path, 2)
    cluster.history("world")

    assert cluster.verdict(quiet=1.0).status == "ok"
    assert cluster.verdict(quiet=60.0).status == "unknown"
    for tracer in cluster.tracers:
        tracer.close()
    assert diagnose(open_run(tmp_path)).status == "ok"


@pytest.mark.parametrize(("first", "status"), [(4.5, "ok"), (1.0, "unknown")])
def test_a_rank_that_is_gone_seconds_before_its_peers_is_not_ok(
    tmp_path: Path, first: float, status: str
) -> None:
    """Who kills a whole job ends all ranks at once."""
    cluster = Cluster(tmp_path, 4)
    cluster.history("world")

    verdict = cluster.verdict(quiet={0: 5.0, 1: first, 2: 5.0, 3: 5.0})

    assert verdict.status == status
    assert verdict.summary.startswith("Rank 1 is gone") == (status == "unknown")


@pytest.mark.parametrize(
    ("seconds", "frame", "status"),
    [
        (30.0, "asyncio/base_events.py:1884 select", "unknown"),
        (3.0, "asyncio/base_events.py:1884 select", "ok"),
        (30.0, "vllm/distributed/shm_broadcast.py:971 dequeue", "ok"),
    ],
)
def test_an_input_that_no_engine_brings_may_never_come(
    tmp_path: Path, seconds: float, frame: str, status: str
) -> None:
    cluster = Cluster(tmp_path, 2)
    cluster.history("world")
    inside = stack("train.py:1 <module>", "train.py:8 fetch", frame)
    seen = snapshot([worker(rank, inside) for rank in range(2)], seconds)

    verdict = diagnose(replace(living(cluster.run(), seconds), snapshot=seen))

    assert verdict.status == status
    assert ("a server without requests looks the same" in verdict.summary) == (status == "unknown")


@pytest.mark.usefixtures("python_writer")  # the core has a clock of its own
@pytest.mark.parametrize(("gap", "status"), [(6.0, "unknown"), (0.1, "hung")])
def test_a_rank_that_is_as_slow_as_ever_does_not_hang(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, gap: float, status: str
) -> None:
    clock = [1_000_000 * 10**9]
    monkeypatch.setattr("ncclscope.ring.writer.now_ns", lambda: clock[0])
    cluster = Cluster(tmp_path, 4)
    for _ in range(6):
        clock[0] += int(gap * 1e9)
        cluster.post(range(4), "world")
    cluster.post((0, 2, 3), "world", done=False)

    assert diagnose(living(cluster.run(), 11.0)).status == status
    assert diagnose(living(cluster.run(), 30.0)).status == "hung"


@pytest.mark.usefixtures("python_writer")  # the core has a clock of its own
@pytest.mark.parametrize(
    ("gaps", "status"),
    [((9.0, 8.0), "unknown"), ((9.0,), "hung"), ((9.0, 0.1), "hung"), ((0.1, 9.0), "hung")],
)
def test_two_long_pauses_before_a_line_are_usual_before_that_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, gaps: tuple[float, ...], status: str
) -> None:
    """Rank 1 uploads a checkpoint before each barrier, and takes part in many calls between."""
    clock = [1_000_000 * 10**9]
    monkeypatch.setattr("ncclscope.ring.writer.now_ns", lambda: clock[0])
    cluster = Cluster(tmp_path, 4)
    for gap in (*gaps, 0.0):
        for _ in range(20):
            clock[0] += 10**8
            cluster.post(range(4), "world")
        clock[0] += int(gap * 1e9)
        if gap:
            cluster.post(range(4), "world", "barrier")
    cluster.post((0, 2, 3), "world", "barrier", done=False)

    assert diagnose(living(cluster.run(), 11.0)).status == status
    assert diagnose(living(cluster.run(), 30.0)).status == "hung"


@pytest.mark.usefixtures("python_writer")  # the core has a clock of its own
@pytest.mark.parametrize(
    ("op", "before", "now", "status"),
    [
        ("barrier", 8.0, 3.0, "unknown"),
        ("barrier", 2.0, 3.0, "hung"),
        ("barrier", 8.0, 9.0, "hung"),
        ("barrier", 20.0, 15.0, "unknown"),
        ("recv", 8.0, 3.0, "unknown"),
        ("recv", 2.0, 3.0, "hung"),
    ],
)
def test_a_job_killed_early_in_a_usual_wait_does_not_hang(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    op: str,
    before: float,
    now: float,
    status: str,
) -> None:
    """Rank 1 keeps the others waiting at that line; it has done so for longer, or not."""
    clock = [1_000_000 * 10**9]
    monkeypatch.setattr("ncclscope.ring.writer.now_ns", lambda: clock[0])
    cluster = Cluster(tmp_path, 3)

    def wait_for_1(seconds: float) -> None:
        is_last = seconds == now
        if op == "recv":
            cluster.post([0], "world", "recv", peer=1, done=not is_last)
        else:
            cluster.post((0, 2), "world", op, done=not is_last)
        clock[0] += int(seconds * 1e9)
        if not is_last:
            cluster.post([1], "world", "send" if op == "recv" else op, peer=0)

    for seconds in (0.1, before, now):
        for _ in range(20):
            clock[0] += 10**8
            cluster.post(range(3), "world")
        wait_for_1(seconds)

    assert diagnose(killed_at(cluster.run(), clock[0])).status == status
    assert diagnose(living(cluster.run(), 11.0)).status == "hung"


@pytest.mark.usefixtures("python_writer")  # the core has a clock of its own
def test_pauses_in_a_group_that_is_made_late_are_usual_from_its_first_call_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rank 1 takes longest to save, each time."""
    clock = [1_000_000 * 10**9]
    monkeypatch.setattr("ncclscope.ring.writer.now_ns", lambda: clock[0])
    cluster = Cluster(tmp_path, 3)
    for seconds in (9.0, 4.0):
        for _ in range(30):
            clock[0] += 10**8
            cluster.post(range(3), "world")
        cluster.post((0, 2), "saving", "barrier", done=seconds > 4.0)
        clock[0] += int(seconds * 1e9)
        if seconds > 4.0:
            cluster.post([1], "saving", "barrier")

    assert diagnose(killed_at(cluster.run(), clock[0])).status == "unknown"
    assert diagnose(living(cluster.run(), 11.0)).status == "hung"


@pytest.mark.usefixtures("python_writer")  # the core has a clock of its own
@pytest.mark.parametrize(("wait", "goes_on"), [(5.0, True), (40.0, True), (5.0, False)])
def test_a_rank_that_posts_calls_until_all_are_killed_may_have_come(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, wait: float, goes_on: bool
) -> None:
    clock = [1_000_000 * 10**9]
    monkeypatch.setattr("ncclscope.ring.writer.now_ns", lambda: clock[0])
    cluster = Cluster(tmp_path, 4)
    cluster.post(range(4), "world")
    clock[0] += 10**8
    cluster.post((0,), "dp", done=False, members=(0, 1))
    clock[0] += int(wait * 1e9)
    if goes_on:
        cluster.post((1, 2), "tp", members=(1, 2))
    verdict = diagnose(killed_at(cluster.run(), clock[0] + 10**9))
    assert verdict.status == ("unknown" if goes_on else "hung")


@pytest.mark.usefixtures("python_writer")  # the core has a clock of its own
@pytest.mark.parametrize(("gap", "status"), [(6.0, "unknown"), (0.1, "hung")])
def test_a_rank_as_slow_as_ever_beside_one_at_work_hangs_nobody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, gap: float, status: str
) -> None:
    clock = [1_000_000 * 10**9]
    monkeypatch.setattr("ncclscope.ring.writer.now_ns", lambda: clock[0])
    cluster = Cluster(tmp_path, 5)
    for _ in range(6):
        clock[0] += int(gap * 1e9)
        cluster.post(range(5), "world")
    cluster.post((0, 2, 3), "world", done=False)
    cluster.tracers[4].activity(CPU).begin(number=9_000_000, since=clock[0])

    *others, last = living(cluster.run(), 11.0).ranks
    assert last.last_seen_ns is not None
    longer = replace(last, last_seen_ns=last.last_seen_ns + 20 * 10**9)

    verdict = diagnose(replace(cluster.run(), ranks=(*others, longer)))

    assert verdict.status == status
    if status == "unknown":
        assert verdict.cause is not None
        assert (verdict.cause.kind, verdict.cause.candidate_ranks) == ("late", (1, 4))


@pytest.mark.usefixtures("python_writer")  # the core has a clock of its own
@pytest.mark.parametrize(("gap", "status"), [(6.0, "unknown"), (0.1, "hung")])
def test_a_rank_that_sends_as_slowly_as_ever_does_not_hang(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, gap: float, status: str
) -> None:
    """Rank 0 waits to receive from rank 1, and rank 2 for both in a collective."""
    clock = [1_000_000 * 10**9]
    monkeypatch.setattr("ncclscope.ring.writer.now_ns", lambda: clock[0])
    cluster = Cluster(tmp_path, 3)
    for _ in range(6):
        clock[0] += int(gap * 1e9)
        cluster.post([1], "world", "send", peer=0)
        cluster.post([0], "world", "recv", peer=1)
        cluster.post(range(3), "world")
    cluster.post([0], "world", "recv", peer=1, done=False)
    cluster.post([2], "world", done=False)

    assert diagnose(living(cluster.run(), 11.0)).status == status
    assert diagnose(living(cluster.run(), 30.0)).status == "hung"


@pytest.mark.parametrize(
    ("op", "root", "rounds", "waits", "status"),
    [
        ("broadcast", 0, 3, True, "unknown"),
        ("broadcast", 0, 3, False, "hung"),
        ("broadcast", 0, 1, True, "hung"),  # once, as before a server's main loop
        ("broadcast", 1, 3, True, "hung"),  # the root has come
        ("all_reduce", None, 3, True, "hung"),
    ],
)
def test_a_server_that_waits_for_a_request_may_be_idle(
    tmp_path: Path, op: str, root: int | None, rounds: int, waits: bool, status: str
) -> None:
    cluster = Cluster(tmp_path, 3)
    for _ in range(rounds):
        cluster.post(range(3), "world", op, root=root)
        cluster.post(range(3), "world")
    cluster.post((1, 2), "world", op, root=root, done=False)
    run = living(cluster.run(), 30.0)
    input_ = {"waits_for_input": True} if waits else {}
    ranks = [replace(one, details={**one.details, **input_}) for one in run.ranks]

    verdict = diagnose(replace(run, ranks=tuple(ranks)))

    assert verdict.status == status
    if status == "hung":
        assert singled_out(verdict) == ("not_joined", (0,), "likely")
    else:
        assert "a server without requests looks the same" in verdict.summary


def test_of_a_server_that_was_killed_nothing_is_certain(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path, 3)
    for _ in range(3):
        cluster.post(range(3), "world", "broadcast", root=0)
    cluster.post((1, 2), "world", "broadcast", root=0, done=False)

    verdict = cluster.verdict()

    assert singled_out(verdict) == ("not_joined", (0,), "likely")
    assert verdict.cause is not None
    assert "while it had no requests" in " ".join(verdict.cause.inferred)


def round_of(cluster: Cluster, ranks: Iterable[int], *, done: bool = True) -> None:
    """Post a round of a loop."""
    cluster.post(ranks, "world", "all_gather", done=done)
    if done:
        cluster.post(ranks, "world", "barrier")


@pytest.mark.parametrize(
    ("size", "begun", "elsewhere", "confidence"),
    [
        (3, False, False, "likely"),  # two may have gone round once more
        (4, False, False, "certain"),  # three have hardly done so
        (3, True, False, "certain"),  # the late rank is within a round
        (3, False, True, "certain"),  # it went on, to another group
    ],
)
def test_few_that_wait_at_the_beginning_of_a_round_may_have_gone_round_once_more(
    tmp_path: Path, size: int, begun: bool, elsewhere: bool, confidence: str
) -> None:
    cluster = Cluster(tmp_path, size)
    cluster.post(cluster.everybody, "world", "broadcast", root=0)
    for _ in range(3):
        round_of(cluster, cluster.everybody)
    others = [*cluster.everybody][1:]
    if begun:
        cluster.post(cluster.everybody, "world", "all_gather")
        cluster.post(others, "world", "barrier", done=False)
    else:
        round_of(cluster, others, done=False)
    if elsewhere:
        cluster.post([0], "self", members=(0,))

    verdict = cluster.verdict()

    assert singled_out(verdict) == ("not_joined", (0,), confidence)


def test_of_processes_that_waited_for_a_moment_when_they_ended_nothing_is_certain(
    tmp_path: Path,
) -> None:
    cluster = Cluster(tmp_path, 4)
    cluster.history("world")
    cluster.post((0, 2, 3), "world", done=False)

    assert singled_out(cluster.verdict(quiet=5.0)) == ("not_joined", (1,), "likely")
    assert singled_out(cluster.verdict(quiet=60.0)) == ("not_joined", (1,), "certain")


@pytest.mark.parametrize(("op", "named"), [("all_reduce", True), ("broadcast", False)])
def test_a_rank_that_is_left_in_a_call_which_most_completed_is_named(
    tmp_path: Path, op: str, named: bool
) -> None:
    """As of a rank that a signal stopped; the root of a broadcast alone may be ahead."""
    cluster = Cluster(tmp_path, 4)
    cluster.history("world")
    ahead = (0, 1, 2) if named else (0,)
    cluster.post(ahead, "world", op, shape=(9, 2))
    cluster.post([n for n in range(4) if n not in ahead], "world", op, shape=(9, 2), done=False)
    cluster.post(ahead, "world", shape=(8, 2), done=False)

    verdict = diagnose(living(cluster.run(), 40.0))

    if named:
        assert singled_out(verdict) == ("not_joined", (3,), "likely")
        assert verdict.status == "hung"
    else:
        assert verdict.cause is None or 0 not in verdict.cause.diverging_ranks


@pytest.mark.parametrize("stopped", [True, False])
def test_a_call_that_one_rank_alone_completed_hangs(tmp_path: Path, stopped: bool) -> None:
    """As a gather around a ring, in which a rank has what it needs and passes nothing on."""
    cluster = Cluster(tmp_path, 4)
    cluster.history("world")
    cluster.post((1,), "world", "all_gather", shape=(9, 2))
    cluster.post((0, 2, 3), "world", "all_gather", shape=(9, 2), done=False)
    cluster.post((1,), "world", "all_gather", shape=(8, 2), done=False)
    run = living(cluster.run(), 40.0)
    if stopped:
        ranks = [*run.ranks]
        ranks[3] = replace(
            ranks[3], last_seen_ns=(ranks[3].last_seen_ns or 0) - 35_000_000_000,
            details={**ranks[3].details, "stopped": True},
        )  # fmt: skip
        run = replace(run, ranks=tuple(ranks))

    verdict = diagnose(run)

    assert verdict.status == "hung"
    assert verdict.cause is not None
    assert (verdict.cause.kind, verdict.cause.seq) == ("stalled", 6)
    assert verdict.cause.diverging_ranks == ((3,) if stopped else ())
    assert "rank 1" in verdict.summary


def test_counts_that_differ_outrank_records_that_agree(tmp_path: Path) -> None:
    """As of DDP over NCCL: few calls are recorded, NCCL counts more, and fewer on one rank."""
    cluster = Cluster(tmp_path, 3)
    for _ in range(3):
        cluster.post(range(3), "world", backend="nccl", done=False)
    run = living(cluster.run(), 30.0)
    ranks = tuple(
        RasRank(n, "node-0", 1000 + n, {"AllReduce": 51 if n == 1 else 59}) for n in range(3)
    )
    answer = RasAnswer("", "2.28.9", (RasComm("0x1", 3, ranks),), is_json=True, communicators=1)
    sync = stack("train.py:1 <module>", "train.py:12 step", "torch/cuda/streams.py:200 synchronize")
    seen = snapshot(
        [worker(rank, sync, switches=4000) for rank in range(3)],
        gap=12.0,
        ras=answer,
        ras_before=answer,
        gpus=gpus(100, 100, 100),
    )

    verdict = diagnose(replace(run, snapshot=seen))

    assert verdict.exit_status == 1
    assert singled_out(verdict)[1:] == ((1,), "likely")
    (counted,) = verdict.coverage.comms
    assert (counted.by, counted.recorded, counted.counted) == ("ras", 3, 59)
    assert not verdict.coverage.complete


def test_counts_of_ras_belong_to_the_communicator_of_their_hash(tmp_path: Path) -> None:
    """As in vLLM, where torch has a group of the same members, and posts nothing on it."""
    cluster = Cluster(tmp_path, 2)
    for label in ("tp:0/device", "tp:0"):
        for rank in range(2):
            cluster.comm(rank, label, range(2), "nccl")
    for _ in range(3):
        cluster.post(range(2), "tp:0", backend="nccl", done=False)
    run = cluster.run(quiet=1.0)
    own = {
        key: replace(comm, hash="1f" if comm.label == "tp:0" else comm.hash)
        for key, comm in run.communicators.items()
    }
    ranks = tuple(RasRank(n, "node-0", 1000 + n, {"AllReduce": 3}) for n in range(2))
    answer = RasAnswer("", "2.28.9", (RasComm("1f", 2, ranks),), is_json=True, communicators=1)
    seen = snapshot([worker(rank, ELSEWHERE, world_size=2) for rank in range(2)], ras=answer)

    coverage = survey(replace(run, communicators=own, snapshot=seen))

    assert [(one.comm.label, one.recorded, one.counted) for one in coverage.comms] == [
        ("tp:0", 3, 3)
    ]
    assert coverage.complete


def test_a_probe_that_refused_a_function_makes_coverage_incomplete(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path, 2)
    cluster.history("world")
    why = {"pynccl.all_gather": {"state": "refused", "why": "its parameters are not known"}}
    cluster.tracers[1].describe(probes=why)

    verdict = cluster.verdict()

    assert (verdict.status, verdict.coverage.complete) == ("unknown", False)
    assert "pynccl.all_gather is refused" in verdict.coverage.unseen[0]


@pytest.mark.parametrize("is_read", [True, False])
def test_an_unread_stack_says_nothing_about_recorded_calls(tmp_path: Path, is_read: bool) -> None:
    cluster = Cluster(tmp_path, 4)
    cluster.history("world")
    cluster.post((0, 2, 3), "world", done=False)
    cluster.post((1,), "world", "all_gather", done=False)
    run = living(cluster.run(), 60.0)
    workers = [worker(rank, in_collective("all_reduce", 40), world_size=4) for rank in range(4)]
    if not is_read:
        workers = [replace(one, stacks=()) for one in workers]

    verdict = diagnose(replace(run, snapshot=snapshot(workers, gap=12.0)))

    assert singled_out(verdict) == ("op_mismatch", (1,), "certain")
    assert verdict.coverage.complete is is_read
    assert verdict.coverage.has_all_calls


def test_what_stacks_alone_show_is_likely_where_one_was_not_read() -> None:
    workers = [worker(rank, in_collective("all_reduce", 40), world_size=4) for rank in range(3)]
    workers.append(worker(3, elsewhere(5), world_size=4))
    run = Run(ranks=(), communicators={}, expected=4)
    every = diagnose(replace(run, snapshot=snapshot(workers, gap=40.0)))
    assert every.cause is not None
    assert every.cause.analyzer == "stack_classes"
    unread = [*workers[1:], replace(workers[0], stacks=())]
    some = diagnose(replace(run, snapshot=snapshot(unread, gap=40.0)))
    assert some.cause is None or some.cause.confidence != "certain"
    assert some.status != "ok"


@pytest.mark.parametrize(
    ("gone", "words"),
    [
        ((0, 1), "All processes exited normally."),
        ((1,), "Rank 1 exited. All other ranks wait for work, none for another rank."),
    ],
)
def test_a_rank_that_has_exited_does_not_wait_for_work(
    tmp_path: Path, gone: tuple[int, ...], words: str
) -> None:
    cluster = Cluster(tmp_path, 2)
    cluster.history("world")
    ranks = [replace(rank, exited=rank.rank in gone) for rank in cluster.run(quiet=1.0).ranks]
    run = replace(cluster.run(quiet=1.0), ranks=tuple(ranks))
    queue = stack("serve.py:1 <module>", "serve.py:9 loop", "queue.py:171 get")
    feeder = Thread("feeder", 2000, stack("serve.py:20 receive"))
    workers = []
    for rank in range(2):
        one = worker(rank, queue, state="X" if rank in gone else "S")
        fed = tuple(Stacks((*seen.threads, feeder)) for seen in one.stacks)
        workers.append(replace(one, stacks=() if rank in gone else fed))

    verdict = diagnose(replace(run, snapshot=snapshot(workers)))

    assert verdict.status == "ok"
    assert verdict.to_dict()["summary"].startswith(words)


@pytest.mark.parametrize(
    ("loop", "kind"), [((8, 9), "op_mismatch"), ((), "missing_call"), ((3, 5), "missing_call")]
)
def test_who_is_seen_in_the_loop_has_not_left_it(
    tmp_path: Path, loop: tuple[int, ...], kind: str
) -> None:
    """The handler of a signal posts a barrier in the middle of a round, on one rank alone."""
    cluster = Cluster(tmp_path, 4)
    for count in range(6):
        cluster.post(range(4), "world", site="train.py:8 step")
        if count < 5:
            cluster.post(range(4), "world", "all_gather", site="train.py:9 step")
    cluster.post((0, 1, 3), "world", "all_gather", site="train.py:9 step", done=False)
    cluster.post((2,), "world", "barrier", shape=None, site="train.py:30 save", done=False)
    outer, inside, *rest = stack("train.py:1 <module>", "train.py:9 step", "train.py:30 save")
    handler = (outer, replace(inside, loop=loop), *rest)
    seen = snapshot(
        [worker(rank, handler if rank == 2 else (outer, inside)) for rank in range(4)], 12.0
    )

    cause = diagnose(replace(living(cluster.run(), 12.0), snapshot=seen)).cause

    assert cause is not None
    assert (cause.kind, cause.diverging_ranks) == (kind, (2,))


@pytest.mark.parametrize(
    ("named", "candidates", "shown"),
    [
        ((3,), (), "first second"),
        ((1,), (), "first"),
        ((), (2, 3), "first"),
    ],
)
def test_a_cause_that_names_a_rank_follows_an_undecided_one_of_other_ranks(
    named: tuple[int, ...], candidates: tuple[int, ...], shown: str
) -> None:
    first = Finding("p2p_mismatch", "first", blame=Blame.among((0, 1)), role="cause")
    second = Finding(
        "dead_rank",
        "second",
        blame=Blame.on(named) if named else Blame.among(candidates),
        role="cause",
    )
    assert headline([first, second]).endswith(shown)
    assert headline([first]) == "first"
