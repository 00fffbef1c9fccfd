"""Calls left out, put in, made elsewhere or in another order, and programs that look like it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from tests.corpus.registry import Labelled, case, planted, singled
from tests.corpus.truth import CERTAIN, HEALTHY, LIKELY, Truth
from tests.corpus.workload import Workload
from tests.corpus.writers import RECORDS

OPS = ("all_reduce", "all_gather", "broadcast")
EP = {"ep:0": (0, 1, 2, 3)}
GRID = {"tp:0": (0, 1), "tp:1": (2, 3), "dp:0": (0, 2), "dp:1": (1, 3)}
SURVIVED = ("missing_call", "op_mismatch")
"""What a hole looks like: reported as latent, since all went on."""
SKIPPED = "missing_call extra_call op_mismatch size_mismatch"


def turn(job: Workload, ranks: Iterable[int], number: int, **more: Any) -> None:
    """Post one of a row of calls, each of another size than its neighbours."""
    op = OPS[number % 3]
    options: dict[str, Any] = {"root": 0} if op == "broadcast" else {}
    job.post(ranks, op, 10 + number, 2, site=f"model.py:{20 + number} layer", **options, **more)


@case("the last rank leaves one call out and goes on", sizes=(4, 2))
def left_out(job: Workload) -> Labelled:
    job.steps()
    seq = job.next() + 2
    for number in range(8):
        turn(job, job.rest if number == 2 else job.everybody, number)
    if job.size == 2:
        return singled(job, SKIPPED, groups=("world",), seqs=(seq,))
    return singled(job, "missing_call", groups=("world",), seqs=(seq,), extent=1)


@case("the last rank leaves a block of four calls out and goes on", sizes=(4, 2))
def block_left_out(job: Workload) -> Labelled:
    job.steps()
    seq = job.next() + 4
    for number in range(16):
        turn(job, job.rest if 4 <= number < 8 else job.everybody, number)
    if job.size == 2:
        return singled(job, SKIPPED, groups=("world",), seqs=(seq,))
    return singled(job, "missing_call", groups=("world",), seqs=(seq,), extent=4)


@case("the last rank leaves out one round of four equal all_reduces and goes on")
def round_left_out(job: Workload) -> Labelled:
    seq = 0
    for step in range(8):
        for layer in range(4):
            ranks = job.rest if step == 5 else job.everybody
            if step == 5 and layer == 0:
                seq = job.next()
            job.post(ranks, "all_reduce", 64, site=f"layers.py:{40 + layer} reduce")
        job.post(job.everybody, "all_gather", 4, 2, site="train.py:44 gather")
    # One all_gather put in, and five calls short at the end, would fit as well.
    return planted({"missing_call": LIKELY}, (3,), groups=("world",), seqs=(seq,), extent=4)


@case("the last rank puts one call in and goes on", sizes=(4, 2))
def put_in(job: Workload) -> Labelled:
    job.steps()
    seq = job.next() + 2
    for number in range(8):
        if number == 2:
            job.post((job.odd,), "all_gather", 3, 2, site="model.py:90 debug")
        turn(job, job.everybody, number)
    if job.size == 2:
        return singled(job, SKIPPED, groups=("world",), seqs=(seq,))
    return singled(job, "extra_call", groups=("world",), seqs=(seq,), extent=1)


@case("the last rank leaves one call out, seen after thousands of equal ones", capacity=4096)
def left_out_late(job: Workload) -> Labelled:
    for number in range(2000):
        job.post(job.everybody, "all_reduce", 8 + number % 3, waits=number % 50 == 49)
    seq = job.next() + 2
    for number in range(8):
        turn(job, job.rest if number == 2 else job.everybody, number)
    return planted("missing_call", (3,), groups=("world",), seqs=(seq,), extent=1)


def equal_calls(job: Workload, turns: int, odd_turn: int) -> int:
    """Post equal calls from three lines, one of which the last rank passes by once."""
    seq = 0
    for number in range(turns):
        job.post(job.everybody, site="model.py:10 first")
        if number == odd_turn:
            seq = job.next()
        ranks = job.rest if number == odd_turn else job.everybody
        job.post(ranks, site="model.py:20 second")
        job.post(job.everybody, site="model.py:30 third")
    job.post(job.rest, site="model.py:40 end")
    return seq


@case(
    "the last rank leaves out one of many equal calls; the lines differ, ten calls before the end",
    sizes=(4, 2),
)
def equal_call_left_out(job: Workload) -> Labelled:
    seq = equal_calls(job, 6, 2)
    if job.size == 2:
        return planted(SKIPPED + " not_joined", candidates=(0, 1), seqs=(seq,))
    return planted({"missing_call": LIKELY}, (3,), groups=("world",), seqs=(seq,), extent=1)


@case("gloo: the last rank leaves out one of many equal calls; the lines differ", backend="gloo")
def equal_call_left_out_on_gloo(job: Workload) -> Labelled:
    seq = equal_calls(job, 6, 2)
    return planted({"missing_call": LIKELY}, (3,), groups=("world",), seqs=(seq,), extent=1)


@case("the last rank posts two neighbouring calls the other way round and goes on", sizes=(4, 2))
def neighbours_swapped(job: Workload) -> Labelled:
    job.steps()
    turn(job, job.everybody, 0)
    seq = job.next()
    job.post(job.rest, "all_gather", 8, 2, site="model.py:50 gather")
    job.post(job.everybody, "all_reduce", 16, 2, site="model.py:51 reduce")
    job.post((job.odd,), "all_gather", 8, 2, site="model.py:50 gather")
    for number in range(4, 8):
        turn(job, job.everybody, number)
    return singled(job, "op_mismatch", groups=("world",), seqs=(seq,))


@case(
    "the last rank posts two neighbouring calls the other way round, and all stop there",
    sizes=(4, 2),
    backend="gloo",
)
def neighbours_swapped_on_gloo(job: Workload) -> Labelled:
    job.steps()
    seq = job.next()
    job.post(job.rest, "all_gather", 8, 2, site="model.py:50 gather")
    job.post(job.everybody, "all_reduce", 16, 2, site="model.py:51 reduce")
    job.post((job.odd,), "all_gather", 8, 2, site="model.py:50 gather")
    if job.size == 2:
        return singled(job, SKIPPED, groups=("world",), seqs=(seq,))
    kinds = {"op_mismatch": CERTAIN, "missing_call": LIKELY}
    return singled(job, kinds, groups=("world",), seqs=(seq,))


@case("the last rank posts two blocks of two calls the other way round and goes on")
def blocks_swapped(job: Workload) -> Labelled:
    job.steps()
    seq = job.next()
    blocks = ((0, 1), (2, 3))
    for ranks, order in ((job.rest, blocks), ((job.odd,), blocks[::-1])):
        for block in order:
            for number in block:
                turn(job, ranks, number)
    for number in range(4, 10):
        turn(job, job.everybody, number)
    return planted("op_mismatch", (3,), groups=("world",), seqs=(seq,))


# --- the wrong communicator -----------------------------------------------------------------------


@case("rank 3 makes two calls on another communicator of the same ranks", groups=EP)
def other_communicator(job: Workload) -> Labelled:
    for _ in range(4):
        job.post(job.everybody, "all_reduce", 4)
        job.post(job.everybody, "all_gather", 2, group="ep:0")
    for step in range(6):
        odd = step in (1, 2)
        if step == 1:
            seqs = job.next("world"), job.next("ep:0")
        job.post((0, 1, 2), "all_reduce", 4)
        job.post((3,), "all_reduce", 4, group="ep:0" if odd else "world")
        job.post(job.everybody, "all_gather", 2, group="ep:0")
    return planted("comm_swap", (3,), groups=("world", "ep:0"), seqs=seqs)


@case("2 x 2 ranks: rank 3 makes one call of its tensor group on its data group", groups=GRID)
def other_communicator_of_grid(job: Workload) -> Labelled:
    def step(odd: bool) -> None:
        for rank in job.everybody:
            tp, dp = f"tp:{rank // 2}", f"dp:{rank % 2}"
            job.post((rank,), "all_reduce", 8, group=dp if odd and rank == 3 else tp)
            job.post((rank,), "all_gather", 4, group=tp)
            job.post((rank,), "all_reduce", 32, group=dp)

    for _ in range(4):
        step(False)
    seqs = job.next("tp:1", 3), job.next("dp:1", 3)
    step(True)
    for _ in range(3):
        step(False)
    return planted("comm_swap", (3,), groups=("tp:1", "dp:1"), seqs=seqs)


@case("2 x 2 ranks: rank 3 takes its two communicators for each other once", groups=GRID)
def communicators_swapped_in_grid(job: Workload) -> Labelled:
    def step(odd: bool) -> None:
        for rank in job.everybody:
            tp, dp = f"tp:{rank // 2}", f"dp:{rank % 2}"
            if odd and rank == 3:
                tp, dp = dp, tp
            job.post((rank,), "all_reduce", 8, group=tp)
            job.post((rank,), "all_gather", 4, group=dp)

    for _ in range(4):
        step(False)
    seqs = job.next("tp:1", 3), job.next("dp:1", 3)
    step(True)
    for _ in range(3):
        step(False)
    return planted("comm_swap", (3,), groups=("tp:1", "dp:1"), seqs=seqs)


@case("healthy: the groups of 2 x 2 ranks differ in traffic", groups=GRID)
def uneven_grid(job: Workload) -> Labelled:
    for step in range(6):
        for rank in job.everybody:
            tp, dp = f"tp:{rank // 2}", f"dp:{rank % 2}"
            for _ in range(1 + (rank // 2) * (step % 2)):
                job.post((rank,), "all_reduce", 8, group=tp)
            for _ in range(1 + (rank % 2)):
                job.post((rank,), "all_reduce", 32, group=dp)
    return HEALTHY


# --- order ----------------------------------------------------------------------------------------


def both_orders(job: Workload) -> Truth:
    """Let the last rank post two calls of two communicators the other way round."""
    for _ in range(4):
        job.post(job.everybody, "all_reduce", 4)
        job.post(job.everybody, "all_gather", 2, group="ep:0")
    seqs = job.next("world"), job.next("ep:0")
    job.post(job.rest, "all_reduce", 4)
    job.post(job.everybody, "all_gather", 2, group="ep:0")
    job.post((job.odd,), "all_reduce", 4)
    # In a pair, the rounds before show which of the two has changed its order. That calls run in
    # the order of posting is not recorded.
    truth = planted("order_cycle", (job.odd,), groups=("world", "ep:0"), seqs=seqs)
    return truth.capped(LIKELY)


@case("the last rank posts the calls of two communicators in the opposite order", groups=EP)
def opposite_order(job: Workload) -> Labelled:
    return both_orders(job)


@case(
    "in a pair, one posts the calls of two communicators in the opposite order",
    sizes=(2,),
    groups={"ep:0": (0, 1)},
)
def opposite_order_pair(job: Workload) -> Labelled:
    return both_orders(job)


@case(
    "rank 3 is in one communicator, its peers in another, and it never posted their call",
    groups=EP,
    backend="gloo",
)
def opposite_or_skipped(job: Workload) -> Labelled:
    for _ in range(4):
        job.post(job.everybody, "all_reduce", 4)
        job.post(job.everybody, "all_gather", 2, group="ep:0")
    seq = job.next("world")
    job.post(job.rest, "all_reduce", 4)
    job.post(job.everybody, "all_gather", 2, group="ep:0")
    job.post((job.odd,), "all_reduce", 4)
    return planted({"not_joined": LIKELY}, (3,), groups=("world",), seqs=(seq,))


@case(
    "in a pair, each is in another communicator and has not posted the other's call",
    sizes=(2,),
    groups={"ep:0": (0, 1)},
    backend="gloo",
)
def opposite_or_skipped_pair(job: Workload) -> Labelled:
    for _ in range(4):
        job.post(job.everybody, "all_reduce", 4)
        job.post(job.everybody, "all_gather", 2, group="ep:0")
    job.post((0,), "all_reduce", 4)
    job.post((1,), "all_gather", 2, group="ep:0")
    return planted("not_joined order_cycle", (1,), confidence=LIKELY)


@case(
    "healthy: two communicators in opposite order, each on a stream of its own",
    groups=EP,
    streams=True,
)
def opposite_order_on_streams(job: Workload) -> Labelled:
    job.steps()
    for _ in range(4):
        job.post(job.rest, "all_reduce", 4)
        job.post(job.everybody, "all_gather", 2, group="ep:0")
        job.post((job.odd,), "all_reduce", 4)
        job.post(job.everybody, "barrier")
    return HEALTHY


@case("rank 2 reorders the calls of one NCCL group: nothing hangs", formats=RECORDS)
def group_reordered(job: Workload) -> Labelled:
    job.steps()
    batch = job.batch()
    for rank in job.everybody:
        for rows in (3, 1, 2) if rank == 2 else (1, 2, 3):
            job.post((rank,), "all_gather", 4 * rows, 2, batch=batch)
    job.post(job.everybody)
    for rank in job.everybody:
        job.end(rank, "exit")
    return Truth(("ok",), (), ("group_order",))


@case("healthy: NCCL groups of several calls")
def grouped(job: Workload) -> Labelled:
    for _ in range(3):
        job.steps(1)
        batch = job.batch()
        for rows in (1, 2, 3):
            job.post(job.everybody, "all_gather", 4 * rows, 2, batch=batch)
    return HEALTHY


# --- holes ------------------------------------------------------------------------------------


def hole(job: Workload, turns: int) -> None:
    """Post calls that all complete, one kind of which the last rank's probe does not see."""
    for number in range(turns):
        job.post(job.everybody, "all_reduce", 8, 2, site="model.py:30 reduce")
        job.post(job.rest, "all_gather", 4, 2, site="model.py:40 gather")
        job.post((job.odd,), "all_gather", 4, 2, site="model.py:40 gather", silent=True)
        job.post(job.everybody, "reduce_scatter", 16, 2, site="model.py:50 scatter")
        if number % 10 == 9:
            job.post(job.everybody, "barrier", site="model.py:60 step")


