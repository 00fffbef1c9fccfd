"""Services that hang outside of collectives: answers that do not come, requests that wait."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import pytest

from ncclscope import diagnose
from ncclscope.engine.case import Case
from ncclscope.engine.services.answers import unanswered
from ncclscope.engine.verdict import Verdict
from ncclscope.model import Run
from ncclscope.readers.bundle import with_snapshot
from ncclscope.tracing.tracer import Tracer
from ncclscope.wording.notes import Came
from tests.support.activities import NOW, Acts, with_activities
from tests.support.cluster import Cluster
from tests.support.snapshots import snapshot, stack, worker

ClusterOf = Callable[[int], Cluster]

WAITS = ("work", 0)
IDLE: Acts = {"enqueue": (40.0, 40.0, None, 0), "dequeue": (61.0, None, *WAITS)}
"""A worker that took what was sent at 60 s, and waits for work again."""


def _service(cluster_of: ClusterOf, engine: Acts, *workers: Acts, **changes: Any) -> Run:
    """Return a run of an engine and its workers, which have agreed in all their calls."""
    cluster = cluster_of(len(workers))
    cluster.history()
    return _of_one_engine(cluster.run(), engine, *workers, **changes)


def _of_one_engine(run: Run, engine: Acts, *workers: Acts, **changes: Any) -> Run:
    """Return a run whose ranks are the workers of an engine."""
    ranks = [
        with_activities(replace(rank, labels={"engine": "0"}), acts)
        for rank, acts in zip(run.ranks, workers, strict=True)
    ]
    process = replace(run.ranks[0], rank=-1, pid=2000, logs={}, p2p={}, labels={"engine": "0"})
    core = replace(with_activities(process, engine), details={"role": "engine"}, **changes)
    return replace(run, ranks=tuple(ranks), others=(core,))


def _served(run: Run, acts: Acts, **details: Any) -> Run:
    """Return a run with a front end."""
    process = replace(run.ranks[0], rank=-1, pid=3000, logs={}, labels={})
    about = {**process.details, "boot_id": "boot", "role": "frontend", **details}
    front = replace(with_activities(process, acts), details=about)
    same = [replace(one, details={**one.details, "boot_id": "boot"}) for one in run.ranks]
    return replace(run, ranks=tuple(same), others=(*run.others, front))


def _sent(method: str, answers: int = 0) -> Acts:
    return {"enqueue": (60.0, 60.0, method, answers), "dequeue": (60.0, None, None, 0)}


def _verdict(run: Run) -> tuple[str, str | None, tuple[int, ...], tuple[int, ...]]:
    found: Verdict = diagnose(run)
    if found.cause is None:
        return found.status, None, (), ()
    cause = found.cause
    return found.status, cause.kind, cause.diverging_ranks, cause.candidate_ranks


def test_a_worker_that_gave_no_answer_is_named(cluster_of: ClusterOf) -> None:
    run = _service(cluster_of, _sent("execute_model", answers=1), IDLE, IDLE)

    assert _verdict(run) == ("hung", "rpc_stalled", (0,), ())


@pytest.mark.parametrize("locks", [{}, {1: (1,)}], ids=["anywhere", "at a lock of its own"])
def test_a_worker_that_is_still_at_the_call_is_named(
    cluster_of: ClusterOf, locks: Mapping[int, tuple[int, ...]]
) -> None:
    answered = {**IDLE, "enqueue": (60.5, 60.5, None, 0)}
    inside = {**IDLE, "dequeue": (50.0, 60.0, *WAITS)}
    run = _service(cluster_of, _sent("add_lora"), answered, inside)

    assert _verdict(replace(run, locks=locks)) == ("hung", "rpc_stalled", (1,), ())


def test_a_worker_that_never_took_the_message_is_named(cluster_of: ClusterOf) -> None:
    answered = {**IDLE, "enqueue": (60.5, 60.5, None, 0)}
    beside = {**IDLE, "dequeue": (50.0, None, *WAITS)}
    run = _service(cluster_of, _sent("add_lora"), answered, beside)

    assert _verdict(run) == ("hung", "rpc_stalled", (1,), ())


def test_an_answer_that_was_given_names_nobody(cluster_of: ClusterOf) -> None:
    answered = {**IDLE, "enqueue": (60.5, 60.5, None, 0)}
    run = _service(cluster_of, _sent("execute_model", answers=1), answered, IDLE)

    assert _verdict(run) == ("hung", "rpc_stalled", (), (0,))


HELD: Acts = {**IDLE, "dequeue": (50.0, 60.0, *WAITS)}
"""A worker that took what was sent at 60 s, and has not come back."""


def _given_up(until: float) -> Acts:
    """Return what an engine notes that waited for an answer until then, and rests since.

    It takes such a request in while it waits for requests.
    """
    sent = _sent("add_lora")
    return {**sent, "dequeue": (60.0, until, None, 0), "input": (40.0, None, None, 0)}


def test_a_worker_whose_engine_no_longer_waits_is_named(cluster_of: ClusterOf) -> None:
    """A timeout of vLLM's ended the engine's wait, not the worker's."""
    answered = {**IDLE, "enqueue": (60.5, 60.5, None, 0)}

    run = _service(cluster_of, _given_up(65.0), answered, HELD)
    assert _verdict(run) == ("hung", "rpc_stalled", (1,), ())
    just_now = _service(cluster_of, _given_up(95.0), answered, HELD)
    assert _verdict(just_now)[1:] == (None, (), ())


