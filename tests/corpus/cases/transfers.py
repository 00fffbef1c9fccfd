"""Sends and receives: halves of a pair, pipelines, exchanges in a ring."""

from __future__ import annotations

from tests.corpus.registry import Labelled, case, planted
from tests.corpus.truth import HEALTHY, LIKELY, UNDECIDED
from tests.corpus.workload import Workload

STATUS = ("diverged", "hung")


def transfers(job: Workload, count: int) -> None:
    """Post sends and receives between two of the ranks."""
    job.steps(1)
    for _ in range(count):
        job.post((0,), "send", 3, peer=1, site="pipe.py:5 forward")
        job.post((1,), "recv", 3, peer=0, site="pipe.py:9 forward")
        job.post(job.everybody)


@case("rank 0 sends what rank 1 does not receive", sizes=(4, 2))
def send_alone(job: Workload) -> Labelled:
    transfers(job, 3)
    job.post((0,), "send", 3, peer=1, site="pipe.py:5 forward", waits=True)
    return planted("p2p_mismatch", candidates=(0, 1), groups=("world",), status=STATUS)


@case("rank 1 waits to receive what rank 0 does not send", sizes=(4, 2))
def receive_alone(job: Workload) -> Labelled:
    transfers(job, 3)
    job.post((1,), "recv", 3, peer=0, site="pipe.py:9 forward", waits=True)
    return planted("p2p_mismatch", candidates=(0, 1), groups=("world",), status=STATUS)


@case("rank 0 sends more than rank 1 expects", sizes=(4, 2))
def other_transfer_size(job: Workload) -> Labelled:
    transfers(job, 3)
    job.post((0,), "send", 5, peer=1)
    job.post((1,), "recv", 3, peer=0)
    return planted("p2p_mismatch", candidates=(0, 1), groups=("world",), status=STATUS)


@case("rank 0 sends to rank 2 what rank 1 waits for")
def misdirected(job: Workload) -> Labelled:
    transfers(job, 3)
    job.post((0,), "send", 3, peer=2, waits=True)
    job.post((1,), "recv", 3, peer=0, waits=True)
    return planted({"p2p_mismatch": LIKELY}, (0,), groups=("world",), status=STATUS)


@case("all ranks send to the next before they receive from the one before", sizes=(4, 2))
def ring_of_sends(job: Workload) -> Labelled:
    job.steps()
    for rank in job.everybody:
        to, source = (rank + 1) % job.size, (rank - 1) % job.size
        job.post((rank,), "send", 8, peer=to, waits=True)
        job.post((rank,), "recv", 8, peer=source, waits=True)
    return planted(
        "p2p_mismatch order_cycle stalled",
        candidates=job.everybody,
        groups=("world",),
        status=STATUS,
    )


def pipeline(job: Workload, batches: dict[int, int]) -> None:
    """Let stages pass microbatches on, each forward and then each backward."""
    last = job.size - 1
    for rank in job.everybody:
        count = batches.get(rank, 4)
        for _ in range(count):
            if rank:
                job.post((rank,), "recv", 16, peer=rank - 1, site="stage.py:12 forward", waits=True)
            if rank < last:
                job.post((rank,), "send", 16, peer=rank + 1, site="stage.py:18 forward", waits=True)
        for _ in range(count):
            if rank < last:
                job.post((rank,), "recv", 8, peer=rank + 1, site="stage.py:25 backward", waits=True)
            if rank:
                job.post((rank,), "send", 8, peer=rank - 1, site="stage.py:31 backward", waits=True)
    job.post(job.everybody, "all_reduce", 64, site="train.py:60 step")


@case("stage 1 of four runs one microbatch less than its neighbours")
def short_stage(job: Workload) -> Labelled:
    pipeline(job, {1: 3})
    return planted({"p2p_mismatch": LIKELY}, (1,), groups=("world",), status=STATUS)


@case("stage 2 of four runs one microbatch less than its neighbours")
def short_middle_stage(job: Workload) -> Labelled:
    pipeline(job, {2: 3})
    return planted({"p2p_mismatch": LIKELY}, (2,), groups=("world",), status=STATUS)


@case("stage 2 of four runs one microbatch more than its neighbours")
def long_stage(job: Workload) -> Labelled:
    pipeline(job, {2: 5})
    return planted({"p2p_mismatch": LIKELY}, (2,), groups=("world",), status=STATUS)


@case("of two stages, one runs one microbatch less", sizes=(2,))
def short_stage_of_two(job: Workload) -> Labelled:
    pipeline(job, {1: 3})
    return planted("p2p_mismatch not_joined", candidates=(0, 1), groups=("world",), status=STATUS)


@case("healthy: sends and receives between two of the ranks", sizes=(4, 2))
def healthy_transfers(job: Workload) -> Labelled:
    transfers(job, 3)
    return HEALTHY


@case("healthy: a pipeline of stages", sizes=(4, 2))
def healthy_pipeline(job: Workload) -> Labelled:
    pipeline(job, {})
    return HEALTHY


@case("healthy: a pipeline, taken from the running job", rounds=6, quiet=0.05)
def running_pipeline(job: Workload) -> Labelled:
    pipeline(job, {})
    return UNDECIDED


@case("healthy: an exchange in a ring, each in one NCCL group", sizes=(4, 2))
def healthy_ring(job: Workload) -> Labelled:
    job.steps(1)
    for turn in range(3):
        batch = job.batch()
        for rank in job.everybody:
            to, source = (rank + 1) % job.size, (rank - 1) % job.size
            job.post((rank,), "send", 8 + turn, peer=to, batch=batch)
            job.post((rank,), "recv", 8 + turn, peer=source, batch=batch)
        job.post(job.everybody)
    return HEALTHY