@case(
    "a rank's probe misses one function; the job goes on for thousands of calls",
    formats=RECORDS,
    backend="gloo",
    capacity=4096,
)
def hole_survived(job: Workload) -> Labelled:
    hole(job, 800)
    return Truth(("ok", "unknown"), (), SURVIVED)


@case(
    "NCCL: a rank's probe misses one function; barriers complete for thousands of calls",
    formats=RECORDS,
)
def hole_survived_on_nccl(job: Workload) -> Labelled:
    hole(job, 800)
    return Truth(("ok", "unknown"), (), SURVIVED)


@case(
    "one call is missing in a rank's record; the job goes on for thousands of calls",
    formats=RECORDS,
    backend="gloo",
)
def single_hole_survived(job: Workload) -> Labelled:
    job.steps()
    turn(job, job.rest, 1)
    turn(job, (job.odd,), 1, silent=True)
    for number in range(2000):
        turn(job, job.everybody, number)
    return Truth(("ok", "unknown"), (), SURVIVED)


@case("the same, and much later rank 1 posts another operation", formats=RECORDS, backend="gloo")
def hole_and_fault(job: Workload) -> Labelled:
    hole(job, 200)
    job.post(job.but(1), "all_reduce", 4, 2)
    job.post((1,), "broadcast", 4, 2, root=0)
    return replace(planted("op_mismatch", (1,), groups=("world",)), latent=SURVIVED)