def test_a_worker_that_works_for_an_engine_at_rest_is_late(cluster_of: ClusterOf) -> None:
    busy: Acts = {**HELD, "cpu": (60.0, None, None, 39_000_000)}

    run = _service(cluster_of, _given_up(65.0), IDLE, busy)
    assert _verdict(run) == ("unknown", "late", (1,), ())


def test_a_worker_that_owes_no_answer_is_at_rest(cluster_of: ClusterOf) -> None:
    rests: Acts = {**_given_up(61.0), "enqueue": (60.0, 60.0, "execute_model", 1)}
    answered = {**IDLE, "enqueue": (60.5, 60.5, None, 0)}

    assert _verdict(_service(cluster_of, rests, answered, IDLE)) == ("ok", None, (), ())


def test_a_worker_that_is_at_an_earlier_call_took_none_since(cluster_of: ClusterOf) -> None:
    answered = {**IDLE, "enqueue": (60.5, 60.5, None, 0)}
    earlier = {**HELD, "dequeue": (10.0, 20.0, *WAITS)}
    run = _service(cluster_of, _sent("add_lora"), answered, earlier)

    (found,) = unanswered(Case(run))
    assert found.workers == {0: Came.ANSWERED, 1: Came.EARLIER}
    assert _verdict(run) == ("hung", "rpc_stalled", (1,), ())


def test_a_worker_at_work_is_late(cluster_of: ClusterOf) -> None:
    busy: Acts = {"dequeue": (50.0, 60.0, *WAITS), "cpu": (60.0, None, None, 39_000_000)}
    run = _service(cluster_of, _sent("execute_model", answers=1), busy, IDLE)

    assert _verdict(run) == ("unknown", "late", (0,), ())


def test_an_answer_that_is_soon_due_is_no_hang(cluster_of: ClusterOf) -> None:
    sent = {"enqueue": (95.0, 95.0, "execute_model", 1), "dequeue": (95.0, None, None, 0)}
    run = _service(cluster_of, sent, {**IDLE, "dequeue": (50.0, 95.0, *WAITS)}, IDLE)

    assert _verdict(run) == ("unknown", None, (), ())


