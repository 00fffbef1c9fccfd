"""A mixture of experts over several real vLLM workers on the CPU: `make test-vllm`.

They share their experts over gloo: `NCCLSCOPE_VLLM_CPU_MOE=1` adds what vLLM's CPU build lacks for
that. However many workers there are, and whatever dispatches their tokens, the answers are those
of a single worker.
"""

from __future__ import annotations

import re
import time
from pathlib import Path

import pytest

from tests.integration.moe_serving import (
    ARGUMENTS,
    CPU_MOE,
    REST_SECONDS,
    STEP,
    Answers,
    assert_agreed,
    assert_in_step,
    assert_routed,
    assert_serves,
    ops,
    posted,
    rest,
    stop_an_engine,
    threads,
    traced,
)
from tests.integration.vllm_server import VllmServer

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(600)]


def test_two_workers_share_their_experts(single: Answers, directory: Path) -> None:
    with (server := traced(directory)).server:
        assert_serves(server.server, single, lambda: rest(server))
        assert_routed(server.server, single)
        assert_agreed(server, 2)
        assert_in_step(server, [(0, 1)])
        assert posted(server, asked=True) == posted(server, asked=False)


def test_two_replicas_of_one_worker_schedule_asynchronously(
    single: Answers, directory: Path
) -> None:
    one_each = {"tensor_parallel_size": 1, "data_parallel_size": 2}
    with (server := traced(directory, "fixed", "1", **one_each)).server:
        assert_serves(server.server, single, lambda: rest(server))
        assert_routed(server.server, single)
        table = assert_agreed(server, 2)
        for rank, row in table.items():
            place = {"dp": str(rank), "ep": str(rank), "engine": str(rank)}
            assert place.items() <= row["labels"].items()
        assert_in_step(server, [(0,), (1,)])
        assert ops(server, "dp:0") == {"all_gather", "reduce_scatter"}
        for pid in server.server.worker_pids():
            assert "WorkerAsyncOutputCopy" in threads(pid)

        verdict = stop_an_engine(server, single)
        assert_agreed(server, 2)

    assert (verdict["kind"], verdict["diverging_ranks"]) == ("not_joined", [0])
    pattern = (
        rf"rank 0 \(DP0\) idle in dequeue for \d+ s after {STEP}; "
        rf"rank 1 \(DP1\) in {STEP}, in call \d+ on dp:0/cpu, "
        r"all_reduce at .+"
    )
    (places,) = [match for fact in verdict["evidence"] if (match := re.fullmatch(pattern, fact))]
    assert int(places[1]) + 1 == int(places[2])
    # Which of the two depends on what the coordinator has had it begin with.
    waits = (
        r"engine 1 \(pid \d+\) waits (in call \d+ on engines, all_reduce .+, for the other engines|"
        r"for \d+ s: rank 1 has not answered execute_dummy_batch)"
    )
    assert re.fullmatch(waits, verdict["evidence"][-1])
    assert re.search(
        r"in which rank 1 waits; it is idle, in dequeue: engine 0 \(pid \d+\) is stopped by a "
        r"signal \(state T\)\.$",
        verdict["summary"],
    )


def test_untraced_replicas_answer_the_same(single: Answers, directory: Path) -> None:
    with VllmServer(
        directory,
        tensor_parallel_size=1,
        data_parallel_size=2,
        checkpoint=True,
        environment=CPU_MOE,
        arguments=ARGUMENTS,
    ) as server:
        assert_serves(server, single, lambda: time.sleep(2 * REST_SECONDS))