@case("the same, and much later rank 1 does not come", formats=RECORDS, backend="gloo")
def hole_and_absent(job: Workload) -> Labelled:
    hole(job, 200)
    job.post(job.but(1), "all_reduce", 4, 2)
    truth = planted("not_joined", (1,), groups=("world",), confidence=LIKELY)
    return replace(truth, latent=SURVIVED)


# --- healthy --------------------------------------------------------------------------------------


@case("healthy: rank 0 calls from other lines than its peers", sizes=(4, 2))
def lines_of_rank_0(job: Workload) -> Labelled:
    for _ in range(8):
        job.post((0,), "broadcast", 8, root=0, site="data.py:12 send")
        job.post(job.but(0), "broadcast", 8, root=0, site="data.py:15 receive")
        job.post(job.everybody, "all_reduce", 8, site="train.py:20 step")
    return HEALTHY


@case("rank 0 calls from other lines than its peers, and rank 3 does not come")
def lines_of_rank_0_and_absent(job: Workload) -> Labelled:
    for _ in range(8):
        job.post((0,), "broadcast", 8, root=0, site="data.py:12 send")
        job.post(job.but(0), "broadcast", 8, root=0, site="data.py:15 receive")
        job.post(job.everybody, "all_reduce", 8, site="train.py:20 step")
    seq = job.next()
    job.post((0,), "broadcast", 8, root=0, site="data.py:12 send")
    job.post((1, 2), "broadcast", 8, root=0, site="data.py:15 receive")
    return planted("not_joined", (3,), groups=("world",), seqs=(seq,))


@case("healthy: one replica has made fewer steps", groups={"tp:0": (0, 1), "tp:1": (2, 3)})
def uneven_replicas(job: Workload) -> Labelled:
    job.steps(2)
    for number in range(9):
        for label, members, count in (("tp:0", (0, 1), 9), ("tp:1", (2, 3), 6)):
            if number < count:
                turn(job, members, number, group=label)
    return HEALTHY


@case(
    "healthy: rank 0 saves a checkpoint on a group of its own",
    groups={"rank0": (0,), "half:0": (0, 1)},
)
def rank_0_saves(job: Workload) -> Labelled:
    for _ in range(4):
        job.steps(1)
        job.post((0,), "all_gather", 4, group="rank0", site="save.py:9 save")
        job.post((0,), "barrier", group="rank0", site="save.py:10 save")
    return HEALTHY


@case("healthy: equal calls from a loop over lines that all ranks pass alike", sizes=(4, 2))
def equal_calls_of_lines(job: Workload) -> Labelled:
    for number in range(8):
        for line in (10, 20, 30)[: 3 - number % 2]:
            job.post(job.everybody, site=f"model.py:{line} layer")
    return HEALTHY