def test_a_worker_that_posts_calls_gets_on_with_what_its_engine_asked(
    cluster_of: ClusterOf,
) -> None:
    """As one whose kernels are compiled between the calls of a long method."""
    sent = {"enqueue": (-40.0, -40.0, "compile", 0), "dequeue": (-40.0, None, None, 0)}
    inside = {"enqueue": (-60.0, -60.0, None, 0), "dequeue": (-50.0, -40.0, *WAITS)}
    run = _service(cluster_of, sent, inside, inside)
    seen = [replace(one, last_seen_ns=(one.started_ns or 0) + 10**9) for one in run.ranks]

    assert _verdict(replace(run, ranks=tuple(seen)))[0] == "ok"


def test_gpus_that_spin_below_a_service_at_rest_are_loaded_by_others(cluster_of: ClusterOf) -> None:
    cluster = cluster_of(2)
    cluster.history(backend="nccl", done=False)
    rest = {"input": (62.0, None, None, 0), "enqueue": (60.0, 60.0, "execute_model", 1)}
    run = _of_one_engine(cluster.run(), {**rest, "dequeue": (60.0, 61.0, None, 0)}, IDLE, IDLE)
    spins = [replace(one, details={**one.details, "gpu_spins": True}) for one in run.ranks]

    assert _verdict(replace(run, ranks=tuple(spins)))[0] == "ok"
    unseen = replace(run, ranks=tuple(spins), others=())
    assert _verdict(unseen)[:2] == ("hung", "stalled"), "its engine may wait for the GPUs"


def test_an_engine_that_waits_for_requests_is_at_rest(cluster_of: ClusterOf) -> None:
    rests: Acts = {"enqueue": (40.0, 40.0, None, 0), "input": (60.0, None, None, 0)}

    assert _verdict(_service(cluster_of, rests, IDLE, IDLE)) == ("ok", None, (), ())


TURN: Acts = {"enqueue": (38.0, 38.0, "execute_model", 1), "dequeue": (38.0, 39.0, None, 0)}


@pytest.mark.parametrize(
    ("acts", "expected"),
    [
        ({"input": (39.0, 40.0, None, 0)}, "step"),
        ({"input": (30.0, None, None, 0), "asked": (40.0, None, "add_lora", 0)}, "add_lora"),
        ({"input": (39.0, 95.0, None, 0)}, None),
        ({"input": (39.0, None, None, 0)}, None),
        ({"input": (39.0, 40.0, None, 0), "paused": (40.0, None, None, 1)}, None),
    ],
    ids=["step", "asked", "just now", "rests", "paused"],
)
def test_an_engine_that_hangs_in_what_it_does_itself(
    cluster_of: ClusterOf, acts: Acts, expected: str | None
) -> None:
    """Its workers wait for work, and it waits for no answer of theirs."""
    found = diagnose(_service(cluster_of, {**TURN, **acts}, IDLE, IDLE))

    assert (found.status == "hung") == (expected is not None)
    if expected is not None:
        assert f"Engine 0 (pid 2000) has not come back from {expected} in 60 s" in found.summary
        assert found.diverging_ranks == frozenset()


STARVED: Acts = {
    "enqueue": (99.0, 99.0, "execute_model", 1),
    "unscheduled": (60.0, None, "0 running, 3 waiting, 0 of 64 KV blocks free", 3),
}


def test_requests_that_nobody_schedules_are_a_hang_without_a_rank(cluster_of: ClusterOf) -> None:
    run = _service(cluster_of, STARVED, IDLE, IDLE)
    found = diagnose(run)

    assert _verdict(run) == ("hung", "not_scheduled", (), ())
    assert found.cause is not None
    assert any("0 of 64 KV blocks free" in line for line in found.cause.evidence)


def test_an_engine_that_waits_for_requests_has_none_to_schedule(cluster_of: ClusterOf) -> None:
    """Those that waited were given up, and no step came after that."""
    run = _service(cluster_of, {**STARVED, "input": (70.0, None, None, 0)}, IDLE, IDLE)

    assert _verdict(run) == ("ok", None, (), ())


