"""How long living ranks must have been quiet to be called hung, with and without a capture."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ncclscope.attach.session import Options, patience_for
from ncclscope.engine.verdict import Verdict, diagnose
from ncclscope.model import Run
from tests.support.cluster import Cluster
from tests.support.snapshots import (
    elsewhere,
    gpus,
    in_collective,
    snapshot,
    stack,
    verdict_of,
    worker,
)

SYNC = stack("train.py:1 <module>", "train.py:12 step", "torch/cuda/streams.py:200 synchronize")


def living(directory: Path, seconds: float) -> Run:
    """Rank 0 waits for rank 1; each gave its last sign of life so long after its last call."""
    cluster = Cluster(directory, 2)
    cluster.post((0, 1), "world")
    cluster.post((0,), "world", done=False)
    run = cluster.run()
    ranks = []
    for rank in run.ranks:
        call = rank.last_call()
        assert call is not None
        ranks.append(replace(rank, alive=True, last_seen_ns=call.time_ns + int(seconds * 1e9)))
    return replace(run, ranks=tuple(ranks))


@pytest.mark.parametrize(("seconds", "status"), [(10.5, "hung"), (9.0, "unknown")])
def test_one_threshold_counts_also_where_stacks_do_not_move(
    tmp_path: Path, seconds: float, status: str
) -> None:
    still = snapshot(
        [worker(0, in_collective("all_reduce", 10)), worker(1, elsewhere(12))], gap=2.0
    )

    verdict = diagnose(replace(living(tmp_path, seconds), snapshot=still))

    assert verdict.status == status


def test_below_the_threshold_waiting_ranks_are_named_and_nobody_hangs(tmp_path: Path) -> None:
    computes = worker(1, elsewhere(12), elsewhere(13), cpu=2.0, state="R")
    seen = snapshot([worker(0, in_collective("all_reduce", 10)), computes], gap=2.0)

    verdict = diagnose(replace(living(tmp_path, 5.0), snapshot=seen))

    assert (verdict.status, verdict.exit_status, verdict.cause) == ("unknown", 3, None)
    waits = verdict.findings[0]
    assert (waits.role, waits.candidate_ranks) == ("latent", (1,))
    assert "for 5 s now; a hang is reported from 10 s on" in verdict.summary


@pytest.mark.parametrize(
    ("seconds", "status"), [(1.0, "ok"), (5.0, "unknown"), (11.0, "hung"), (40.0, "hung")]
)
def test_without_a_capture_the_same_threshold_counts(
    tmp_path: Path, seconds: float, status: str
) -> None:
    assert diagnose(living(tmp_path, seconds)).status == status


@pytest.mark.parametrize(("gone", "status"), [(True, "hung"), (False, "unknown")])
def test_a_rank_that_is_gone_need_not_be_waited_for(
    tmp_path: Path, gone: bool, status: str
) -> None:
    run = living(tmp_path, 5.0)
    verdict = diagnose(replace(run, ranks=(run.ranks[0], replace(run.ranks[1], alive=not gone))))

    assert verdict.status == status
    if gone:
        cause = verdict.cause
        assert cause is not None
        assert (cause.kind, cause.diverging_ranks) == ("dead_rank", (1,))


# --- where the backend reports no completion -----------------------------------------------------


def resting(directory: Path, seconds: float = 40.0, *, swapped: bool = False) -> Run:
    """All ranks have posted the same on NCCL, one of them in another order where wanted."""
    cluster = Cluster(directory, 2)
    for rank in (0, 1):
        labels = ("ep:0", "tp:0") if swapped and rank else ("tp:0", "ep:0")
        for label in ("tp:0", "ep:0", *labels):
            cluster.post((rank,), label, done=False, backend="nccl")
    run = cluster.run(quiet=seconds)
    return replace(run, ranks=tuple(replace(rank, alive=True) for rank in run.ranks))


def attached_verdict(run: Run, *use: int) -> Verdict:
    """Return the verdict, where the host waits for the GPU, and the GPUs were so busy."""
    workers = [worker(rank, SYNC, switches=4000) for rank in range(2)]
    return diagnose(replace(run, snapshot=snapshot(workers, gpus=gpus(*use))))


def test_gpus_that_spin_give_a_stall_away(tmp_path: Path) -> None:
    verdict = attached_verdict(resting(tmp_path), 100, 100)

    cause = verdict.cause
    assert cause is not None
    assert (verdict.status, cause.kind, cause.diverging_ranks) == ("hung", "stalled", ())
    assert cause.candidate_ranks == (0, 1)
    assert cause.comm is None
    assert "judging by their load" in cause.inferred[0]


@pytest.mark.parametrize(("seconds", "use"), [(40.0, (100, 0)), (40.0, (0, 0)), (5.0, (100, 100))])
def test_one_at_rest_or_no_time_is_none(
    tmp_path: Path, seconds: float, use: tuple[int, int]
) -> None:
    assert attached_verdict(resting(tmp_path, seconds), *use).status == "unknown"


def test_gpus_at_rest_have_come_past_calls_in_another_order(tmp_path: Path) -> None:
    run = resting(tmp_path, swapped=True)

    assert attached_verdict(run, 0, 0).status == "unknown"
    cause = attached_verdict(run, 100, 100).cause
    assert cause is not None
    assert (cause.kind, cause.candidate_ranks) == ("order_cycle", (0, 1))


@pytest.mark.parametrize(
    ("more", "why"),
    [
        ({"started_cpu_seconds": 9.0}, "processes that it started took 90% of a core"),
        ({"io_bytes": 6_400_000}, "it read and wrote 6.4 MB"),
        ({"started_cpu_seconds": 0.5, "io_bytes": 60_000}, ""),
    ],
)
def test_a_rank_whose_child_computes_or_that_moves_files_may_be_late(
    more: dict[str, Any], why: str
) -> None:
    frames = (*elsewhere(12), *stack("python3.11/subprocess.py:1201 communicate"))
    saves = worker(1, frames)
    saves = replace(saves, samples=(saves.samples[0], replace(saves.samples[-1], **more)))

    verdict = verdict_of(snapshot([worker(0, in_collective("all_reduce", 10)), saves], gap=10.0))

    assert verdict.status == ("unknown" if why else "hung")
    if why:
        assert f"communicate (waits for a child process; {why}), and rank 0" in verdict.summary
        assert "late, or in an endless loop" in verdict.summary
        assert verdict.findings[0].candidate_ranks == (1,)


@pytest.mark.parametrize(("delayed", "share"), [(1.9, "95%"), (0.9, "")])
def test_ranks_in_a_stalled_call_may_wait_for_a_processor(
    tmp_path: Path, delayed: float, share: str
) -> None:
    cluster = Cluster(tmp_path, 2)
    cluster.history("world")
    cluster.post((0, 1), "world", done=False)
    workers = []
    for rank in range(2):
        one = worker(rank, in_collective("all_reduce", 10), state="R")
        late = replace(one.samples[-1], main_delayed_seconds=delayed)
        workers.append(replace(one, samples=(one.samples[0], late)))

    verdict = diagnose(replace(cluster.run(quiet=21.0), snapshot=snapshot(workers, gap=2.0)))

    assert verdict.cause is not None
    assert (verdict.cause.kind, verdict.cause.diverging_ranks) == ("stalled", ())
    texts = [*verdict.cause.inferred, *(one.says for one in verdict.evidence)]
    starved = [text for text in texts if "without a processor" in text]
    assert len(starved) == (2 if share else 0)
    assert all(f"ranks 0 1 were ready to run without a processor for {share}" in t for t in starved)


@pytest.mark.parametrize(("waiting", "patience"), [((0,), 10.0), ((0, 1), 0.0)])
def test_stacks_are_sampled_longer_where_the_rings_name_no_rank(
    tmp_path: Path, waiting: tuple[int, ...], patience: float
) -> None:
    everybody = (*waiting, len(waiting))
    cluster = Cluster(tmp_path, len(everybody))
    cluster.post(everybody, "world")
    cluster.post(waiting, "world", done=False)

    assert patience_for(cluster.run(), Options.of(None)) == patience
