"""Verdicts from stacks alone, and their limits."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ncclscope.model.snapshot import Frame, Stacks, Thread
from tests.support.snapshots import (
    C10D,
    elsewhere,
    in_collective,
    judged,
    recorded_moe,
    snapshot,
    stack,
    worker,
)

REDUCE, REDUCE_LATER, GATHER = (
    in_collective("all_reduce", 10),
    in_collective("all_reduce", 20),
    in_collective("all_gather", 15),
)
SYNC = stack("train.py:1 <module>", "train.py:12 step", "torch/cuda/streams.py:200 synchronize")
IDLE = stack("worker.py:9 busy_loop", "vllm/distributed/shm_broadcast.py:300 acquire_read")


def test_a_rank_in_another_collective_is_named() -> None:
    verdict = judged(*(worker(rank, GATHER if rank == 2 else REDUCE) for rank in range(4)))

    assert verdict.status == "diverged"
    assert verdict.cause is not None
    assert verdict.cause.kind == "op_mismatch"
    assert verdict.cause.diverging_ranks == (2,)
    assert verdict.cause.confidence == "likely"
    assert verdict.cause.odd is not None
    assert verdict.cause.odd.op == "all_gather"
    assert verdict.cause.odd.site == "train.py:15 step"
    assert verdict.cause.peers is not None
    assert verdict.cause.peers.op == "all_reduce"


def test_calls_of_two_threads_are_no_mismatch() -> None:
    """Ranks that are seen in another thread may be in the call of rank 2 with their main one."""
    workers = [worker(rank, GATHER if rank == 2 else REDUCE) for rank in range(4)]
    for place in (0, 1, 3):
        stacks = tuple(
            Stacks((Thread("MainThread", 1, IDLE), replace(one.threads[0], name="Thread-1")))
            for one in workers[place].stacks
        )
        workers[place] = replace(workers[place], stacks=stacks)

    verdict = judged(*workers)

    assert verdict.cause is not None
    assert (verdict.cause.kind, verdict.cause.diverging_ranks) == ("not_joined", (2,))


def test_two_against_two_names_nobody() -> None:
    verdict = judged(*(worker(rank, GATHER if rank > 1 else REDUCE) for rank in range(4)))

    assert verdict.cause is not None
    assert verdict.cause.diverging_ranks == ()
    assert verdict.cause.candidate_ranks == (0, 1, 2, 3)
    assert verdict.cause.confidence == "ambiguous"
    assert verdict.exit_status == 1


def test_one_against_one_in_two_collectives_names_nobody() -> None:
    verdict = judged(worker(0, REDUCE), worker(1, GATHER))

    assert verdict.cause is not None
    assert (verdict.cause.diverging_ranks, verdict.cause.candidate_ranks) == ((), (0, 1))


def test_the_same_call_from_another_line_is_another_place() -> None:
    workers = (worker(rank, REDUCE_LATER if rank == 1 else REDUCE) for rank in range(4))
    verdict = judged(*workers, gap=12.0)

    assert verdict.cause is not None
    assert verdict.cause.kind == "not_joined"
    assert verdict.cause.diverging_ranks == (1,)
    assert verdict.cause.inferred == (
        "the stacks differ in step of train.py, at lines 20 and 10; it is unknown which line runs "
        "first",
    )


def test_the_branches_of_a_decision_have_no_order() -> None:
    verdict = judged(*(worker(rank, GATHER if rank == 2 else REDUCE) for rank in range(4)))

    assert verdict.cause is not None
    assert not [line for line in verdict.cause.inferred if "ahead" in line or "behind" in line]


def test_a_probe_is_not_the_position_of_a_rank() -> None:
    frame = "ncclscope_patches/probe.py:222 guarded"
    idle = stack("worker.py:9 busy_loop", frame, "vllm/distributed/shm_broadcast.py:971 dequeue")
    verdict = judged(*(worker(r, idle if r == 2 else REDUCE) for r in range(4)), gap=12.0)

    assert verdict.cause is not None
    assert verdict.cause.diverging_ranks == (2,)
    assert "worker.py:9 busy_loop" in verdict.cause.summary


@pytest.mark.parametrize("place", [elsewhere(5), SYNC, IDLE])
def test_a_rank_that_is_elsewhere_has_not_joined(place: tuple[object, ...]) -> None:
    workers = [worker(rank, place if rank == 3 else REDUCE) for rank in range(4)]  # type: ignore[arg-type]
    verdict = judged(*workers, gap=12.0)

    assert verdict.cause is not None
    assert (verdict.cause.kind, verdict.cause.diverging_ranks) == ("not_joined", (3,))
    assert verdict.status == "hung"


def test_of_two_ranks_the_one_that_waits_for_nobody_is_named() -> None:
    verdict = judged(worker(0, REDUCE), worker(1, elsewhere(5)), gap=12.0)

    assert verdict.cause is not None
    assert verdict.cause.diverging_ranks == (1,)


def test_a_rank_alone_in_a_collective_made_an_extra_call() -> None:
    verdict = judged(*(worker(r, REDUCE if r == 0 else IDLE) for r in range(4)), gap=12.0)

    assert verdict.cause is not None
    assert (verdict.cause.kind, verdict.cause.diverging_ranks) == ("extra_call", (0,))


def test_two_that_wait_and_two_that_do_not_name_nobody() -> None:
    verdict = judged(*(worker(r, REDUCE if r < 2 else elsewhere(5)) for r in range(4)), gap=12.0)

    assert verdict.cause is not None
    assert (verdict.cause.diverging_ranks, verdict.cause.confidence) == ((), "ambiguous")


def test_several_apart_in_different_ways_are_candidates() -> None:
    places = {5: GATHER, 6: REDUCE_LATER}
    verdict = judged(*(worker(rank, places.get(rank, REDUCE)) for rank in range(8)))

    assert verdict.cause is not None
    assert verdict.cause.diverging_ranks == ()
    assert verdict.cause.candidate_ranks == (5, 6)


def test_who_waits_for_a_message_is_not_blamed() -> None:
    receive = in_collective("recv", 30)
    verdict = judged(*(worker(rank, receive if rank == 3 else REDUCE) for rank in range(4)))

    assert verdict.cause is not None
    assert verdict.cause.diverging_ranks == ()


# --- healthy ----------------------------------------------------------------------------------


def test_ranks_that_move_are_healthy_wherever_they_are_seen() -> None:
    verdict = judged(*(worker(rank, REDUCE, GATHER) for rank in range(4)))

    assert (verdict.status, verdict.findings, verdict.exit_status) == ("ok", (), 0)


def test_a_tight_loop_that_is_always_met_at_its_collective_is_healthy() -> None:
    """Its stacks never change, but it goes to sleep and wakes thousands of times a second."""
    places = [REDUCE, REDUCE, GATHER, REDUCE]
    verdict = judged(*(worker(rank, place, switches=5000) for rank, place in enumerate(places)))

    assert verdict.status == "ok"
    assert verdict.cause is None


def test_a_sample_in_between_shows_that_a_rank_moves() -> None:
    places = [(GATHER, REDUCE, GATHER)] + [(REDUCE, GATHER, REDUCE)] * 3
    verdict = judged(*(worker(rank, *samples) for rank, samples in enumerate(places)))

    assert verdict.cause is None


def test_computing_is_moving() -> None:
    verdict = judged(*(worker(rank, elsewhere(rank), cpu=1.9, state="R") for rank in range(4)))

    assert (verdict.status, verdict.findings) == ("ok", ())


def test_waiting_for_work_is_rest() -> None:
    poll = stack("worker.py:9 busy_loop", "zmq/sugar/poll.py:106 poll")
    verdict = judged(*(worker(rank, poll) for rank in range(4)))

    assert (verdict.status, verdict.findings) == ("ok", ())


def test_a_rank_at_work_is_late_and_not_yet_stuck() -> None:
    workers = [worker(r, elsewhere(5), cpu=1.9) if r == 2 else worker(r, REDUCE) for r in range(4)]
    verdict = judged(*workers)

    assert verdict.status == "unknown"
    (late,) = verdict.findings
    assert (late.role, late.candidate_ranks, late.diverging_ranks) == ("latent", (2,), ())
    assert "--gap 30" in " ".join(late.inferred)


def test_after_half_a_minute_it_is_late() -> None:
    workers = [worker(r, elsewhere(5), cpu=29) if r == 2 else worker(r, REDUCE) for r in range(4)]
    verdict = judged(*workers, gap=30.0)

    assert verdict.cause is not None
    assert (verdict.status, verdict.cause.kind) == ("unknown", "late")
    assert verdict.cause.diverging_ranks == (2,)


def test_all_in_one_place_is_a_stall_only_when_it_lasts() -> None:
    short = judged(*(worker(rank, REDUCE) for rank in range(4)))
    long = judged(*(worker(rank, REDUCE) for rank in range(4)), gap=10.0)

    assert (short.status, [f.role for f in short.findings]) == ("unknown", ["latent"])
    assert long.cause is not None
    assert (long.status, long.cause.kind, long.cause.diverging_ranks) == ("hung", "stalled", ())


def test_one_process_is_compared_with_nobody() -> None:
    verdict = judged(worker(0, REDUCE))

    assert verdict.cause is None


# --- processes --------------------------------------------------------------------------------


def test_a_stopped_rank_is_named() -> None:
    workers = [worker(r, REDUCE, state="T" if r == 1 else "S") for r in range(4)]
    verdict = judged(*workers)

    assert verdict.cause is not None
    assert (verdict.cause.kind, verdict.cause.diverging_ranks) == ("not_joined", (1,))
    assert "state T" in verdict.cause.summary
    assert verdict.cause.confidence == "likely"


def test_a_stopped_rank_that_nobody_waits_for_is_no_hang() -> None:
    workers = [
        worker(0, REDUCE, state="T"),
        *(worker(r, elsewhere(3), elsewhere(4), cpu=1) for r in range(1, 4)),
    ]
    verdict = judged(*workers)

    assert (verdict.status, [f.role for f in verdict.findings]) == ("unknown", ["latent"])


def test_a_rank_that_ended_is_dead() -> None:
    workers = [worker(r, REDUCE, state="Z" if r == 3 else "S") for r in range(4)]
    verdict = judged(*workers)

    assert verdict.cause is not None
    assert (verdict.cause.kind, verdict.cause.diverging_ranks) == ("dead_rank", (3,))


def test_a_hole_in_the_ranks_is_a_dead_rank() -> None:
    verdict = judged(*(worker(rank, REDUCE) for rank in (0, 1, 3)))

    assert verdict.cause is not None
    assert (verdict.cause.kind, verdict.cause.diverging_ranks) == ("dead_rank", (2,))


@pytest.mark.parametrize(
    ("address", "dead"), [("127.0.0.1", (2, 3)), ("localhost", (2, 3)), ("10.0.0.7", ())]
)
def test_ranks_that_meet_on_this_host_alone_are_all_here(
    address: str, dead: tuple[int, ...]
) -> None:
    """Started by hand or by a script: no torchrun says how many it was to start here."""
    fields = {"world_size": 4, "environment": {"MASTER_ADDR": address}}
    verdict = judged(*(worker(rank, REDUCE, **fields) for rank in (0, 1)), gap=12.0)

    assert verdict.cause is not None
    assert (verdict.cause.kind == "dead_rank", verdict.cause.diverging_ranks) == (bool(dead), dead)


@pytest.mark.parametrize(
    ("sources", "expected"), [((1, 0), ((), (0, 1))), ((1, 2), ((2, 3), ())), ((), ((2, 3), ()))]
)
def test_who_waits_in_a_transfer_with_another_waits_for_no_rank_that_has_ended(
    sources: tuple[int, ...], expected: tuple[tuple[int, ...], tuple[int, ...]]
) -> None:
    workers = []
    for rank in (0, 1):
        outer, inner = stack(f"train.py:{12 + rank} main", f"{C10D}:2799 recv")
        inner = replace(inner, peers=sources[rank : rank + 1])
        here = {"MASTER_ADDR": "127.0.0.1"}
        workers.append(worker(rank, (outer, inner), world_size=4, environment=here))
    cause = judged(*workers, gap=12.0).cause

    assert cause is not None
    assert (cause.diverging_ranks, cause.candidate_ranks) == expected


@pytest.mark.parametrize(("gap", "status"), [(2.0, "unknown"), (10.0, "hung")])
def test_a_dead_rank_and_ranks_elsewhere_are_candidates(gap: float, status: str) -> None:
    """Rank 1 caught the error that rank 2's death raised, and sleeps; the rest may wait for it."""
    workers = [worker(rank, REDUCE) for rank in (0, 3, 4)]
    verdict = judged(*workers, worker(1, elsewhere(3)), gap=gap)

    assert verdict.status == status
    (finding,) = verdict.findings
    assert (finding.kind, finding.candidate_ranks) == ("dead_rank", (1, 2))
    assert "Rank 2 has no live process; ranks 0 3 4 wait in all_reduce" in verdict.summary
    assert "They may also wait for others: rank 1 is at" in verdict.summary


