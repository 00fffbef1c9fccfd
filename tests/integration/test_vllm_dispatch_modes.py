"""Servers that share their experts, started apart, of which one lacks the dispatcher's switch."""

from __future__ import annotations

import contextlib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from ncclscope import diagnose, open_run
from ncclscope.launch.rank_process import free_port
from ncclscope_patches.vllm import group_mode
from tests.integration.moe_serving import ARGUMENTS, CPU_MOE
from tests.integration.traced_server import TracedServer

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(600)]

LOG_LINES = 4000
SWITCH = "NCCLSCOPE_VLLM_DISPATCH"


def servers(directory: Path, modes: list[str]) -> list[TracedServer]:
    """Return servers of one rank each, as under an external load balancer."""
    port = free_port()
    found = []
    for rank, mode in enumerate(modes):
        own = directory / f"rank-{rank}"
        own.mkdir()
        replica = {
            "--data-parallel-size": len(modes),
            "--data-parallel-rank": rank,
            "--data-parallel-address": "127.0.0.1",
            "--data-parallel-rpc-port": port,
        }
        found.append(
            TracedServer(
                own,
                rings=directory / "rings",
                environment={**CPU_MOE, **({SWITCH: mode} if mode else {})},
                tensor_parallel_size=1,
                arguments=[*ARGUMENTS, *(str(word) for pair in replica.items() for word in pair)],
            )
        )
    return found


def serve(given: list[TracedServer]) -> list[str]:
    """Have each server answer at once; return the lines about the switch in their logs."""
    with ThreadPoolExecutor() as pool, contextlib.ExitStack() as stack:
        starting = [pool.submit(stack.enter_context, one.server) for one in given]
        for one in starting:
            one.result()
        for length in (3, 5):  # of one rank more tokens than of the other
            asked = [
                pool.submit(one.server.complete, list(range(1, length + 4 * rank)), 6)
                for rank, one in enumerate(given)
            ]
            assert [len(one.result()) for one in asked] == [6] * len(given)
        verdict = diagnose(open_run(given[0].rings))  # of servers that live
        assert verdict.status == "ok", verdict.summary
        logs = [one.server.log_tail(LOG_LINES) for one in given]
    return [line for log in logs for line in log.splitlines() if SWITCH in line]


def test_a_switch_that_one_server_lacks_is_off_on_all(tmp_path: Path) -> None:
    lines = serve(servers(tmp_path, ["fixed", ""]))

    (line,) = [line for line in lines if "must be the same" in line]
    assert "vLLM's own dispatcher stays on all ranks of this group" in line
    assert "rank 0: fixed" in line
    assert f"rank 1: not set (nothing in {group_mode.WAIT_SECONDS:g} s)" in line


def test_sentinels_serve_in_real_workers(tmp_path: Path) -> None:
    lines = serve(servers(tmp_path, ["sentinel", "sentinel"]))
    assert {line.partition("ncclscope: ")[2] for line in lines} == {
        f"{SWITCH}=sentinel is in effect: ranks 0 1 have agreed on it"
    }

    sizes = {
        call.sizes
        for rank in open_run(tmp_path / "rings").ranks
        for log in rank.logs.values()
        for call in log.span(log.first, log.calls + 1)
        if call.op == "all_gatherv" and log.communicator.label == "dp:0"
    }
    assert sizes
    assert all(min(size or (0,)) >= 2 for size in sizes)
