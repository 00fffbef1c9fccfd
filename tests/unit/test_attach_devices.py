"""GPUs as evidence: values recorded on four H200s, and how evidence is weighed."""

from __future__ import annotations

from dataclasses import replace

from ncclscope.engine.processes.device_verdict import compare_gpus, gpu_of
from ncclscope.model.snapshot import Snapshot, Source
from ncclscope.readers.bundle import read_snapshot
from tests.support.snapshots import (
    DATA,
    elsewhere,
    gpus,
    in_collective,
    snapshot,
    verdict_of,
    worker,
)

REDUCE, GATHER = in_collective("all_reduce", 10), in_collective("all_gather", 15)


def recorded(name: str) -> Snapshot:
    return read_snapshot(DATA / f"h200_{name}.json")


def test_an_idle_gpu_among_spinning_ones_is_evidence() -> None:
    evidence = compare_gpus(recorded("sleep"))

    assert evidence is not None
    assert evidence.ranks == (2,)
    assert "ranks 0 1 3: kernels run and touch no memory (100 % busy, 0 % memory" in evidence.says


def test_where_all_spin_nobody_is_named() -> None:
    evidence = compare_gpus(recorded("mismatch"))

    assert evidence is not None
    assert (evidence.ranks, evidence.odd) == ((), True)


def test_gpus_at_work_name_nobody() -> None:
    evidence = compare_gpus(recorded("loop"))

    assert evidence is not None
    assert evidence.ranks == ()


def test_recorded_hangs_of_real_gpus_are_named() -> None:
    for name in ("sleep", "mismatch"):
        verdict = verdict_of(replace(recorded(name), gap=12.0))
        assert verdict.cause is not None
        assert verdict.cause.diverging_ranks == (2,), name
        assert verdict.cause.confidence == "likely"
        agreeing = {item.name for item in verdict.evidence if item.agrees}
        assert agreeing >= {"stacks", "ras"}
        assert ("gpu" in agreeing) == (name == "sleep")


def test_a_recorded_healthy_job_is_ok() -> None:
    verdict = verdict_of(recorded("loop"))

    assert (verdict.status, verdict.cause) == ("ok", None)


def test_a_gpu_decides_among_candidates() -> None:
    workers = [worker(rank, GATHER if rank > 1 else REDUCE) for rank in range(4)]
    verdict = verdict_of(snapshot(workers, gpus=gpus(100, 100, 100, 0)))

    assert verdict.cause is not None
    assert verdict.cause.diverging_ranks == (3,)
    assert any(line.startswith("gpu: ") for line in verdict.cause.evidence)


def test_evidence_that_contradicts_itself_singles_out_nobody() -> None:
    sources = (Source("stacks", True, "read"), Source("gpu", True, "read"))
    workers = [worker(rank, GATHER if rank == 2 else REDUCE) for rank in range(4)]
    verdict = verdict_of(snapshot(workers, gpus=gpus(100, 0, 100, 100), sources=sources))

    assert verdict.cause is not None
    assert verdict.cause.diverging_ranks == ()
    assert verdict.cause.candidate_ranks == (1, 2)
    assert verdict.cause.confidence == "ambiguous"
    assert "name different ranks" in verdict.cause.summary


def test_gpus_are_evidence_where_no_stack_can_be_read() -> None:
    workers = [replace(worker(rank, REDUCE), stacks=()) for rank in range(4)]
    verdict = verdict_of(snapshot(workers, gpus=gpus(100, 100, 0, 100)))

    assert verdict.cause is not None
    assert (verdict.cause.kind, verdict.cause.diverging_ranks) == ("not_joined", (2,))


def test_a_spin_of_a_job_that_moves_is_no_hang() -> None:
    workers = [worker(rank, elsewhere(3), elsewhere(4), cpu=1) for rank in range(4)]
    verdict = verdict_of(snapshot(workers, gpus=gpus(100, 100, 0, 100)))

    assert verdict.cause is None


def test_in_a_container_the_local_rank_gives_the_gpu() -> None:
    """NVML names pids of the host there, which are none of ours."""
    sample = gpus(1, 1, 1, 1)[0]
    environment = {"LOCAL_RANK": "1", "CUDA_VISIBLE_DEVICES": "2,3"}
    inside = replace(worker(7, REDUCE), pid=5, environment=environment)

    assert gpu_of(inside, sample) == 3
    assert gpu_of(replace(inside, environment={"LOCAL_RANK": "1"}), sample) == 1
    assert gpu_of(replace(inside, environment={"CUDA_VISIBLE_DEVICES": "2"}), sample) is None
    uuid = {"LOCAL_RANK": "0", "CUDA_VISIBLE_DEVICES": "GPU-1b2c"}
    assert gpu_of(replace(inside, environment=uuid), sample) is None
