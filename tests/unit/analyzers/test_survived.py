"""Differences after which all members went on: no cause of what hangs later."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ncclscope.engine.case import MOST_SURVIVED
from ncclscope.engine.verdict import diagnose
from ncclscope.engine.waits.order import AHEAD
from ncclscope.model import Finding
from tests.support.cluster import Cluster

ClusterOf = Callable[[int], Cluster]


def _layers(cluster: Cluster, count: int, without: Collection[int] = (), **fields: Any) -> None:
    """Gather and scatter in each layer; some ranks do not record the gathering."""
    for number in range(count):
        shape = (10 + number % 7, 2)
        for rank in cluster.everybody:
            if rank not in without:
                cluster.post([rank], "dp:0", "all_gather", shape=shape, **fields)
            cluster.post([rank], "dp:0", "reduce_scatter", shape=shape, **fields)


def _latent(cluster: Cluster) -> list[tuple[str, tuple[int, ...], int | None]]:
    return [
        (finding.kind, finding.diverging_ranks, finding.seq)
        for finding in cluster.verdict().findings
        if finding.role == "latent"
    ]


def _cause(cluster: Cluster) -> Finding:
    cause = cluster.verdict().cause
    assert cause is not None
    return cause


@pytest.mark.parametrize(
    ("posting", "text"),
    [
        ([0, 1, 3], "a call near #6 on dp:0 is not recorded, though its peers posted it"),
        ([2], "it alone recorded a call near #6 on dp:0, and all went on: the call was refused"),
    ],
)
def test_what_is_not_recorded_depends_on_who_has_more(
    cluster_of: ClusterOf, posting: list[int], text: str
) -> None:
    cluster = cluster_of(4)
    cluster.history("dp:0")
    cluster.post(posting, "dp:0", "all_gather")
    _layers(cluster, 5)

    (unseen,) = cluster.verdict().coverage.unseen

    assert unseen.startswith(f"rank 2: {text}")


def test_a_call_that_a_rank_did_not_record_is_no_cause(cluster_of: ClusterOf) -> None:
    cluster = cluster_of(4)
    cluster.history("dp:0")
    cluster.post([0, 1, 3], "dp:0", "all_gather")
    _layers(cluster, 5)

    verdict = cluster.verdict()

    assert verdict.cause is None
    (finding,) = verdict.findings
    assert (finding.kind, finding.role, finding.diverging_ranks) == ("missing_call", "latent", (2,))
    assert finding.seq == 6
    assert finding.confidence != "certain"
    assert "All members went on" in finding.summary


def test_the_search_goes_on_after_it_with_common_numbers(cluster_of: ClusterOf) -> None:
    """Rank 2 counts one call less than the others; rank 1 posts another operation later."""
    cluster = cluster_of(4)
    cluster.history("dp:0")
    cluster.post([0, 1, 3], "dp:0", "all_gather")
    _layers(cluster, 5)
    cluster.post([0, 2, 3], "dp:0", "broadcast", root=0, done=False)
    cluster.post([1], "dp:0", "all_gather", done=False)

    cause = _cause(cluster)

    assert (cause.kind, cause.diverging_ranks, cause.seq) == ("op_mismatch", (1,), 17)
    assert _latent(cluster) == [("missing_call", (2,), 6)]


def test_an_operation_that_a_rank_never_records_is_not_compared(cluster_of: ClusterOf) -> None:
    cluster = cluster_of(4)
    cluster.history("dp:0")
    _layers(cluster, 6, without=[2])
    cluster.post([0, 1, 3], "dp:0", "all_gather", done=False)
    cluster.post([2], "dp:0", "reduce_scatter", done=False)

    verdict = cluster.verdict()

    assert verdict.cause is None, "rank 2 may wait in the same call, which it does not record"
    assert verdict.findings[0].role == "latent"


def test_ranks_wait_for_one_that_really_is_missing_after_a_hole(cluster_of: ClusterOf) -> None:
    cluster = cluster_of(4)
    cluster.history("dp:0")
    cluster.post([0, 1, 3], "dp:0", "all_gather")
    _layers(cluster, 5)
    cluster.post([0, 1, 2], "dp:0", done=False)

    cause = _cause(cluster)

    assert (cause.kind, cause.diverging_ranks, cause.seq) == ("not_joined", (3,), 17)


def test_a_rank_with_a_hole_is_not_behind(cluster_of: ClusterOf) -> None:
    """By its own numbers it has posted one call less than those it waits with."""
    cluster = cluster_of(4)
    cluster.history("dp:0")
    cluster.post([0, 1, 3], "dp:0", "all_gather")
    _layers(cluster, 5)
    cluster.post(cluster.everybody, "dp:0", done=False)

    cause = _cause(cluster)

    assert (cause.kind, cause.diverging_ranks) == ("stalled", ())


def test_a_difference_that_nothing_completed_after_is_the_cause(cluster_of: ClusterOf) -> None:
    """Near miss: one member completed later calls, and another did not."""
    cluster = cluster_of(4)
    cluster.history("dp:0")
    cluster.post([0, 1, 3], "dp:0", "all_gather", done=False)
    cluster.post([2], "dp:0", "reduce_scatter", done=False)
    cluster.post([0, 1, 3], "dp:0", "broadcast", root=0)

    cause = _cause(cluster)

    assert (cause.kind, cause.diverging_ranks, cause.seq) == ("op_mismatch", (2,), 6)


def _wrong_redop(cluster: Cluster) -> None:
    cluster.history("dp:0")
    for rank in cluster.everybody:
        cluster.post([rank], "dp:0", redop="max" if rank == 2 else "sum")
    cluster.history("dp:0")


def test_wrong_data_without_a_hang_are_still_found(cluster_of: ClusterOf) -> None:
    cluster = cluster_of(4)
    _wrong_redop(cluster)

    cause = _cause(cluster)

    assert (cause.kind, cause.diverging_ranks, cause.seq) == ("redop_mismatch", (2,), 6)


def test_the_calls_around_wrong_data_are_shown(cluster_of: ClusterOf) -> None:
    cluster = cluster_of(4)
    _wrong_redop(cluster)

    shown = cluster.verdict().neighbourhood

    assert shown is not None
    assert [sorted(shown.calls[rank]) for rank in cluster.everybody] == [[*range(3, 10)]] * 4
    redops = [shown.calls[rank][6].redop for rank in cluster.everybody]
    assert redops == ["sum", "sum", "max", "sum"]


def test_wrong_data_are_not_the_cause_of_a_later_hang(cluster_of: ClusterOf) -> None:
    cluster = cluster_of(4)
    _wrong_redop(cluster)
    cluster.post([0, 1, 2], "dp:0", done=False)

    cause = _cause(cluster)

    assert (cause.kind, cause.diverging_ranks) == ("not_joined", (3,))
    assert _latent(cluster) == [("redop_mismatch", (2,), 6)]


# --- further differences ---------------------------------------------------------------------


def _post_apart(cluster: Cluster, rank: int, **fields: Any) -> None:
    """Post one call on all ranks, with other parameters on one of them, and calls that agree."""
    shape = fields.pop("shape", (4, 2))
    for number in cluster.everybody:
        cluster.post([number], "dp:0", shape=shape, **(fields if number == rank else {}))
    cluster.history("dp:0")


def _causes(cluster: Cluster) -> list[tuple[str, tuple[int, ...], int | None]]:
    findings = [one for one in cluster.verdict().findings if one.role == "cause"]
    return [(one.kind, one.diverging_ranks, one.seq) for one in findings]


def test_a_second_difference_with_wrong_data_is_a_finding_too(cluster_of: ClusterOf) -> None:
    cluster = cluster_of(4)
    _wrong_redop(cluster)
    _post_apart(cluster, 1, dtype="int32")

    first, second = cluster.verdict().findings

    assert (first.kind, first.diverging_ranks, first.seq) == ("redop_mismatch", (2,), 6)
    assert (second.kind, second.diverging_ranks, second.seq) == ("dtype_mismatch", (1,), 12)
    assert (second.role, second.confidence, second.survived) == ("cause", "certain", 5)
    assert "all calls after another difference, #6, and before #12 agree" in second.evidence[0]


def test_a_difference_in_the_next_call_is_exact(cluster_of: ClusterOf) -> None:
    cluster = cluster_of(4)
    cluster.history("dp:0")
    for rank in cluster.everybody:
        cluster.post([rank], "dp:0", redop="max" if rank == 2 else "sum")
    _post_apart(cluster, 1, dtype="int32")

    _, second = cluster.verdict().findings

    assert (second.diverging_ranks, second.seq, second.confidence) == ((1,), 7, "certain")
    assert "#7 follows another difference, #6" in second.evidence[0]


def test_a_difference_that_repeats_is_one_finding(cluster_of: ClusterOf) -> None:
    cluster = cluster_of(4)
    cluster.history("dp:0")
    for number in range(10):
        _post_apart(cluster, 2, redop="max", shape=(100 + number, 2))
    _post_apart(cluster, 1, dtype="int32")

    assert _causes(cluster) == [("redop_mismatch", (2,), 6), ("dtype_mismatch", (1,), 66)]


def test_the_number_of_further_differences_is_bounded(cluster_of: ClusterOf) -> None:
    cluster = cluster_of(4)
    cluster.history("dp:0")
    for number in range(12):
        _post_apart(cluster, 2, redop="max", site=f"model.py:{number} step")

    assert len(_causes(cluster)) == MOST_SURVIVED


def test_a_difference_that_not_all_completed_is_no_further_one(cluster_of: ClusterOf) -> None:
    """Near miss: the job waits in the second difference, which is the cause of the hang."""
    cluster = cluster_of(4)
    _wrong_redop(cluster)
    cluster.post([0, 2, 3], "dp:0", done=False)
    cluster.post([1], "dp:0", dtype="int32", done=False)

    assert _causes(cluster) == [("dtype_mismatch", (1,), 12)]
    assert _latent(cluster) == [("redop_mismatch", (2,), 6)]


# --- where the backend does not say what has completed ---------------------------------------


@pytest.mark.parametrize("layers", [200, AHEAD])
def test_on_nccl_more_launches_than_a_queue_holds_are_proof(tmp_path: Path, layers: int) -> None:
    cluster = Cluster(tmp_path, 4, capacity=8192)
    cluster.history("dp:0", backend="nccl", done=False)
    _layers(cluster, 1, without=[2], backend="nccl", done=False)
    _layers(cluster, layers, backend="nccl", done=False)

    verdict = cluster.verdict()

    if layers == AHEAD:
        assert verdict.cause is None
        assert [finding.role for finding in verdict.findings] == ["latent"]
        return
    assert verdict.cause is not None
    assert (verdict.cause.kind, verdict.cause.diverging_ranks) == ("missing_call", (2,))
    assert verdict.cause.confidence == "likely", "that many calls may have been survived"


def test_on_nccl_steps_of_the_engine_are_proof(cluster_of: ClusterOf) -> None:
    cluster = cluster_of(4)
    for step in range(6):
        for tracer in cluster.tracers:
            tracer.step(step, tokens=4)
        _layers(cluster, 2, without=[2] if step == 1 else [], backend="nccl", done=False)

    verdict = cluster.verdict()

    assert verdict.cause is None
    assert [finding.role for finding in verdict.findings] == ["latent"]


def test_on_nccl_a_skip_in_the_last_step_is_the_cause(cluster_of: ClusterOf) -> None:
    cluster = cluster_of(4)
    for step in range(6):
        for tracer in cluster.tracers:
            tracer.step(step, tokens=4)
        _layers(cluster, 2, without=[2] if step == 5 else [], backend="nccl", done=False)

    assert (_cause(cluster).kind, _cause(cluster).diverging_ranks) == ("missing_call", (2,))


def test_a_call_that_is_assumed_is_never_shown_as_recorded(cluster_of: ClusterOf) -> None:
    cluster = cluster_of(4)
    cluster.history("dp:0")
    _layers(cluster, 6, without=[2])
    cluster.post([0, 2, 3], "dp:0", "broadcast", root=0, done=False)
    cluster.post([1], "dp:0", "all_reduce", done=False)

    verdict = cluster.verdict()

    assert verdict.cause is not None
    assert (verdict.cause.kind, verdict.cause.diverging_ranks) == ("op_mismatch", (1,))
    assert verdict.neighbourhood is not None
    shown = verdict.neighbourhood.calls
    assert {call.op for call in shown[0].values()} == {"broadcast", "reduce_scatter"}
    assert {call.op for call in shown[2].values()} == {"broadcast", "reduce_scatter"}


def test_running_ranks_without_any_time_agree(cluster_of: ClusterOf) -> None:
    cluster = cluster_of(4)
    cluster.history()
    run = cluster.run(quiet=None)
    alive = tuple(replace(rank, alive=True) for rank in run.ranks)

    verdict = diagnose(replace(run, ranks=alive))

    assert verdict.status == "ok"
    assert "agree" in verdict.summary


def test_what_cannot_be_numbered_alike_is_not_called_agreement(cluster_of: ClusterOf) -> None:
    cluster = cluster_of(4)
    cluster.history("dp:0")
    for number in range(30):
        without = [2] if number % 3 == 0 else []
        ranks = [rank for rank in range(4) if rank not in without]
        cluster.post(ranks, "dp:0", shape=(100 + number, 2), done=number < 29)

    verdict = cluster.verdict()

    assert (verdict.status, verdict.cause) == ("unknown", None)
    assert "completed calls after it" in verdict.summary


@pytest.mark.parametrize(("size", "confidence"), [(4, "likely"), (2, "ambiguous")])
def test_an_order_that_the_job_survived_left_wrong_data(
    cluster_of: ClusterOf, size: int, confidence: str
) -> None:
    """Seen in vLLM with four NCCL ranks: the service went on, as if nothing had been."""
    cluster = cluster_of(size)
    cluster.history("dp:0", backend="nccl", done=False)
    for layer in range(6):
        for rank in cluster.everybody:
            ops = ["all_gather", "reduce_scatter"]
            for op in ops[::-1] if (rank, layer) == (1, 2) else ops:
                cluster.post([rank], "dp:0", op, backend="nccl")

    verdict = cluster.verdict()

    assert verdict.status == "diverged"
    assert verdict.cause is not None
    assert verdict.cause.kind == "op_mismatch"
    assert verdict.cause.diverging_ranks == ((1,) if size == 4 else ())
    assert verdict.cause.confidence == confidence
    assert "opposite order" in verdict.cause.summary


def test_agreement_is_not_claimed_of_a_call_in_which_ranks_differ(cluster_of: ClusterOf) -> None:
    cluster = cluster_of(4)
    cluster.history("dp:0")
    _layers(cluster, 8, without=[2])

    verdict = cluster.verdict()

    assert (verdict.status, verdict.cause) == ("unknown", None)
    assert "the ranks differ in call 6" in verdict.summary
    assert "All ranks agree" not in verdict.summary
