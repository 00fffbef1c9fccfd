"""One call whose parameters differ, and programs in which they may."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tests.corpus.registry import Labelled, case, planted, singled
from tests.corpus.truth import CERTAIN, HEALTHY, LIKELY
from tests.corpus.workload import Workload
from tests.corpus.writers import RECORDS

PAIRS = {"tp:0": (0, 1), "tp:1": (2, 3)}
ROWS = ((1, 2, 0, 3), (0, 0, 4, 1), (2, 2, 2, 2), (0, 5, 0, 0))
"""What each rank of an uneven exchange sends to each."""


def differs(
    job: Workload, kind: str, odd: Mapping[str, Any], majority: Mapping[str, Any] | None = None
) -> Labelled:
    """Post one call that the last rank posts with other parameters."""
    job.steps()
    seq = job.next()
    common = {"op": "all_reduce", "shape": (256,), **(majority or {})}
    for ranks, call in ((job.rest, common), ((job.odd,), common | dict(odd))):
        more = {key: value for key, value in call.items() if key not in ("op", "shape")}
        job.post(ranks, call["op"], *call["shape"], **more)
    return singled(job, kind, groups=("world",), seqs=(seq,))


@case("the last rank posts another operation", sizes=(4, 2))
def other_op(job: Workload) -> Labelled:
    return differs(job, "op_mismatch", {"op": "broadcast", "root": 0})


@case("the last rank posts another size", sizes=(4, 2))
def other_size(job: Workload) -> Labelled:
    return differs(job, "size_mismatch", {"shape": (128,)})


@case("the last rank posts another element type", sizes=(4, 2))
def other_dtype(job: Workload) -> Labelled:
    return differs(job, "dtype_mismatch", {"dtype": "bfloat16"})


@case("the last rank reduces by another operator", sizes=(4, 2), formats=RECORDS)
def other_redop(job: Workload) -> Labelled:
    return differs(job, "redop_mismatch", {"redop": "max"})


@case("the last rank broadcasts from another root", sizes=(4, 2), formats=RECORDS)
def other_root(job: Workload) -> Labelled:
    return differs(job, "root_mismatch", {"root": 1}, {"op": "broadcast", "root": 0})


@case("the last rank captures a call that its peers carry out", sizes=(4, 2), formats=RECORDS)
def captured_alone(job: Workload) -> Labelled:
    truth = differs(job, "capture_mismatch", {"captured": True})
    job.post(job.everybody, "all_gather", 4, 2)
    return truth


@case("rank 3 of 16 posts another operation", sizes=(16,))
def other_op_of_sixteen(job: Workload) -> Labelled:
    job.steps()
    seq = job.next()
    job.post(job.but(3), "all_reduce", 256)
    job.post((3,), "broadcast", 256, root=0)
    return planted("op_mismatch", (3,), groups=("world",), seqs=(seq,))


@case("rank 3 posts what comes next in the program, of another size, and all stop there")
def next_op(job: Workload) -> Labelled:
    job.steps()
    seq = job.next()
    job.post(job.rest, "all_reduce", 256)
    job.post((3,), "all_gather", 256)
    # It may have left the all_reduce out; nothing that follows says so.
    kinds = {"op_mismatch": CERTAIN, "missing_call": LIKELY}
    return planted(kinds, (3,), groups=("world",), seqs=(seq,))


@case("two ranks of four post another size: there is no majority")
def two_against_two(job: Workload) -> Labelled:
    job.steps()
    seq = job.next()
    job.post((0, 2), "all_reduce", 256)
    job.post((1, 3), "all_reduce", 128)
    return planted("size_mismatch", candidates=job.everybody, groups=("world",), seqs=(seq,))


@case("gloo: the last rank posts another operation", backend="gloo")
def other_op_on_gloo(job: Workload) -> Labelled:
    return differs(job, "op_mismatch", {"op": "broadcast", "root": 0})


@case("ranks 2 and 3 are at odds in their pair, 0 and 1 wait in the world", groups=PAIRS)
def waiting_for_a_pair(job: Workload) -> Labelled:
    job.steps()
    seq = job.next("tp:1", 2)
    job.post((0, 1), "all_reduce", 4, 2, group="tp:0")
    job.post((2,), "all_reduce", 4, 2, group="tp:1")
    job.post((3,), "all_gather", 4, 2, group="tp:1")
    job.post((0, 1), "all_reduce", 6)
    # The other pair posted an all_reduce there: that is what the program does.
    return planted("op_mismatch", (3,), groups=("tp:1",), seqs=(seq,))


@case("an all_gather of 4 rows has room for 99 on one rank")
def other_output(job: Workload) -> Labelled:
    job.steps()
    seq = job.next()
    room = 4 * job.size
    job.post(job.rest, "all_gather", 4, out_shape=(room,))
    job.post((job.odd,), "all_gather", 4, out_shape=(99,), unfit=True)
    return planted("size_mismatch", (job.odd,), groups=("world",), seqs=(seq,))


@case("an all_gather of 4 rows has room for 99 on all ranks", sizes=(4, 2))
def other_output_everywhere(job: Workload) -> Labelled:
    job.steps()
    seq = job.next()
    job.post(job.everybody, "all_gather", 4, out_shape=(99,), unfit=True)
    return planted("size_mismatch", job.everybody, groups=("world",), seqs=(seq,))


@case("the last rank gathers with other sizes per member", sizes=(4, 2))
def other_gather_sizes(job: Workload) -> Labelled:
    job.steps()
    seq = job.next()
    rows = (4, 4, 2, 6)[: job.size]
    for rank in job.everybody:
        sizes = (*rows[:-2], rows[-1], rows[-2]) if rank == job.odd and job.size > 2 else rows
        if rank == job.odd and job.size == 2:
            sizes = (4, 6)
        job.post((rank,), "all_gatherv", rows[rank], 2, sizes=sizes)
    return singled(job, "split_mismatch size_mismatch", groups=("world",), seqs=(seq,))


def exchange(job: Workload, *, fits: bool) -> int:
    """Post uneven exchanges, the last of which may not fit; return its number."""
    job.steps()
    for turn in range(3):
        last = turn == 2
        seq = job.next()
        for rank in job.everybody:
            expected = [ROWS[peer][rank] for peer in job.everybody]
            if last and not fits and rank != 2:
                expected[2] += 1
            own = ROWS[rank]
            job.post(
                (rank,),
                "all_to_all",
                sum(own),
                3,
                sizes=own,
                out_sizes=tuple(expected),
                unfit=last and not fits,
            )
        if fits:
            job.post(job.everybody)
    return seq


@case("rank 2 sends fewer rows to each than its peers expect", formats=RECORDS)
def other_splits(job: Workload) -> Labelled:
    seq = exchange(job, fits=False)
    return planted("split_mismatch", (2,), groups=("world",), seqs=(seq,))


@case(
    "in an exchange of two, one sends what the other does not expect", sizes=(2,), formats=RECORDS
)
def other_splits_of_two(job: Workload) -> Labelled:
    job.steps()
    seq = job.next()
    job.post((0,), "all_to_all", 5, 3, sizes=(2, 3), out_sizes=(2, 4), unfit=True)
    job.post((1,), "all_to_all", 8, 3, sizes=(4, 4), out_sizes=(2, 4), unfit=True)
    return planted("split_mismatch", candidates=(0, 1), groups=("world",), seqs=(seq,))


# --- healthy ----------------------------------------------------------------------------------


@case("healthy: each pair does something else", groups=PAIRS)
def pairs_differ(job: Workload) -> Labelled:
    job.steps()
    job.post((0, 1), "all_reduce", 4, group="tp:0", redop="sum")
    job.post((2, 3), "all_gather", 8, group="tp:1", dtype="bfloat16")
    job.post((0, 1), "all_reduce", 4, group="tp:0", redop="max")
    job.post((2, 3), "broadcast", 8, group="tp:1", root=1)
    job.post(job.everybody)
    return HEALTHY


@case("healthy: roots, operators and types change from call to call", sizes=(4, 2))
def changing_parameters(job: Workload) -> Labelled:
    for turn in range(6):
        job.post(job.everybody, "broadcast", 8 + turn, root=turn % job.size)
        job.post(job.everybody, "all_reduce", 8, redop=("sum", "max", "min")[turn % 3])
        job.post(job.everybody, "all_reduce", 8, dtype=("float32", "bfloat16")[turn % 2])
    return HEALTHY


@case("healthy: uneven all_to_all")
def uneven_exchange(job: Workload) -> Labelled:
    exchange(job, fits=True)
    return HEALTHY


@case("healthy: uneven all_gather")
def uneven_gather(job: Workload) -> Labelled:
    job.steps()
    for turn in range(4):
        rows = tuple(1 + (rank + turn) % 3 for rank in job.everybody)
        for rank in job.everybody:
            job.post((rank,), "all_gatherv", rows[rank], 2, sizes=rows)
        job.post(job.everybody)
    return HEALTHY


@case("healthy: outputs of another shape than the input, as they should be", sizes=(4, 2))
def shaped_outputs(job: Workload) -> Labelled:
    for rows in (4, 8, 12):
        job.post(job.everybody, "all_gather", rows, 2, out_shape=(rows * job.size, 2))
        job.post(job.everybody, "all_gather", rows, 2, out_shape=(job.size, rows, 2))
        job.post(job.everybody, "reduce_scatter", rows, 2, out_shape=(rows // job.size, 2))
    return HEALTHY


@case("healthy: all ranks capture the same calls", sizes=(4, 2), formats=RECORDS)
def captured_by_all(job: Workload) -> Labelled:
    job.steps()
    job.post(job.everybody, "all_reduce", 256, captured=True)
    job.post(job.everybody, "all_gather", 256, captured=True)
    job.steps(1)
    return HEALTHY