def test_few_that_wait_are_candidates_beside_a_dead_rank() -> None:
    workers = [worker(0, REDUCE), worker(1, elsewhere(3)), worker(3, elsewhere(3))]
    verdict = judged(*workers, gap=10.0)

    assert verdict.cause is not None
    assert verdict.cause.candidate_ranks == (0, 1, 2, 3)


def test_ranks_that_were_given_out_by_us_have_no_holes() -> None:
    from dataclasses import replace

    workers = [replace(worker(rank, REDUCE), rank_source="pid") for rank in (0, 1, 3)]
    verdict = judged(*workers)

    assert verdict.cause is None


def test_a_rank_that_cannot_be_read_is_not_blamed() -> None:
    from dataclasses import replace

    unread = replace(worker(2, REDUCE), stacks=(Stacks(error="no permission"),) * 2)
    verdict = judged(worker(0, REDUCE), worker(1, REDUCE), unread, worker(3, REDUCE))

    assert verdict.cause is None
    assert verdict.status == "unknown"
    assert verdict.summary.startswith("Rank 2 left no record. Ranks 0 1 3 wait in all_reduce")
    assert verdict.to_dict()["ranks"] == {"expected": 4, "read": 3, "missing": [2]}
    (finding,) = verdict.findings
    assert (finding.role, finding.candidate_ranks) == ("latent", (2,))


