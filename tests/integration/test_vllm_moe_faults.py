"""A mixture of experts over four vLLM workers on the CPU, two replicas of two, until one fails.

`NCCLSCOPE_VLLM_CPU_MOE=1` adds what vLLM's CPU build lacks for that. Whatever dispatches their
tokens, the answers are those of a single worker; then a fault is planted.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.integration.moe_serving import (
    Answers,
    assert_agreed,
    assert_in_step,
    assert_routed,
    assert_serves,
    hang,
    ops,
    rest,
    traced,
)

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(600)]


def test_replicas_share_experts_and_an_uneven_dispatch_is_named(
    single: Answers, directory: Path
) -> None:
    with (server := traced(directory, data_parallel_size=2)).server:
        assert_serves(server.server, single, lambda: rest(server))
        assert_routed(server.server, single)
        table = assert_agreed(server, 4)
        for rank, row in table.items():
            place = {"dp": str(rank // 2), "tp": str(rank % 2), "ep": str(rank)}
            assert place.items() <= row["labels"].items()
            assert row["comms"]["ep:0"]["calls"] > 0
        assert_in_step(server, [(0, 1), (2, 3)])
        dispatched = {"all_gather", "all_gatherv", "reduce_scatter", "reduce_scatterv"}
        assert ops(server, "ep:0") == dispatched

        verdict = hang(server, "uneven")

    assert verdict["diverging_ranks"] == [1]
    assert verdict["comm"]["label"] == "ep:0"
    assert verdict["comm"]["ranks"] == [0, 1, 2, 3]
    assert verdict["kind"] == "split_mismatch"
    assert verdict["odd"]["op"] == "all_gatherv"
    assert verdict["peers"]["op"] == "all_gather"


def test_replicas_with_the_padding_dispatcher_and_a_skipped_call_is_named(
    single: Answers, directory: Path
) -> None:
    with (server := traced(directory, "checked", data_parallel_size=2)).server:
        assert_serves(server.server, single, lambda: rest(server))
        assert_routed(server.server, single)
        assert_agreed(server, 4)
        assert "all_gather" in ops(server, "ep:0/cpu"), "nothing was checked"
        assert_in_step(server, [(0, 1), (2, 3)])
        assert ops(server, "ep:0") == {"all_gather", "reduce_scatter"}

        verdict = hang(server, "skip")

    # Rank 1 waits in the dispatch that follows the call it left out: it came there too early, and
    # whether it would have made the call afterwards is not to be known.
    assert verdict["kind"] == "not_joined"
    assert verdict["diverging_ranks"] == [1]
    assert verdict["comm"]["label"] == "tp:0"
    assert verdict["comm"]["ranks"] == [0, 1]
    assert "all_reduce sum" in verdict["summary"]