def test_a_pause_of_one_engine_does_not_explain_requests_of_another(cluster_of: ClusterOf) -> None:
    run = _service(cluster_of, {"paused": (70.0, None, None, 2)}, IDLE, IDLE)
    (core,) = run.others
    other = replace(
        with_activities(core, {"input": (60.0, None, None, 0)}), pid=2001, labels={"engine": "1"}
    )
    server = replace(
        with_activities(core, {"requests": (60.0, None, None, 2)}), pid=3000, labels={}
    )

    assert diagnose(replace(run, others=(core, other, server))).status == "unknown"


@pytest.mark.parametrize(
    ("more", "status"),
    [
        ({"input": (60.0, None, None, 0)}, "hung"),
        ({"input": (95.0, None, None, 0)}, "unknown"),
        ({"input": (60.0, None, None, 0), "paused": (70.0, None, None, 2)}, "ok"),
    ],
    ids=["lost", "answered just now", "paused"],
)
def test_open_requests_are_no_rest(cluster_of: ClusterOf, more: Acts, status: str) -> None:
    run = _service(cluster_of, more, IDLE, IDLE)
    found = diagnose(_served(run, {"requests": (60.0, None, None, 2)}))

    assert found.status == status
    assert found.diverging_ranks == frozenset()
    assert "2 open requests" in found.summary


def test_requests_are_not_lost_while_an_engine_is_unknown(cluster_of: ClusterOf) -> None:
    run = _service(cluster_of, {"input": (60.0, None, None, 0)}, IDLE, IDLE)
    ranks = (run.ranks[0], replace(run.ranks[1], labels={"engine": "1"}))
    found = diagnose(_served(replace(run, ranks=ranks), {"requests": (60.0, None, None, 2)}))

    assert (found.status, found.cause) == ("unknown", None)


@pytest.mark.parametrize("requests", [0, 2])
def test_a_front_end_whose_event_loop_is_blocked(cluster_of: ClusterOf, requests: int) -> None:
    run = _service(cluster_of, {"input": (60.0, None, None, 0)}, IDLE, IDLE)
    asked: Acts = {"requests": (60.0, None, None, requests)} if requests else {}
    found = diagnose(_served(run, {"loop": (60.0, None, None, 0), **asked}))

    assert found.status == "hung"
    assert found.diverging_ranks == frozenset()
    assert "front end (pid 3000)" in found.summary.lower()


def test_a_front_end_that_is_stopped_records_no_heartbeat_either(cluster_of: ClusterOf) -> None:
    run = _service(cluster_of, {"input": (60.0, None, None, 0)}, IDLE, IDLE)
    served = _served(run, {"requests": (60.0, None, None, 1)}, stopped=True)
    *rest, server = served.others
    server = replace(server, last_seen_ns=(server.started_ns or 0) + 61 * 10**9)

    assert _verdict(replace(served, others=(*rest, server)))[:2] == ("hung", "rpc_stalled")


def _engines_of_two(cluster_of: ClusterOf, second: Acts) -> Run:
    """Return a run in which rank 1 never joined a call, and waits for work of its engine."""
    cluster = cluster_of(2)
    cluster.history()
    cluster.post([0], "tp:0", done=False)
    run = cluster.run()
    ranks = [
        with_activities(replace(rank, labels={"engine": str(rank.rank)}), IDLE if rank.rank else {})
        for rank in run.ranks
    ]
    process = replace(run.ranks[0], rank=-1, logs={}, details={**run.ranks[0].details})
    engines = [
        with_activities(
            replace(
                process,
                pid=2000 + number,
                labels={"engine": str(number)},
                details={**process.details, "role": "engine"},
            ),
            acts,
        )
        for number, acts in enumerate(({}, second))
    ]
    coordinator = with_activities(
        replace(process, pid=4000, details={**process.details, "role": "coordinator"}), {}
    )
    return replace(run, ranks=tuple(ranks), others=(*engines, coordinator))


