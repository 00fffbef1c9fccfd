"""Two faults in one run, and one fault that looks like two."""

from __future__ import annotations

from tests.corpus.registry import Labelled, case, in_records_and_dumps, planted
from tests.corpus.truth import CERTAIN, LIKELY
from tests.corpus.workload import Workload
from tests.corpus.writers import DUMPS, RECORDS

TP = {"tp:0": (0, 1, 2, 3), "tp:1": (4, 5, 6, 7)}


@case("rank 3 posts another operation while rank 1 is absent")
def absent_and_other_op(job: Workload) -> Labelled:
    job.steps()
    seq = job.next()
    job.post((0, 2), "all_reduce", 4)
    job.post((3,), "broadcast", 4, root=0)
    wrong = planted("op_mismatch", (3,), groups=("world",), seqs=(seq,))
    return wrong.also(planted("not_joined", (1,), groups=("world",), seqs=(seq,)))


@case("rank 3 of five posts another size while rank 1 was killed", sizes=(5,), formats=RECORDS)
def killed_and_other_size(job: Workload) -> Labelled:
    job.steps()
    seq = job.next()
    job.post((0, 2, 4), "all_reduce", 64)
    job.post((3,), "all_reduce", 32)
    job.end(1, "killed")
    wrong = planted("size_mismatch", (3,), groups=("world",), seqs=(seq,))
    return wrong.also(planted("dead_rank", (1,), groups=("world",), seqs=(seq,)))


@case(
    "rank 3 posts another size, and rank 1 was killed and left no dump", sizes=(5,), formats=DUMPS
)
def no_dump_and_other_size(job: Workload) -> Labelled:
    job.steps()
    seq = job.next()
    job.post((0, 2, 4), "all_reduce", 64)
    job.post((3,), "all_reduce", 32)
    job.end(1, "killed")
    # A dump that is lost and a rank that is dead look the same.
    wrong = planted("size_mismatch", (3,), groups=("world",), seqs=(seq,))
    return wrong.maybe(planted({"dead_rank": LIKELY}, (1,)))


@case("rank 1 and rank 6 are at fault, each in another group", sizes=(8,), groups=TP)
def each_in_its_group(job: Workload) -> Labelled:
    job.steps()
    seqs = job.next("tp:0", 0), job.next("tp:1", 4)
    job.post((0, 2, 3), "all_reduce", 4, group="tp:0")
    job.post((1,), "all_gather", 4, group="tp:0")
    job.post((4, 5, 7), "all_reduce", 4, group="tp:1")
    job.post((6,), "all_reduce", 9, group="tp:1")
    one = planted("op_mismatch", (1,), groups=("tp:0",), seqs=seqs[:1])
    return one.also(planted("size_mismatch", (6,), groups=("tp:1",), seqs=seqs[1:]))


@case(
    "rank 1 leaves a call of its group out, and rank 6 is absent from its own",
    sizes=(8,),
    groups=TP,
)
def skipped_and_absent(job: Workload) -> Labelled:
    job.steps()
    first = job.next("tp:0", 0)
    for number in range(6):
        op = ("all_reduce", "all_gather", "reduce_scatter")[number % 3]
        ranks = (0, 2, 3) if number == 2 else (0, 1, 2, 3)
        job.post(ranks, op, 8 * (1 + number), group="tp:0")
    second = job.next("tp:1", 4)
    job.post((4, 5, 7), "all_reduce", 4, group="tp:1")
    one = planted("missing_call", (1,), groups=("tp:0",), seqs=(first + 2,), extent=1)
    return one.also(planted("not_joined", (6,), groups=("tp:1",), seqs=(second,)))