@pytest.mark.parametrize("gap", [2.0, 12.0])
def test_launchers_that_wait_for_what_they_started_are_not_idle_ranks(gap: float) -> None:
    spawn = stack(
        "spawn2.py:14 <module>",
        "torch/multiprocessing/spawn.py:296 start_processes",
        "torch/multiprocessing/spawn.py:140 join",
        "multiprocessing/connection.py:947 wait",
    )
    verdict = judged(worker(0, spawn), worker(1, spawn), gap=gap)

    assert (verdict.status, verdict.cause) == ("unknown", None)
    assert "(waits for processes that it started)" in verdict.summary


# --- loops ------------------------------------------------------------------------------------


def test_an_engine_whose_rank_is_less_than_one_iteration_ahead() -> None:
    verdict = judged(*recorded_moe(), gap=12.0)

    assert verdict.cause is not None
    assert verdict.cause.diverging_ranks == (2,)
    assert (
        "qkv_proj, less than one iteration ahead of where ranks 0 1 3 wait" in verdict.cause.summary
    )
    assert "all_reduce at qwen3_moe.py:34 experts" in verdict.cause.summary
    assert any("layer_idx" in line and "13" in line for line in verdict.cause.inferred)
    assert not any("ahead" in line for line in verdict.cause.evidence)