@pytest.mark.parametrize("stopped", [False, True])
def test_nothing_wakes_an_engine_whose_coordinator_is_stopped(
    cluster_of: ClusterOf, stopped: bool
) -> None:
    run = _engines_of_two(cluster_of, {"input": (60.0, None, None, 0)})
    *engines, coordinator = run.others
    details = {**coordinator.details, **({"stopped": True} if stopped else {})}
    found = diagnose(replace(run, others=(*engines, replace(coordinator, details=details))))

    kinds = {one.kind: one.role for one in found.findings}
    assert found.status == "hung"
    assert found.cause is not None
    assert found.cause.kind == ("rpc_stalled" if stopped else "not_joined")
    assert kinds["not_joined"] == ("consequence" if stopped else "cause")


def test_a_coordinator_that_fell_silent_is_seen_in_a_copy(cluster_of: ClusterOf) -> None:
    run = _engines_of_two(cluster_of, {"input": (60.0, None, None, 0)})
    boot = {"boot_id": "boot"}
    *engines, coordinator = (
        replace(one, alive=False, details={**one.details, **boot}) for one in run.others
    )
    ranks = [replace(rank, alive=False, details={**rank.details, **boot}) for rank in run.ranks]
    last = (coordinator.last_seen_ns or 0) - 30 * 10**9
    silent = replace(coordinator, last_seen_ns=last)

    assert _verdict(replace(run, ranks=tuple(ranks), others=(*engines, silent))) == (
        "hung",
        "rpc_stalled",
        (),
        (),
    )


def test_an_engine_with_work_needs_no_coordinator(cluster_of: ClusterOf) -> None:
    run = _engines_of_two(cluster_of, {"enqueue": (60.0, 60.0, "execute_model", 1)})
    *engines, coordinator = run.others
    stopped = replace(coordinator, details={**coordinator.details, "stopped": True})

    assert _verdict(replace(run, others=(*engines, stopped)))[1:3] == ("not_joined", (1,))


@pytest.mark.parametrize("requests", [0, 2])
def test_a_stopped_process_is_no_rest(cluster_of: ClusterOf, requests: int) -> None:
    run = _service(cluster_of, {"input": (60.0, None, None, 0)}, IDLE, IDLE)
    (core,) = run.others
    stopped = replace(core, details={"role": "engine", "stopped": True})
    acts: Acts = {"requests": (60.0, None, None, requests)} if requests else {}
    server = replace(with_activities(core, acts), pid=3000, labels={})
    found = diagnose(replace(run, others=(stopped, server)))

    assert found.status == ("hung" if requests else "unknown")
    assert "ngine 0 (pid 2000) is stopped by a signal" in found.summary


@pytest.mark.parametrize(
    ("made", "named", "candidates"), [((2, 1), (), (0, 1)), ((2, 1, 2), (1,), ())]
)
def test_an_engine_alone_in_a_call_of_engines(
    cluster_of: ClusterOf, made: tuple[int, ...], named: tuple[int, ...], candidates: tuple[int]
) -> None:
    cluster = cluster_of(len(made))
    cluster.history()
    for number, count in enumerate(made):
        cluster.tracers[number].describe(labels={"engine": str(number)})
        engine = Tracer(
            cluster.directory,
            labels={"engine": str(number)},
            heartbeat=False,
            details={"host": "node-0", "pid": 2000 + number, "boot_id": "", "role": "engine"},
        )
        comm = engine.communicator("E", "engines", (), "gloo")
        for seq in range(count):
            position = engine.record(comm, "all_reduce", shape=(2,), dtype="int32", redop="max")
            if seq == 0:
                engine.complete(position)
    run = cluster.run()
    later = [replace(one, last_seen_ns=(one.last_seen_ns or 0) + 60 * 10**9) for one in run.others]

    assert _verdict(replace(run, others=tuple(later))) == ("hung", "not_joined", named, candidates)


