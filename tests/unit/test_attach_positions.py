"""Where a rank is and whether it moves, and whom that singles out."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from ncclscope.engine.processes.judgement import Judgement
from ncclscope.engine.processes.motion import Motion, read_motions
from ncclscope.engine.processes.stack_verdict import judge_stacks
from ncclscope.model.snapshot import Frame, ProcessSample, Stacks, Thread, Worker
from tests.support.snapshots import C10D, elsewhere, in_collective, judged, snapshot, stack, worker

REDUCE, GATHER = in_collective("all_reduce", 10), in_collective("all_gather", 15)
GRAPH = "torch/autograd/graph.py:979 _engine_run_backward"
BACKWARD = stack("train.py:1 <module>", "train.py:12 step", "torch/_tensor.py:623 backward", GRAPH)
FORWARD = stack(
    "train.py:1 <module>",
    "train.py:11 step",
    "torch/nn/parallel/distributed.py:1600 forward",
    "torch/nn/parallel/distributed.py:2200 _sync_buffers",
)
GROUP = stack("train.py:1 <module>", "train.py:5 main", f"{C10D}:5800 new_group", f"{C10D}:9 _help")
LOADER = stack(
    "train.py:1 <module>",
    "train.py:9 main",
    "torch/utils/data/dataloader.py:725 __next__",
    "torch/utils/data/dataloader.py:1291 _try_get_data",
    "multiprocessing/queues.py:113 get",
)
LOCK = stack("train.py:1 <module>", "train.py:7 main", "filelock/_api.py:300 acquire")


def at(line: int, *calls: str) -> tuple[Frame, ...]:
    """Return a stack of which the innermost line calls these."""
    *outer, last = stack("train.py:1 <module>", f"train.py:{line} step")
    return (*outer, replace(last, calls=calls))


def blocked(one: Worker, what: str) -> Worker:
    return replace(one, samples=tuple(replace(s, blocked=what) for s in one.samples))


def motion(one: Worker, gap: float = 2.0) -> Motion:
    return read_motions(snapshot([one, worker(99, REDUCE)], gap))[one.rank]


def judge(*workers: Worker, gap: float = 12.0) -> Judgement | None:
    found = judge_stacks(list(read_motions(snapshot(workers, gap)).values()), gap)
    return found[0] if found else None


def named(found: Judgement | None) -> tuple[str, tuple[int, ...], str]:
    assert found is not None
    return found.kind, found.diverging_ranks, found.role


# --- what it waits for ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("frames", "op"), [(BACKWARD, "backward"), (FORWARD, "forward"), (GROUP, "new_group")]
)
def test_ranks_wait_for_peers_where_no_collective_is_called(
    frames: Sequence[Frame], op: str
) -> None:
    found = motion(worker(0, frames))

    assert (found.condition, found.waits, found.op) == ("still", "collective", op)
    assert found.unrecorded == (op != "new_group")
    assert found.place is not None
    assert found.place.file == "train.py"


def test_a_compiled_graph_waits_by_the_line_that_calls_the_operator() -> None:
    outer, generated = at(90, "torch.ops._c10d_functional.wait_tensor.default")
    found = motion(worker(0, (outer, generated, *stack("torch/_ops.py:800 __call__"))))

    assert (found.waits, found.op, found.unrecorded) == ("collective", "wait_tensor", False)


def test_switches_of_the_main_thread_say_nothing_of_another() -> None:
    posting = Thread("poster", 7, REDUCE)
    one = worker(0, stack("train.py:1 main", "threading.py:320 wait"), switches=100)
    both = tuple(Stacks((*stacks.threads, posting)) for stacks in one.stacks)

    assert motion(replace(one, stacks=both)).condition == "still"


def test_a_backward_that_computes_moves() -> None:
    found = motion(worker(0, BACKWARD, cpu=1.8))

    assert (found.condition, found.op) == ("moving", None)


def test_the_hooks_of_a_backward_may_run_on_another_thread() -> None:
    one = worker(0, BACKWARD)
    hook = Thread("Dummy-1", 7, in_collective("reduce_scatter", 40, "post_backward"))
    both = tuple(Stacks((*stacks.threads, hook)) for stacks in one.stacks)

    assert motion(replace(one, stacks=both)).op == "reduce_scatter"


@pytest.mark.parametrize(
    ("begin", "place", "op"),
    [
        ("concurrent/futures/_base.py:305 wait", "concurrent/futures/thread.py:58 run", "wait"),
        ("concurrent/futures/_base.py:305 wait", "concurrent/futures/thread.py:81 _worker", None),
        ("train.py:30 collect", "concurrent/futures/thread.py:58 run", None),
    ],
)
def test_who_waits_for_a_pool_may_wait_for_the_peers_of_its_threads(
    begin: str, place: str, op: str | None
) -> None:
    one = worker(0, stack("train.py:1 main", begin, "threading.py:320 wait"))
    pool = Thread("ThreadPoolExecutor-0_0", 7, stack("threading.py:982 run", place))
    both = tuple(Stacks((*stacks.threads, pool)) for stacks in one.stacks)

    assert motion(replace(one, stacks=both)).op == op


@pytest.mark.parametrize(
    ("frames", "kernel", "waits", "op"),
    [
        (LOADER, "poll", "data", None),
        (LOCK, "sleep", "lock", None),
        (at(5, "open"), "fifo", "file", None),
        (at(5, "pipe.read"), "pipe", "file", None),
        (at(5, "connection.recv"), "socket", "socket", None),
        (at(5, "lock.__enter__"), "futex", "lock", None),
        (at(5, "fcntl.flock"), "lock", "lock", None),
        (at(5, "time.sleep"), "sleep", "sleep", None),
        (at(5, "os.waitpid"), "child", "child", None),
        (at(5, "work.wait"), "futex", "collective", "wait"),
        (at(5, "self.store.get"), "poll", "collective", "store"),
        (at(5, "config.get"), "futex", None, None),
    ],
)
def test_what_is_waited_for_is_read_off_source_and_kernel(
    frames: Sequence[Frame], kernel: str, waits: str | None, op: str | None
) -> None:
    found = motion(blocked(worker(0, frames), kernel))

    assert (found.condition, found.waits, found.op) == ("still", waits, op)


def test_a_host_that_spins_for_its_gpu_does_not_move() -> None:
    one = worker(0, at(5, "loss.item"), cpu=2.0, state="R")
    with_gpu = tuple(replace(s, threads={"cuda-EvtHandlr": 1}) for s in one.samples)

    assert motion(one).condition == "moving"
    assert motion(replace(one, samples=with_gpu)).waits == "device"


def test_the_line_of_the_user_is_shown_beside_that_of_a_framework() -> None:
    outer = Frame("main", "train.py", 41, path="/home/me/train.py", installed=False)
    library = Frame("gather", "accelerate/accelerator.py", 3050, installed=True)
    found = motion(worker(0, (outer, library, *stack(f"{C10D}:3000 all_gather"))))

    assert found.text == "all_gather at accelerator.py:3050 gather, from train.py:41 main"
    assert found.user_place == outer


def test_the_verdict_has_both_lines_with_their_paths() -> None:
    outer = Frame("main", "train.py", 41, path="/home/me/train.py", installed=False)
    path = "/venv/site-packages/accelerate/accelerator.py"
    library = Frame("gather", "accelerate/accelerator.py", 3050, path=path, installed=True)
    odd = (outer, library, *stack(f"{C10D}:3000 all_gather"))
    verdict = judged(worker(0, odd), worker(1, REDUCE), worker(2, REDUCE))

    assert verdict.cause is not None
    assert verdict.cause.odd is not None
    document = verdict.cause.odd.to_dict()
    assert document["site"] == f"{path}:3050 gather"
    assert document["user_site"] == "/home/me/train.py:41 main"
    assert document["user_frame"]["line"] == 41


RPC = "torch/distributed/rpc/api.py"


def test_a_rank_that_writes_a_checkpoint_is_in_no_collective() -> None:
    """Functions of checkpoints are named like the collectives that follow when files are saved."""
    utils = "torch/distributed/checkpoint/utils.py"
    save = stack("train.py:1 <module>", "torch/distributed/checkpoint/state_dict_saver.py:9 save")
    busy = (*save, *stack(f"{utils}:241 all_reduce", "storage.py:7 write_data"))
    waiting = (*save, *stack(f"{utils}:246 all_reduce", f"{C10D}:3000 gather_object"))

    verdict = judged(*(worker(rank, busy if rank == 1 else waiting) for rank in range(3)), gap=12.0)

    assert verdict.status != "diverged"
    assert verdict.cause is None or verdict.cause.diverging_ranks in ((), (1,))


def test_a_server_of_rpc_that_shuts_down_is_in_no_collective() -> None:
    """It serves its clients until they are done, which sleep between their calls."""
    shutdown = [f"{RPC}:{line} {name}" for line, name in ((375, "shutdown"), (257, "_all_gather"))]
    inner = ("threading.py:655 wait", "threading.py:355 wait")
    server = blocked(worker(0, stack("train.py:18 <module>", *shutdown, *inner)), "futex")
    clients = [blocked(worker(rank, at(17, "time.sleep")), "sleep") for rank in (1, 2, 3)]
    found = motion(server)

    assert (found.op, found.waits) == (None, "lock")
    assert judged(server, *clients, gap=12.0).status in ("ok", "unknown")


# --- whether it moves -------------------------------------------------------------------------


def test_a_loop_that_polls_does_not_move() -> None:
    asleep, samples = at(7, "time.sleep"), at(6, "os.path.exists")
    deeper = (*at(6), *stack("genericpath.py:19 exists"))
    found = motion(worker(0, asleep, samples, asleep, deeper, asleep, asleep, switches=40))

    assert (found.condition, found.waits) == ("still", "poll")
    assert "polls" in found.text


def test_a_loop_that_counts_moves_however_much_it_sleeps() -> None:
    first, second = (
        (*stack("train.py:1 <module>"), Frame("step", "train.py", 7, {"i": i}, calls=("sleep",)))
        for i in (1, 2)
    )

    assert motion(worker(0, first, second)).condition == "moving"


def test_a_loop_that_sleeps_and_posts_moves() -> None:
    asleep = at(7, "time.sleep")
    assert motion(worker(0, asleep, REDUCE, asleep, asleep)).condition == "moving"


def test_one_wake_in_a_collective_is_an_answer_and_polling_a_store_is_none() -> None:
    assert motion(worker(0, REDUCE, switches=1), gap=10.0).condition == "moving"
    assert motion(worker(0, GROUP, switches=1000), gap=10.0).condition == "still"


@pytest.mark.parametrize(
    ("blocked", "switches", "condition"),
    [("poll", 20, "moving"), ("poll", 1, "still"), ("sleep", 20, "still"), ("lock", 20, "still")],
)
def test_who_polls_with_a_timeout_wakes_and_moves(
    blocked: str, switches: int, condition: str
) -> None:
    """A rank that waits for an answer that never comes does not wake."""
    one = worker(0, stack("train.py:1 <module>", "train.py:9 generate"), switches=switches)
    samples = tuple(replace(sample, blocked=blocked) for sample in one.samples)

    assert motion(replace(one, samples=samples), gap=10.0).condition == condition


# --- who is apart -----------------------------------------------------------------------------


def ranks(places: Sequence[Any]) -> list[Worker]:
    return [worker(rank, place) for rank, place in enumerate(places)]


def test_one_that_has_left_the_loop_of_ddp_is_named() -> None:
    found = judge(*ranks([BACKWARD, BACKWARD, in_collective("barrier", 30), BACKWARD]))

    assert named(found) == ("op_mismatch", (2,), "cause"), "it may have left a backward out"
    assert found is not None
    assert found.confidence == "likely"


PIPE = "torch/distributed/pipelining/schedules.py"


@pytest.mark.parametrize(
    "place",
    [
        blocked(worker(2, at(5, "work.wait")), "futex"),
        worker(2, stack("train.py:1 main", "train.py:8 step", f"{PIPE}:400 _wait_batch_p2p")),
        worker(2, in_collective("recv", 8)),
    ],
)
def test_who_may_wait_for_a_message_is_not_blamed(place: Worker) -> None:
    found = judge(worker(0, REDUCE), worker(1, REDUCE), place, worker(3, REDUCE))

    assert found is not None
    assert (found.diverging_ranks, found.candidate_ranks) == ((), (0, 1, 2, 3))


def test_one_left_in_a_backward_is_named() -> None:
    barrier = in_collective("barrier", 30)
    assert named(judge(*ranks([barrier, BACKWARD, barrier, barrier]))) == (
        "op_mismatch",
        (1,),
        "cause",
    )


def test_the_few_that_wait_where_most_have_not_come_are_named() -> None:
    found = judge(*ranks([REDUCE, elsewhere(5), LOADER, elsewhere(7)]))

    assert named(found) == ("extra_call", (0,), "cause")


def test_one_that_has_left_out_a_group_is_named() -> None:
    assert named(judge(*ranks([GROUP, REDUCE, GROUP]))) == ("init_stalled", (1,), "cause")
    assert named(judge(*ranks([GROUP, elsewhere(5), GROUP]))) == ("init_stalled", (1,), "cause")


def test_the_rank_that_came_in_another_round_of_the_loop_is_named() -> None:
    def barrier(step: int) -> tuple[Frame, ...]:
        loop = Frame("main", "decode.py", 34, {"step": step})
        return (loop, *stack(f"{C10D}:5356 barrier"))

    found = judge(*ranks([barrier(12), barrier(12), barrier(12), barrier(11)]))
    assert named(found) == ("not_joined", (3,), "cause")
    assert named(judge(*ranks([barrier(12), barrier(11)])))[1] == ()
    assert named(judge(*ranks([barrier(12)] * 3)))[:2] == ("stalled", ())


def test_all_in_a_new_group_hang_and_nobody_is_named() -> None:
    found = judge(*ranks([GROUP] * 3))

    assert named(found) == ("init_stalled", (), "cause")
    assert found is not None
    assert found.candidate_ranks == (0, 1, 2)


def test_one_call_at_many_lines_names_nobody_and_another_call_its_rank() -> None:
    lines = [in_collective("all_reduce", line) for line in (10, 10, 20, 20)]
    tie, odd = judge(*ranks(lines)), judge(*ranks([*lines, GATHER]))
    half = judge(*ranks([*lines[:3], in_collective("all_reduce", 30)]))

    assert half is not None
    assert (half.diverging_ranks, half.candidate_ranks) == ((), (0, 1, 2, 3)), (
        "half are no majority"
    )
    assert tie is not None
    assert (tie.diverging_ranks, tie.candidate_ranks) == ((), (0, 1, 2, 3))
    assert named(odd) == ("op_mismatch", (4,), "cause")


def test_waits_at_two_lines_of_the_program_are_two_places() -> None:
    first, second = at(12, "w1.wait"), at(15, "w2.wait")
    found = judge(*(blocked(one, "futex") for one in ranks([first, second, first, first])))

    assert found is not None
    assert "Ranks 0 2 3 are in wait at train.py:12" in found.summary
    assert "rank 1 is in wait at train.py:15" in found.summary
    assert (found.diverging_ranks, found.candidate_ranks) == ((), (0, 1, 2, 3)), (
        "each may wait for any peer"
    )


def test_waits_at_two_lines_of_a_library_are_one_place() -> None:
    lines = (2990, 3000, 3010)
    places = [stack("train.py:1 main", f"{C10D}:{line} all_reduce") for line in lines]

    assert named(judge(*ranks(places)))[:2] == ("stalled", ())


def test_a_pair_in_two_calls_is_a_tie() -> None:
    found = judge(*ranks([BACKWARD, REDUCE]))

    assert found is not None
    assert (found.diverging_ranks, found.candidate_ranks) == ((), (0, 1))


@pytest.mark.parametrize(
    "places",
    [
        [REDUCE, elsewhere(5), REDUCE],
        [REDUCE, elsewhere(5), elsewhere(7)],
        [REDUCE] * 3,
        [BACKWARD, BACKWARD, REDUCE],
        [LOCK] * 3,
    ],
)
def test_what_a_late_rank_explains_as_well_is_latent_until_it_has_lasted(
    places: Sequence[Any],
) -> None:
    short, long = judge(*ranks(places), gap=2.0), judge(*ranks(places), gap=10.0)

    assert short is not None
    assert (short.role, short.diverging_ranks, short.is_open) == ("latent", (), True)
    assert long is not None
    assert (long.role, long.is_open) == ("cause", False)
    assert (short.seen_seconds, long.seen_seconds) == (2.0, 10.0)


def test_opposite_collectives_are_no_lateness() -> None:
    assert named(judge(*ranks([REDUCE, REDUCE, GATHER]), gap=2.0)) == (
        "op_mismatch",
        (2,),
        "cause",
    )


@pytest.mark.parametrize(
    ("op", "last", "status"),
    [
        ("broadcast", "socket.py:294 socket.accept", "unknown"),
        ("broadcast", "selectors.py:468 EpollSelector.select", "unknown"),
        ("broadcast", "socket.py:718 SocketIO.readinto", "hung"),
        ("all_reduce", "socket.py:294 socket.accept", "hung"),
    ],
)
def test_a_rank_that_waits_for_a_request_may_have_nothing_to_broadcast(
    op: str, last: str, status: str
) -> None:
    serving = stack("serve.py:1 <module>", "serve.py:9 main", last)
    waiting = [worker(rank, in_collective(op, 12)) for rank in (1, 2)]

    verdict = judged(worker(0, serving), *waiting, gap=12.0)

    assert verdict.status == status


def test_ranks_of_other_hosts_may_be_the_late_ones() -> None:
    seen = [replace(one, world_size=8) for one in ranks([REDUCE, REDUCE, GATHER])]
    found = judge(*seen, gap=2.0)

    assert found is not None
    assert found.role == "latent"


def test_ranks_asleep_are_at_rest_and_ranks_that_all_wait_for_locks_are_not() -> None:
    asleep = [blocked(one, "sleep") for one in ranks([elsewhere(5)] * 3)]
    rest, stuck = judge(*asleep), judge(*ranks([LOCK, LOADER, LOCK]))

    assert rest is not None
    assert (rest.kind, rest.role, rest.is_open) == ("stalled", "latent", False)
    assert stuck is not None
    assert (stuck.role, stuck.diverging_ranks, stuck.candidate_ranks) == ("cause", (), (0, 1, 2))


def test_of_a_job_that_has_mostly_ended_nobody_is_named() -> None:
    gone = [replace(one, samples=(ProcessSample("Z"),) * 2) for one in ranks([REDUCE] * 3)[1:]]
    found = judge(worker(0, REDUCE), *gone)

    assert found is not None
    assert (found.diverging_ranks, found.candidate_ranks) == ((), (1, 2, 0))


def test_whatever_ranks_do_is_judged_and_a_majority_is_never_blamed() -> None:
    """All places that these tests know, drawn at random."""
    draw = random.Random(7)
    places = [REDUCE, GATHER, BACKWARD, FORWARD, GROUP, LOADER, LOCK, elsewhere(5), (), at(5)]
    for _ in range(1000):
        seen = [
            worker(
                rank,
                draw.choice(places),
                *draw.choices(places, k=draw.choice((0, 0, 1))),
                state=draw.choice("SSSSSSTZR"),
                cpu=draw.choice((0.0, 0.0, 0.0, 1.0)),
                world_size=draw.choice((0, 8)),
            )
            for rank in range(draw.randint(1, 6))
        ]
        found = judge(*seen, gap=draw.choice((0.0, 2.0, 10.0, 40.0)))
        if found is None:
            continue
        assert found.confidence in ("likely", "ambiguous")
        assert not (set(found.diverging_ranks) & set(found.candidate_ranks))
        states = {one.samples[-1].state for one in seen}
        if not states & set("TZ"):
            assert 2 * len(found.diverging_ranks) <= len(seen), found


def test_a_rank_that_waits_for_a_key_of_its_waiting_peers_is_not_blamed() -> None:
    """Any of them may have to set the key."""
    at_store = blocked(worker(1, at(5, "self.store.wait")), "poll")
    found = judge(worker(0, REDUCE), at_store, worker(2, REDUCE))

    assert named(found) == ("not_joined", (), "cause")
    assert found is not None
    assert found.candidate_ranks == (0, 1, 2)