def test_without_a_counter_no_rank_is_certainly_ahead() -> None:
    verdict = judged(*recorded_moe(counters=False), gap=12.0)

    assert verdict.cause is not None
    assert verdict.cause.diverging_ranks == (2,)
    assert "iteration" not in verdict.cause.summary
    assert not any("ahead" in line or "behind" in line for line in verdict.cause.inferred)


@pytest.mark.parametrize(
    ("file", "installed"), [("spawn.py", True), ("multiprocessing/s.py", None)]
)
def test_a_number_in_a_library_is_no_loop_counter(file: str, installed: bool | None) -> None:
    """The index of a process in torch.multiprocessing, for one."""

    def spawned(index: int, *rest: Frame) -> tuple[Frame, ...]:
        wrap = Frame("_wrap", f"torch/{file}", 87, counters={"i": index}, installed=installed)
        return (wrap, *rest)

    verdict = judged(
        worker(0, spawned(0, *REDUCE)), worker(1, spawned(1, *elsewhere(5, "step"))), gap=12.0
    )

    assert verdict.cause is not None
    assert "and not where rank 0 waits" in verdict.cause.summary
    assert not any("ahead" in line for line in verdict.cause.inferred)


def test_a_capture_keeps_what_it_was_made_of() -> None:
    seen = snapshot([worker(0, REDUCE), worker(1, GATHER)])

    assert seen.to_dict()["workers"][1]["stacks"][0]["threads"][0]["frames"][-1]["line"] == 3000


