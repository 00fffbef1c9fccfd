"""A mixture of experts over several real vLLM workers on the CPU: `make test-vllm`.

Four workers, two replicas of two, share their experts over gloo: `NCCLSCOPE_VLLM_CPU_MOE=1` adds
what vLLM's CPU build lacks for that. However many workers there are, and whatever dispatches
their tokens, the answers are those of a single worker.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from ncclscope import open_run
from tests.integration.traced_server import TracedServer
from tests.integration.vllm_server import VllmServer

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(400)]

EXPERTS = ["--enable-expert-parallel"]
PROMPTS = ([1, 2, 3, 4, 5], [7, 300, 12], list(range(20, 90)), [9] * 17)
TOKENS = 12
HANG_SECONDS = 20.0

Answers = list[list[int]]


def answers(server: VllmServer) -> Answers:
    """Asks for all at once, so that both replicas work, with rows of their own each."""
    with ThreadPoolExecutor(len(PROMPTS)) as pool:
        asked = [pool.submit(server.complete, prompt, TOKENS) for prompt in PROMPTS]
        return [one.result() for one in asked]


def traced(directory: Path, dispatch: str = "", **options: Any) -> TracedServer:
    environment = {"NCCLSCOPE_VLLM_CPU_MOE": "1"}
    if dispatch:
        environment["NCCLSCOPE_VLLM_DISPATCH"] = dispatch
    return TracedServer(
        directory, environment=environment, checkpoint=True, arguments=EXPERTS, **options
    )


def hang(server: TracedServer, fault: str) -> dict[str, Any]:
    """Plants a fault, waits for nobody's answer, kills the workers and returns the verdict."""
    server.plant(fault)
    with ThreadPoolExecutor(2) as pool:
        asked = [
            pool.submit(server.server.complete, PROMPTS[0], TOKENS, HANG_SECONDS) for _ in range(2)
        ]
        for one in asked:
            with pytest.raises(TimeoutError):
                one.result()
    assert not server.switch.exists(), "no worker came to the place of the fault"
    server.kill_workers()
    status, document = server.diagnose()
    assert status == 1
    verdict: dict[str, Any] = document["verdict"]
    return verdict


def assert_agreed(server: TracedServer, ranks: int) -> dict[int, dict[str, Any]]:
    """Checks that all workers are there and agree; returns the table's rows by rank."""
    status, document = server.diagnose()
    assert (status, document["status"]) == (0, "ok"), document
    assert document["ranks"] == {"expected": ranks, "read": ranks, "missing": []}
    return {row["rank"]: row for row in document["table"]}


def ops(server: TracedServer, label: str) -> set[str]:
    """Returns what was posted on a communicator."""
    run = open_run(server.rings)
    (key,) = [key for key, comm in run.communicators.items() if comm.label == label]
    logs = [rank.logs[key] for rank in run.ranks]
    return {call.op for log in logs for call in log.span(log.first, log.calls + 1)}


def assert_in_step(server: TracedServer) -> None:
    """Checks that the workers number their steps alike, as far as the one that is behind has come.

    Engines go on with dummy batches for a while when all is answered.
    """
    found = [list(rank.steps) for rank in open_run(server.rings).ranks]
    behind = min(len(steps) for steps in found)
    numbers = list(range(1, behind + 1))
    assert behind > TOKENS
    for steps in found:
        assert [step.number for step in steps[:behind]] == numbers
        assert all(step.dummy == (step.tokens == 0) for step in steps)
    for one, other in ((0, 1), (2, 3)):  # a replica's workers do the same
        assert [(step.tokens, step.dummy) for step in found[one][:behind]] == [
            (step.tokens, step.dummy) for step in found[other][:behind]
        ]


@pytest.fixture(scope="module")
def single(tmp_path_factory: pytest.TempPathFactory) -> Answers:
    """What one worker answers, without any patch."""
    directory = tmp_path_factory.mktemp("single")
    with VllmServer(directory, tensor_parallel_size=1, checkpoint=True) as server:
        found = answers(server)
    assert len({tuple(one) for one in found}) == len(found), "the answers depend on the prompts"
    return found


@pytest.fixture
def directory(tmp_path: Path) -> Iterator[Path]:
    yield tmp_path
    shutil.rmtree(tmp_path)


def test_two_workers_share_their_experts(single: Answers, directory: Path) -> None:
    with (server := traced(directory)).server:
        assert answers(server.server) == single
        assert_agreed(server, 2)


def test_replicas_share_experts_and_an_uneven_dispatch_is_named(
    single: Answers, directory: Path
) -> None:
    with (server := traced(directory, data_parallel_size=2)).server:
        assert answers(server.server) == single
        table = assert_agreed(server, 4)
        for rank, row in table.items():
            place = {"dp": str(rank // 2), "tp": str(rank % 2), "ep": str(rank)}
            assert place.items() <= row["labels"].items()
            assert row["comms"]["ep:0"]["calls"] > 0
        assert_in_step(server)
        dispatched = {"all_gather", "all_gatherv", "reduce_scatter", "reduce_scatterv"}
        assert ops(server, "ep:0") == dispatched

        verdict = hang(server, "uneven")

    assert verdict["diverging_ranks"] == [1]
    assert verdict["comm"]["label"] == "ep:0"
    assert verdict["comm"]["ranks"] == [0, 1, 2, 3]
    assert verdict["kind"] == "op_mismatch"
    steps = re.findall(r"\bin step (\d+) \((?:\d+ tokens?|dummy)\)", verdict["evidence"][-1])
    assert len(set(steps)) == 1, verdict["evidence"]
    assert verdict["odd"]["op"] == "all_gatherv"
    assert verdict["peers"]["op"] == "all_gather"


def test_replicas_with_the_padding_dispatcher_and_a_skipped_call_is_named(
    single: Answers, directory: Path
) -> None:
    with (server := traced(directory, "checked", data_parallel_size=2)).server:
        assert answers(server.server) == single
        assert_agreed(server, 4)
        assert "all_gather" in ops(server, "ep:0/cpu"), "nothing was checked"
        assert_in_step(server)
        assert ops(server, "ep:0") == {"all_gather", "reduce_scatter"}

        verdict = hang(server, "skip")

    # Rank 1 stands in the dispatch that follows the call it left out: it came there too early, and
    # whether it would have made the call afterwards is not to be known.
    assert verdict["kind"] == "order_cycle"
    assert verdict["diverging_ranks"] == [1]
    assert verdict["comm"]["label"] == "tp:0"
    assert verdict["comm"]["ranks"] == [0, 1]
    assert "all_reduce sum" in verdict["summary"]
