"""What is left of records: wrapped rings, windows, frames of all spellings, bare traces."""

from __future__ import annotations

from typing import Any

from ncclscope.ring import layout
from tests.corpus.registry import Labelled, case, planted, with_site
from tests.corpus.truth import HEALTHY, LIKELY, UNDECIDED, Truth
from tests.corpus.workload import Workload
from tests.corpus.writers import DUMPS, RECORDS

PAIRS = {"tp:0": (0, 1), "tp:1": (2, 3)}
JSONL = ("jsonl",)
SMALL = layout.MIN_CAPACITY


def traffic(job: Workload, steps: int) -> None:
    """Post steps in which the groups differ in traffic."""
    for step in range(steps):
        job.post(job.everybody, "all_reduce", 4 + step % 3)
        job.post((0, 1) * 3, "all_reduce", 4, 2, group="tp:0")
        job.post((2, 3), "all_reduce", 4, 2, group="tp:1")


@case(
    "healthy: old calls are overwritten, each rank keeps another stretch",
    groups=PAIRS,
    formats=("rings", *DUMPS),
    capacity=SMALL,
    keep=32,
)
def wrapped(job: Workload) -> Labelled:
    traffic(job, 700)
    return HEALTHY


@case(
    "old calls are overwritten, and rank 0 posts another operation",
    groups=PAIRS,
    formats=("rings", *DUMPS),
    capacity=SMALL,
    keep=32,
)
def wrapped_and_other_op(job: Workload) -> Labelled:
    traffic(job, 700)
    seq = job.next()
    job.post((1, 2, 3), "all_reduce", 4, 2)
    job.post((0,), "all_gather", 4, 2)
    return planted("op_mismatch", (0,), groups=("world",), seqs=(seq,))


@case(
    "old calls are overwritten, and rank 2 is absent",
    groups=PAIRS,
    formats=("rings", *DUMPS),
    capacity=SMALL,
    keep=32,
)
def wrapped_and_absent(job: Workload) -> Labelled:
    traffic(job, 700)
    seq = job.next()
    job.post(job.but(2), "all_reduce", 4, 2)
    return planted("not_joined", (2,), groups=("world",), seqs=(seq,))


@case(
    "old calls are overwritten, and rank 3 leaves a call out and goes on",
    groups=PAIRS,
    formats=("rings", *DUMPS),
    capacity=SMALL,
    keep=32,
)
def wrapped_and_left_out(job: Workload) -> Labelled:
    traffic(job, 700)
    seq = job.next() + 1
    for number in range(6):
        op = ("all_reduce", "all_gather", "reduce_scatter")[number % 3]
        job.post(job.rest if number == 1 else job.everybody, op, 8 * (1 + number))
    return planted("missing_call", (3,), groups=("world",), seqs=(seq,), extent=1)


@case(
    "healthy: windows of the last 48 calls, unequal traffic", groups=PAIRS, formats=JSONL, keep=48
)
def window(job: Workload) -> Labelled:
    traffic(job, 700)
    return UNDECIDED


@case(
    "windows of the last 48 calls, and rank 3 posts another operation",
    groups=PAIRS,
    formats=JSONL,
    keep=48,
)
def window_and_other_op(job: Workload) -> Labelled:
    traffic(job, 700)
    job.post(job.rest, "all_reduce", 4, 2)
    job.post((3,), "all_gather", 4, 2)
    return planted("op_mismatch", (3,), groups=("world",))


@case("windows of the last 60 calls, and rank 3 leaves a call out", formats=JSONL, keep=60)
def window_and_left_out(job: Workload) -> Labelled:
    for number in range(100):
        op = ("all_reduce", "all_gather", "reduce_scatter")[number % 3]
        job.post(job.rest if number == 90 else job.everybody, op, 8 * (1 + number % 7))
    return planted("missing_call", (3,), groups=("world",), extent=1)


@case("bare traces: rank 3 posts another operation", formats=JSONL, bare=True)
def bare_and_other_op(job: Workload) -> Labelled:
    job.steps()
    seq = job.next()
    job.post(job.rest, "all_reduce", 64)
    job.post((3,), "broadcast", 64, root=0)
    return planted("op_mismatch", (3,), groups=("world",), seqs=(seq,))


@case("bare traces: rank 3 leaves a call out and goes on", formats=JSONL, bare=True)
def bare_and_left_out(job: Workload) -> Labelled:
    job.steps()
    seq = job.next() + 1
    for number in range(6):
        op = ("all_reduce", "all_gather", "reduce_scatter")[number % 3]
        job.post(job.rest if number == 1 else job.everybody, op, 8 * (1 + number))
    return planted("missing_call", (3,), groups=("world",), seqs=(seq,), extent=1)


@case(
    "bare traces: rank 3 is one call short, and nothing says for how long", formats=JSONL, bare=True
)
def bare_and_short(job: Workload) -> Labelled:
    job.steps()
    job.post(job.rest)
    return Truth(("ok", "unknown"), (), ("not_joined",))


@case("healthy: bare traces", sizes=(4, 2), formats=JSONL, bare=True)
def bare(job: Workload) -> Labelled:
    job.steps()
    return HEALTHY


@case(
    "healthy: some ranks know later than others what has completed",
    formats=DUMPS,
    rounds=9,
    quiet=0.01,
)
def seen_late(job: Workload) -> Labelled:
    job.steps(6)
    return UNDECIDED


# --- frames ---------------------------------------------------------------------------------------


def frames(*places: tuple[str, int, str]) -> list[dict[str, Any]]:
    """Return a stack, innermost frame first."""
    return [{"name": name, "filename": path, "line": line} for path, line, name in places]