@pytest.mark.parametrize(
    ("others", "status"),
    [((), "unknown"), (("ncclscope-beat",), "unknown"), (("prefetch",), "ok")],
)
def test_a_queue_that_no_other_thread_can_fill_is_no_wait_for_work(
    others: tuple[str, ...], status: str
) -> None:
    """The thread that read ahead has died of an exception, on all ranks."""
    inside = stack("train.py:1 <module>", "train.py:9 batches", "lib/python3.12/queue.py:171 get")
    beside = tuple(Thread(name, 5, elsewhere(4, "run")) for name in others)
    ranks = [
        replace(one, stacks=tuple(Stacks((*each.threads, *beside)) for each in one.stacks))
        for one in (worker(rank, inside) for rank in range(3))
    ]

    verdict = judged(*ranks)

    assert verdict.status == status
    unfed = "Ranks 0-2 wait in a queue of their own process, in which no other Python thread runs"
    assert verdict.summary.startswith(unfed) == (status == "unknown")


@pytest.mark.parametrize(
    ("place", "status"), [("queue.py:171 get", "unknown"), ("server.py:61 work", "hung")]
)
def test_a_root_whose_other_thread_waits_for_requests_is_no_hang(place: str, status: str) -> None:
    """The main thread of a server may only wait for its end."""
    begin = "threading.py:1002 _bootstrap"
    own = Frame("schedule", "server.py", 60, installed=False)
    threads = (
        Thread("MainThread", 1, stack("server.py:80 <module>", "threading.py:629 wait")),
        Thread("schedule", 2, (*stack(begin), own, *stack(place))),
        Thread("http", 3, stack(begin, "socketserver.py:238 serve_forever")),
    )
    root = replace(worker(0, elsewhere(1)), stacks=(Stacks(threads), Stacks(threads)))
    followers = [worker(rank, in_collective("broadcast", 20)) for rank in (1, 2)]

    assert judged(root, *followers, gap=12.0).status == status


def test_a_rank_that_does_not_exit_shows_the_thread_for_which_it_waits() -> None:
    main = Thread("MainThread", 1, stack("threading.py:1590 _shutdown"))
    get = replace(stack("train.py:20 upload")[0], installed=False)
    upload = Thread("uploader", 2, (get, *stack("queue.py:171 get")))
    seen = worker(0, SYNC)
    seen = replace(seen, stacks=tuple(Stacks((main, upload)) for _ in seen.stacks))
    moving = worker(1, elsewhere(7), elsewhere(8))

    verdict = judged(seen, moving)

    assert verdict.summary.startswith(
        "Rank 0 did not move for 2 s: rank 0 is at threading.py:1590 _shutdown (waits for a lock; "
        "its thread uploader is at train.py:20 upload)."
    )