@pytest.mark.parametrize(("alive", "status"), [(True, "hung"), (False, "ok")])
def test_an_engine_that_its_workers_outlive_is_dead(
    cluster_of: ClusterOf, alive: bool, status: str
) -> None:
    run = _service(cluster_of, {"input": (60.0, None, None, 0)}, IDLE, IDLE, alive=False)
    ranks = tuple(replace(rank, alive=alive) for rank in run.ranks)

    expected = (status, "dead_rank" if alive else None, (), ())
    assert _verdict(replace(run, ranks=ranks)) == expected


@pytest.mark.parametrize(("exited", "status"), [(True, "hung"), (False, "ok")])
def test_an_engine_that_its_server_found_dead(
    cluster_of: ClusterOf, exited: bool, status: str
) -> None:
    """Where its workers were killed as well, somebody ended the whole service."""
    run = _service(cluster_of, {"input": (60.0, None, None, 0)}, IDLE, IDLE, alive=False)
    (core,) = run.others
    error = {"raised": (99.0, 99.0, "EngineDeadError at core_client.py:1235 get_output_async", 0)}
    server = replace(with_activities(core, error), pid=3000, labels={}, exited=True, alive=False)
    ranks = tuple(replace(rank, alive=False, exited=exited) for rank in run.ranks)

    found = _verdict(replace(run, ranks=ranks, others=(core, server)))
    assert found == (status, "dead_rank" if exited else None, (), ())


@pytest.mark.parametrize("alive", [True, False, None])
def test_an_engine_that_was_sampled_lived_then(cluster_of: ClusterOf, alive: bool | None) -> None:
    """Where a bundle is read, it may be gone: its service ended, or this is another machine."""
    run = _service(cluster_of, {"input": (60.0, None, None, 0)}, IDLE, IDLE, alive=alive)
    place = stack("multiproc_executor.py:990 worker_busy_loop", "shm_broadcast.py:779 dequeue")
    *workers, engine = (
        replace(worker(one.rank, place), pid=one.pid, host=one.host)
        for one in (*run.ranks, *run.others)
    )
    found = with_snapshot(run, snapshot(workers, engines=(engine,)))

    assert [one.alive for one in found.others] == [True]
    assert _verdict(found)[1] is None


KILLED: Acts = {"worker_died": (98.4, 98.4, "VllmWorker-0, exit status -9", 1)}


@pytest.mark.parametrize(
    ("by_worker", "by_engine", "more", "expected"),
    [
        (98.0, 98.5, {}, ("hung", "dead_rank", (1,), ())),
        (None, 98.5, {}, ("hung", "dead_rank", (), ())),
        (None, 98.5, KILLED, ("ok", None, (), ())),
        (98.0, None, {}, ("ok", None, (), ())),
        (None, None, {}, ("ok", None, (), ())),
    ],
    ids=["worker first", "engine alone", "worker killed", "handled", "shutdown"],
)
def test_an_exception_that_ended_a_service(
    cluster_of: ClusterOf,
    by_worker: float | None,
    by_engine: float | None,
    more: Acts,
    expected: Any,
) -> None:
    def raised(at: float | None, what: str) -> Acts:
        return {} if at is None else {"raised": (at, at, f"{what} at serve.py:7 run", 0)}

    core = {"input": (40.0, 50.0, None, 0), **raised(by_engine, "RuntimeError"), **more}
    run = _service(cluster_of, core, IDLE, {**IDLE, **raised(by_worker, "ValueError")})
    run = _served(run, raised(99.0, "EngineDeadError"))
    alive = False if more else None  # a copy does not show it
    gone = [replace(one, alive=alive) for one in (*run.ranks, *run.others)]
    run = replace(run, ranks=tuple(gone[:2]), others=tuple(gone[2:]))

    assert _verdict(run) == expected