ABSOLUTE = "/opt/venv/lib/python3.12/site-packages"
DEBIAN = "/usr/lib/python3/dist-packages"


def framed(job: Workload, odd: Any, majority: Any, site: str, user: str = "") -> Labelled:
    """Let rank 3 post another operation; each call has a stack of its own."""
    job.steps(1)
    seq = job.next()
    job.post(job.rest, "all_reduce", 64, frames=majority, site="train.py:20 step")
    job.post((3,), "broadcast", 64, root=0, frames=odd, site=site)
    return with_site(planted("op_mismatch", (3,), groups=("world",), seqs=(seq,)), site, user)


@case("frames of torch with absolute paths", formats=DUMPS)
def absolute_frames(job: Workload) -> Labelled:
    torch = f"{ABSOLUTE}/torch/distributed"
    inner = [
        (f"{torch}/distributed_c10d.py", 2806, "broadcast"),
        (f"{torch}/c10d_logger.py", 83, "wrapper"),
    ]
    outer = ("/job/main.py", 9, "<module>")
    return framed(
        job,
        frames(*inner, ("/job/train.py", 31, "evaluate"), outer),
        frames(*inner, ("/job/train.py", 20, "step"), outer),
        "train.py:31 evaluate",
    )


@case("frames of torch with relative paths", formats=DUMPS)
def relative_frames(job: Workload) -> Labelled:
    inner = [
        ("torch/distributed/distributed_c10d.py", 2806, "broadcast"),
        ("torch/distributed/c10d_logger.py", 83, "wrapper"),
    ]
    outer = ("main.py", 9, "<module>")
    return framed(
        job,
        frames(*inner, ("train.py", 31, "evaluate"), outer),
        frames(*inner, ("train.py", 20, "step"), outer),
        "train.py:31 evaluate",
    )


@case("frames of torch from a source tree and a distribution's packages", formats=DUMPS)
def frames_of_other_places(job: Workload) -> Labelled:
    source = "/home/you/pytorch/torch/distributed/distributed_c10d.py"
    logger = f"{DEBIAN}/torch/distributed/c10d_logger.py"
    outer = ("/job/main.py", 9, "<module>")
    inner = [(source, 2806, "broadcast"), (logger, 83, "wrapper")]
    return framed(
        job,
        frames(*inner, ("/job/torch_train.py", 31, "evaluate"), outer),
        frames(*inner, ("/job/torch_train.py", 20, "step"), outer),
        "torch_train.py:31 evaluate",
    )


@case("the program calls a framework, which calls torch", formats=DUMPS)
def frames_of_a_framework(job: Workload) -> Labelled:
    torch = f"{ABSOLUTE}/torch/distributed"
    inner = [
        (f"{torch}/distributed_c10d.py", 2806, "broadcast"),
        (f"{torch}/c10d_logger.py", 83, "wrapper"),
    ]
    outer = ("/job/main.py", 9, "<module>")
    gather = (f"{ABSOLUTE}/accelerate/accelerator.py", 3050, "gather")
    reduce = (f"{ABSOLUTE}/accelerate/accelerator.py", 3099, "reduce")
    return framed(
        job,
        frames(*inner, gather, ("/job/evaluate.py", 12, "evaluate"), outer),
        frames(*inner, reduce, ("/job/train.py", 20, "step"), outer),
        "accelerator.py:3050 gather",
        "evaluate.py:12 evaluate",
    )


@case("equal calls of lines known by relative frames; rank 3 leaves one out", formats=DUMPS)
def relative_frames_of_equal_calls(job: Workload) -> Labelled:
    def post(ranks: tuple[int, ...], line: int, name: str) -> None:
        stack = frames(
            ("torch/distributed/distributed_c10d.py", 3245, "all_reduce"),
            ("torch/distributed/c10d_logger.py", 83, "wrapper"),
            ("model.py", line, name),
        )
        job.post(ranks, frames=stack)

    seq = 0
    for number in range(6):
        post(job.everybody, 10, "first")
        if number == 2:
            seq = job.next()
        post(job.rest if number == 2 else job.everybody, 20, "second")
        post(job.everybody, 30, "third")
    post(job.rest, 40, "end")
    return planted({"missing_call": LIKELY}, (3,), groups=("world",), seqs=(seq,), extent=1)


@case("healthy: relative frames on some ranks, absolute ones on others", formats=DUMPS)
def mixed_frames(job: Workload) -> Labelled:
    for line in (10, 20, 10, 20):
        for rank in job.everybody:
            root = "" if rank % 2 else "/job/"
            stack = frames(
                ("torch/distributed/distributed_c10d.py", 3245, "all_reduce"),
                (f"{root}model.py", line, "layer"),
            )
            job.post((rank,), frames=stack)
    return HEALTHY


@case(
    "one rank of 16 leaves a call out in a program of many groups",
    sizes=(16,),
    groups={f"tp:{n}": tuple(range(4 * n, 4 * n + 4)) for n in range(4)},
    formats=(*RECORDS, *DUMPS),
)
def left_out_of_sixteen(job: Workload) -> Labelled:
    job.steps(2)
    seq = job.next("tp:2", 8) + 2
    for number in range(8):
        for label in ("tp:0", "tp:1", "tp:2", "tp:3"):
            members = [r for r in job.groups[label] if (r, number) != (9, 2)]
            op = ("all_reduce", "all_gather", "reduce_scatter")[number % 3]
            job.post(members, op, 8 * (1 + number), group=label)
        job.post(job.everybody, "all_reduce", 8)
    return planted("missing_call", (9,), groups=("tp:2",), seqs=(seq,), extent=1)