@case(
    "rank 3 skipped the only call of a group, and rank 1 posts another operation in the world",
    groups={"ep:0": (0, 1, 2, 3)},
)
def skipped_without_a_record(job: Workload) -> Labelled:
    for number in range(4):
        job.post(job.everybody, "all_reduce", 8 + number, waits=True)
    job.post((0, 1, 2), "all_gather", 16, group="ep:0")
    seq = job.next()
    job.post((0, 2, 3), "all_reduce", 64)
    job.post((1,), "broadcast", 64, root=0)
    skipped = {"not_joined": LIKELY, "missing_call": LIKELY}
    wrong = planted("op_mismatch", (1,), groups=("world",), seqs=(seq,))
    return wrong.also(planted(skipped, (3,), groups=("ep:0",), seqs=(1,)))


@case("two ranks of six are absent", sizes=(6,))
def two_absent(job: Workload) -> Labelled:
    job.steps()
    seq = job.next()
    job.post(job.but(2, 5))
    return planted("not_joined", (2, 5), groups=("world",), seqs=(seq,))


@case("two ranks of eight post two different wrong operations", sizes=(8,))
def two_other_ops(job: Workload) -> Labelled:
    job.steps()
    seq = job.next()
    job.post(job.but(2, 5), "all_reduce", 8)
    job.post((2,), "reduce_scatter", 8)
    job.post((5,), "broadcast", 8, root=0)
    one = planted("op_mismatch", (2,), groups=("world",), seqs=(seq,))
    return one.also(planted("op_mismatch", (5,), groups=("world",), seqs=(seq,)))


@case(
    "rank 3 leaves a call out, and the calls that follow differ for that reason alone",
    sizes=(4,),
    groups={"tp:0": (0, 1), "tp:1": (2, 3)},
)
def one_that_looks_like_two(job: Workload) -> Labelled:
    job.steps()
    seq = job.next()
    job.post(job.rest, "all_gather", 6, 2)
    for number in range(4):
        job.post(job.everybody, "all_reduce", 20 + number)
        for label, members in (("tp:0", (0, 1)), ("tp:1", (2, 3))):
            job.post(members, "all_reduce", 4, group=label)
        job.post(job.everybody, "all_gather", 30 + number)
    return planted("missing_call", (3,), groups=("world",), seqs=(seq,), extent=1)


@case("rank 3 captures a call and later leaves one out", formats=RECORDS)
def captured_and_left_out(job: Workload) -> Labelled:
    job.steps()
    seq = job.next()
    job.post(job.rest, "all_reduce", 64)
    job.post((3,), "all_reduce", 64, captured=True)
    for number in range(4):
        job.post(job.rest if number == 1 else job.everybody, "all_gather", 8 + number)
    return planted("capture_mismatch", (3,), groups=("world",), seqs=(seq,))


@case(
    "rank 3 posts another operation, then all wait in another group for it",
    groups={"ep:0": (0, 1, 2, 3)},
)
def wrong_and_awaited(job: Workload) -> Labelled:
    job.steps()
    seq = job.next()
    job.post(job.rest, "all_reduce", 64)
    job.post((3,), "reduce_scatter", 64, waits=True)
    job.post(job.rest, "broadcast", 8, group="ep:0", root=0)
    return planted({"op_mismatch": CERTAIN}, (3,), groups=("world",), seqs=(seq,))


@case(
    "rank 3 dies before a call in the world, while 0 and 1 wait for it through 2",
    groups={"tp:0": (0, 1), "tp:1": (2, 3)},
)
def dead_behind_a_chain(job: Workload) -> Labelled:
    job.steps()
    seqs = job.next("tp:1", 2), job.next()
    job.post((2,), "all_reduce", 4, group="tp:1", waits=True)
    job.post((0, 1), "all_reduce", 4, group="tp:0")
    job.post((0, 1), "all_reduce", 8, waits=True)
    job.end(3, "killed")
    return in_records_and_dumps(
        planted("dead_rank", (3,), groups=("tp:1", "world"), seqs=seqs),
        planted({"dead_rank": LIKELY}, (3,), groups=("tp:1", "world"), seqs=seqs),
    )