def test_a_worker_in_a_receive_keeps_its_engine_waiting(cluster_of: ClusterOf) -> None:
    """Who has not answered since it waits for a peer is no cause beside that peer."""
    cluster = cluster_of(2)
    cluster.history()
    cluster.post([1], "pp:0", "recv", peer=0, done=False)
    run = _of_one_engine(cluster.run(), _sent("execute_model", answers=2), IDLE, HELD)
    found = diagnose(run)

    causes = {one.kind for one in found.findings if one.role == "cause"}
    assert found.status == "hung"
    assert "rpc_stalled" not in causes
    assert 1 not in found.diverging_ranks


BEGAN = {"enqueue": (60.0, 60.0, "execute_model", 1), "dequeue": (60.0, None, None, 0)}


@pytest.mark.parametrize("begins", ["both", "neither", "one"])
def test_a_worker_that_has_not_begun_the_step_of_a_call_is_named(
    cluster_of: ClusterOf, begins: str
) -> None:
    """Of two workers in one step, either may be at fault; one in an earlier step is held up."""
    cluster = cluster_of(2)
    for number in (1, 2):
        for tracer in cluster.tracers:
            tracer.step(number, tokens=1)
        cluster.history()
    for tracer in cluster.tracers[: {"neither": 0, "one": 1, "both": 2}[begins]]:
        tracer.step(3, tokens=1)
    cluster.post([0], "tp:0", done=False)
    run = _of_one_engine(cluster.run(), BEGAN, HELD, HELD)

    named = ((1,), ()) if begins == "one" else ((), (0, 1))
    assert _verdict(run) == ("hung", "not_joined", *named)


@pytest.mark.parametrize(
    ("taken", "named"),
    [(((50.0, 60.0), (50.0, 59.0)), ((1,), ())), (((50.0, 59.0), (50.0, 59.0)), ((), (0, 1)))],
    ids=["one", "both"],
)
def test_a_worker_that_is_still_at_an_earlier_call_of_its_engine_is_named(
    cluster_of: ClusterOf,
    taken: tuple[tuple[float, float], ...],
    named: tuple[tuple[int, ...], ...],
) -> None:
    cluster = cluster_of(2)
    cluster.history()
    cluster.post([0], "tp:0", done=False)
    workers: list[Acts] = [{"dequeue": (*each, *WAITS)} for each in taken]

    run = _of_one_engine(cluster.run(), BEGAN, *workers)
    assert _verdict(run) == ("hung", "not_joined", *named)


@pytest.mark.parametrize(("apart", "status"), [(3, "ok"), (30, "unknown")])
def test_rings_that_were_copied_one_after_the_other_show_no_stopped_process(
    cluster_of: ClusterOf, apart: int, status: str
) -> None:
    run = _served(_service(cluster_of, {"input": (60.0, None, None, 0)}, IDLE, IDLE), {})
    late = [one.last_seen_ns or 0 for one in (*run.ranks, *run.others)]
    early = {run.ranks[0].pid: max(late) - apart * 10**9}
    copied = [
        replace(
            one,
            alive=None,
            last_seen_ns=early.get(one.pid, max(late)),
            details={**one.details, "boot_id": "boot"},
        )
        for one in (*run.ranks, *run.others)
    ]
    found = diagnose(replace(run, ranks=tuple(copied[:2]), others=tuple(copied[2:])))

    assert (found.status, found.cause) == (status, None)


@pytest.mark.parametrize(("waited", "status"), [(3.0, "unknown"), (20.0, "hung")])
def test_a_profiler_stops_a_worker_for_a_moment(
    cluster_of: ClusterOf, waited: float, status: str
) -> None:
    """The record of one look at its state is no proof that it stays stopped."""
    since = NOW - waited
    sent: Acts = {
        "enqueue": (since, since, "execute_model", 1),
        "dequeue": (since, None, None, 0),
    }
    inside: Acts = {**IDLE, "dequeue": (50.0, since, *WAITS)}
    run = _service(cluster_of, sent, inside, IDLE)
    stopped = replace(run.ranks[0], details={**run.ranks[0].details, "stopped": True})

    assert diagnose(replace(run, ranks=(stopped, run.ranks[1]))).status == status
