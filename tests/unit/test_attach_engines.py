"""Engines, which are no ranks, and send workers that wait for requests nothing."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ncclscope.attach.bundle import redact
from ncclscope.attach.candidate import Candidate
from ncclscope.attach.kinship import engines_of, served_port
from ncclscope.attach.processes import Placed
from ncclscope.attach.sampling import Sample
from ncclscope.attach.session import _longer, may_hang
from ncclscope.engine.verdict import diagnose
from ncclscope.model import Activity, Rank, Run
from ncclscope.model.snapshot import Frame, Worker
from ncclscope.readers import assemble
from ncclscope.readers.bundle import read_snapshot
from ncclscope.readers.snapshots import join_snapshots
from ncclscope.render.console.attach import render_attach
from ncclscope.render.console.terminal import plain_text
from tests.support.cluster import Cluster
from tests.support.snapshots import C10D, in_collective, snapshot, stack, verdict_of, worker

WORKER = stack(
    "vllm/v1/executor/multiproc_executor.py:1041 worker_busy_loop",
    "vllm/distributed/device_communicators/shm_broadcast.py:971 dequeue",
)
LOOP = stack("vllm/v1/engine/core.py:1460 run_busy_loop")
INPUT = (*LOOP, *stack("queue.py:171 get", "threading.py:327 wait"))
LOCK = (*LOOP, *stack("vllm/v1/core/sched/scheduler.py:9 schedule", "threading.py:1119 join"))
SPINS = (*LOOP, *stack("plugin.py:7 schedule"))
ANSWER = (*LOOP, *stack("vllm/v1/executor/multiproc_executor.py:440 get_response"))
POLL = stack("uvloop/__init__.py:92 run", "zmq/sugar/poll.py:106 poll")
ROUTE = stack("uvloop/__init__.py:92 run", "routes.py:7 health", "threading.py:1119 join")
SLEEP = stack("generate.py:34 main", "threading.py:1119 join")
SLEEPS = (*LOOP, *stack("vllm/v1/engine/core.py:1617 _process_engine_step"))
SENDS = (*LOOP, *stack("vllm/v1/executor/multiproc_executor.py:427 collective_rpc"))
QUEUE = (
    *SENDS,
    *stack("vllm/distributed/device_communicators/shm_broadcast.py:933 enqueue"),
)
STARTS = stack("vllm/v1/engine/core.py:900 __init__", "vllm/v1/engine/core.py:120 __init__")
EMPTY = (*WORKER[:1], *stack("vllm/v1/worker/gpu_model_runner.py:3979 execute_model"))
MODEL = (*EMPTY, *stack("vllm/model_executor/models/qwen3_moe.py:300 forward"))
SYNC = (*LOOP, *stack(f"{C10D}:3000 all_reduce"))


def engine(*samples: Sequence[Frame], **fields: Any) -> Worker:
    return replace(worker(0, *samples, **fields), rank=-1, pid=900, title="VLLM::EngineCore")


def idle() -> list[Worker]:
    return [worker(0, WORKER), worker(1, WORKER)]


@pytest.mark.parametrize(
    ("found", "text"),
    [
        (engine(INPUT, state="T"), "The engine (pid 900) is stopped by a signal (state T)."),
        (
            engine(LOCK),
            "The engine (pid 900) has been at scheduler.py:9 schedule (waits for a lock) for 2 s, "
            "not in its wait for requests.",
        ),
        (engine(SPINS, cpu=2.0, state="R"), "The engine (pid 900) has been at plugin.py:7"),
        (engine(SYNC), "The engine (pid 900) has been in all_reduce at core.py:1460"),
    ],
)
def test_workers_of_an_engine_that_is_held_do_not_wait_for_work(found: Worker, text: str) -> None:
    verdict = verdict_of(snapshot(idle(), engines=(found,)))

    assert verdict.status == "unknown"
    assert text in verdict.summary
    assert "Its workers wait for work." in verdict.summary


@pytest.mark.parametrize(
    "found", [engine(INPUT), engine(SPINS, INPUT, cpu=1.0), engine(INPUT, ANSWER)]
)
def test_workers_of_an_engine_that_waits_for_requests_are_idle(found: Worker) -> None:
    assert verdict_of(snapshot(idle(), engines=(found,))).status == "ok"


@pytest.mark.parametrize(
    "found",
    [engine(LOOP, SPINS, cpu=1.0), engine(QUEUE, SENDS), replace(engine(LOOP), stacks=())],
    ids=["works", "sends", "unread"],
)
def test_an_engine_that_is_not_seen_to_wait_for_requests_may_have_some(found: Worker) -> None:
    seen = snapshot(idle(), engines=(found,))
    verdict = verdict_of(seen)

    assert verdict.status == "unknown"
    assert verdict.summary.startswith(
        "The engine (pid 900) was in no sample in its wait for requests"
    )
    assert may_hang(seen)


@pytest.mark.parametrize("gap", [3.0, 12.0])
def test_an_engine_that_steps_without_tokens_schedules_none(gap: float) -> None:
    core = engine(SLEEPS, ANSWER, SLEEPS, state="R", cpu=1.0)
    moves = [worker(0, (*WORKER, *stack("utils.py:46 sched_yield")), EMPTY), *idle()[1:]]
    seen = snapshot(moves, gap, engines=(core,))
    verdict = verdict_of(seen)

    assert verdict.status == ("hung" if gap > 10 else "unknown")
    assert not verdict.diverging_ranks
    assert [one.kind for one in verdict.findings][-1:] == ["not_scheduled"]
    assert verdict.summary.startswith("The engine (pid 900) has run nothing for")
    assert may_hang(seen) == (gap < 10)


def test_workers_without_their_engine_may_have_none_to_send_them_work() -> None:
    verdict = verdict_of(snapshot(idle()))

    assert verdict.status == "unknown"
    assert verdict.summary.startswith("Ranks 0 1 wait for work, and their engine was not sampled")


def test_an_engine_of_a_pipeline_sleeps_after_some_steps() -> None:
    core = engine(ANSWER, SLEEPS, SENDS, ANSWER, SLEEPS, state="R", cpu=1.0)
    moves = [worker(rank, WORKER, EMPTY, cpu=1.0) for rank in (0, 1)]
    verdict = verdict_of(snapshot(moves, 12.0, engines=(core,)))

    assert verdict.status == "unknown"
    assert verdict.cause is None


@pytest.mark.parametrize(
    ("core", "step"),
    [
        (engine(SLEEPS), "MODEL"),
        (engine(SLEEPS), "SYNC"),
        (engine(SLEEPS, INPUT, SLEEPS), "EMPTY"),
        (engine(STARTS), "EMPTY"),
    ],
    ids=["model", "collective", "rests", "starts"],
)
def test_an_engine_whose_workers_run_the_model_moves(core: Worker, step: str) -> None:
    frames = {"MODEL": MODEL, "SYNC": (*EMPTY, *stack(f"{C10D}:3000 all_reduce")), "EMPTY": EMPTY}
    moves = [worker(rank, WORKER, frames[step], cpu=1.0) for rank in (0, 1)]

    assert verdict_of(snapshot(moves, 12.0, engines=(core,))).status == "ok"


@pytest.mark.parametrize(
    ("found", "status"), [(engine(LOCK), "ok"), (engine(LOCK, state="T"), "unknown")]
)
def test_an_engine_may_wait_for_workers_that_are_at_work(found: Worker, status: str) -> None:
    moves = [worker(rank, MODEL, SPINS, cpu=1.0) for rank in (0, 1)]

    assert verdict_of(snapshot(moves, engines=(found,))).status == status


def server(*samples: Sequence[Frame], title: str = "python serve.py", **fields: Any) -> Worker:
    return replace(worker(0, *samples, **fields), rank=-1, pid=800, title=title)


@pytest.mark.parametrize(
    ("found", "gap", "status"),
    [
        (server(ROUTE), 3.0, "unknown"),
        (server(ROUTE), 12.0, "hung"),
        (server(POLL), 12.0, "ok"),
        (server(SLEEP), 12.0, "ok"),
        (server(POLL, state="T"), 3.0, "unknown"),
        (server(POLL, state="T", title="VLLM::DPCoordinator"), 3.0, "unknown"),
    ],
    ids=["held", "held for long", "waits", "program", "stopped", "coordinator"],
)
def test_a_server_that_is_held_gives_no_work(found: Worker, gap: float, status: str) -> None:
    verdict = verdict_of(snapshot(idle(), gap, engines=(engine(INPUT),), servers=(found,)))

    assert verdict.status == status
    assert ("pid 800" in verdict.summary) == (status != "ok")


@pytest.mark.parametrize(("clients", "status"), [(0, "ok"), (2, "unknown")])
def test_clients_of_a_server_without_a_record_may_wait(clients: int, status: str) -> None:
    found = replace(server(POLL), clients=clients)
    verdict = verdict_of(snapshot(idle(), engines=(engine(INPUT),), servers=(found,)))

    assert verdict.status == status
    assert ("2 connections" in verdict.summary) == bool(clients)


@pytest.mark.parametrize(
    ("words", "port"),
    [
        ("vllm serve m --port 8123 -tp 2", 8123),
        ("python -m vllm.entrypoints.openai.api_server --port=8124", 8124),
        ("vllm serve m --port", 8000),
        ("", 8000),
    ],
)
def test_the_port_of_a_server(words: str, port: int) -> None:
    assert served_port(words.split()) == port


def test_a_stopped_coordinator_wakes_no_engine() -> None:
    stuck = [worker(0, in_collective("all_reduce", 10)), worker(1, WORKER)]
    found = server(POLL, state="T", title="VLLM::DPCoordinator")
    engines = (engine(INPUT), replace(engine(ANSWER), pid=901))
    verdict = verdict_of(snapshot(stuck, 3.0, engines=engines, servers=(found,)))

    assert verdict.cause is not None
    assert (verdict.cause.kind, verdict.cause.diverging_ranks) == ("rpc_stalled", ())
    assert "(pid 800)" in verdict.summary


@pytest.mark.parametrize("answer", [True, False])
def test_the_only_worker_is_stopped(answer: bool) -> None:
    stopped = [worker(0, WORKER, state="T")]
    found = engine(ANSWER if answer else INPUT)
    verdict = verdict_of(snapshot(stopped, 3.0, engines=(found,)))

    assert verdict.status == ("hung" if answer else "unknown")
    assert verdict.diverging_ranks == ({0} if answer else set())
    assert "stopped by a signal" in verdict.summary


def test_ranks_that_diverged_come_before_their_engine() -> None:
    stuck = [worker(0, in_collective("all_reduce", 10)), worker(1, in_collective("barrier", 12))]
    verdict = verdict_of(snapshot(stuck, 12.0, engines=(engine(LOCK),)))

    assert verdict.in_trouble


def test_a_recorded_engine_that_is_stopped_is_named_without_its_stack(tmp_path: Path) -> None:
    assert recorded(tmp_path, {}).status == "ok"
    verdict = recorded(tmp_path, {"stopped": True})

    assert verdict.status == "unknown"
    assert verdict.summary.startswith("Engine 0 (pid 900) is stopped by a signal (state T).")


def recorded(directory: Path, details: dict[str, Any]) -> Any:
    """Return the verdict on rings of two idle workers and of their engine, which still run."""
    cluster = Cluster(directory, 2)
    cluster.post((0, 1), "world")
    run: Run = cluster.run()
    waits = Activity("dequeue", "work", 0, 1, 1, None)
    ranks = [
        replace(one, alive=True, labels={"engine": "0"}, activities={"dequeue": waits})
        for one in run.ranks
    ]
    core = Rank(-1, 0, pid=900, labels={"engine": "0"}, alive=True, details=details)
    return diagnose(replace(run, ranks=tuple(ranks), others=(core,)))


def test_engines_are_the_parents_of_workers() -> None:
    titles = {9: "VLLM::EngineCore_DP0", 8: "bash"}
    workers = [Candidate(10, parent=9), Candidate(11, parent=9), Candidate(12, parent=8)]

    found = engines_of(workers, lambda pid: Candidate(pid, title=titles[pid]))

    assert [one.pid for one in found] == [9]


def test_engines_are_kept_in_bundles_of_several_hosts(tmp_path: Path) -> None:
    seen = snapshot(idle(), engines=(engine(LOCK),))
    file = tmp_path / "attach.json"
    file.write_text(json.dumps(redact(seen).to_dict()))

    read = read_snapshot(file)
    joined = join_snapshots([read, replace(read, host="other")], assemble([]))

    assert [one.pid for one in joined.engines] == [900, 900]
    assert verdict_of(read).summary == verdict_of(seen).summary


def test_the_screen_shows_engines_below_the_ranks() -> None:
    verdict = verdict_of(snapshot(idle(), engines=(engine(LOCK),)))

    lines = plain_text(render_attach(verdict, 120), 120).splitlines()
    (line,) = (line for line in lines if line.strip().startswith("engine "))
    assert line.split()[:4] == ["engine", "900", "still", "(S)"]


@pytest.mark.parametrize(("gap", "status", "ranks"), [(3.0, "unknown", set()), (12.0, "hung", {1})])
def test_a_worker_at_a_lock_keeps_its_engine_waiting(
    gap: float, status: str, ranks: set[int]
) -> None:
    workers = [worker(0, WORKER), worker(1, (*WORKER[:1], *stack("threading.py:1119 join")))]
    seen = snapshot(workers, gap, engines=(engine(ANSWER),))
    verdict = verdict_of(seen)

    assert (verdict.status, {*verdict.diverging_ranks}) == (status, ranks)
    assert verdict.summary.startswith("Rank 1 (host, pid 1001) has not answered a call, for which")
    assert ("a hang is reported from 10 s on" in verdict.summary) == (gap < 10)
    assert may_hang(seen) == (gap < 10)


@pytest.mark.parametrize(
    ("gap", "cpu", "status"), [(3.0, 0.0, "unknown"), (12.0, 0.0, "hung"), (12.0, 9.0, "ok")]
)
def test_a_worker_that_its_engine_waits_for_no_more_has_not_come_back(
    gap: float, cpu: float, status: str
) -> None:
    samples = [LOCK, SPINS] if cpu else [(*WORKER[:1], *stack("threading.py:1119 join"))]
    workers = [worker(0, WORKER), worker(1, *samples, cpu=cpu)]
    seen = snapshot(workers, gap, engines=(engine(INPUT),))
    verdict = verdict_of(seen)

    assert verdict.status == status
    assert ("has not come back from a call" in verdict.summary) == (not cpu)
    assert may_hang(seen) == (gap < 10)


@pytest.mark.parametrize("found", [engine(INPUT), engine(INPUT, state="T")])
def test_more_samples_of_an_engine_that_waits_for_requests_decide_nothing(found: Worker) -> None:
    assert not may_hang(snapshot(idle(), 3.0, engines=(found,)))


def test_engines_and_servers_are_asked_whether_more_samples_could_decide() -> None:
    workers = [worker(0, WORKER), worker(1, (*WORKER[:1], *stack("threading.py:1119 join")))]
    groups = [*workers], [engine(ANSWER)], [server(POLL)]
    placed = [[Placed(Candidate(one.pid), one.rank, "title") for one in each] for each in groups]
    every = [one for each in groups for one in each]
    samples = [
        Sample(
            {one.pid: one.stacks[i] for one in every},
            {one.pid: one.samples[i] for one in every},
            (),
        )
        for i in (0, 1)
    ]
    said: list[str] = []
    is_open = _longer(placed, said.append, 10.0)

    assert is_open(samples, 3.0)
    assert is_open(samples, 4.0)
    assert not is_open(samples, 10.0)
    assert said == ["waiting ranks did not move for 3 s; sampling for up to 10 s"]


def _replicas() -> list[Worker]:
    busy = worker(0, in_collective("all_reduce", 7))
    return [replace(busy, labels={"dp": "0"}), replace(worker(1, WORKER), labels={"dp": "1"})]


@pytest.mark.parametrize(
    ("found", "at"),
    [
        (engine(LOCK), "scheduler.py:9 schedule (waits for a lock; in its engine, pid 900)"),
        (
            engine(LOCK, state="T"),
            "scheduler.py:9 schedule (waits for a lock; in its engine, pid 900, which a signal has "
            "stopped)",
        ),
    ],
)
def test_a_worker_without_work_is_where_its_engine_is(found: Worker, at: str) -> None:
    own = replace(found, labels={"dp": "1"})
    other = replace(engine(ANSWER), pid=901, labels={"dp": "0"})

    verdict = verdict_of(snapshot(_replicas(), 12.0, engines=(own, other)))

    assert verdict.status == "hung"
    assert verdict.diverging_ranks == {1}
    assert verdict.summary.startswith(
        f"Rank 1 is at {at}, and not where rank 0 waits in all_reduce"
    )


@pytest.mark.parametrize("found", [engine(INPUT), engine(ANSWER), engine(SYNC)])
def test_a_worker_of_an_engine_that_waits_itself_may_be_the_innocent(found: Worker) -> None:
    own = replace(found, labels={"dp": "1"})

    assert not verdict_of(snapshot(_replicas(), 12.0, engines=(own,))).diverging_ranks
