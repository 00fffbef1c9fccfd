"""Real vLLM with expert parallelism: bursts and pauses, a stopped and a killed worker, a switch.

On four GPUs TP=2 x DP=2, on two DP=2; without any, vLLM's CPU build: `pytest -m gpu`.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from ncclscope_patches.routed_experts import decode_choice
from tests.gpu.asking import ask, keep
from tests.gpu.deployment import SHAPE, on_gpus, options
from tests.gpu.hangs import answer_of, evidence
from tests.integration.bursts import PROMPTS, STALL, alarms, documents, serve_in_bursts
from tests.integration.traced_server import TracedServer
from tests.integration.vllm_server import VllmServer

pytestmark = [pytest.mark.gpu, pytest.mark.real_gpus(2), pytest.mark.timeout(480)]

RANKS = SHAPE[0] * SHAPE[1]
SERVED_SECONDS = 40.0
STOPPED_SECONDS = 12.0
"""In less than 10 s, `attach` does not yet call it a hang."""
BUSY_SECONDS = 1.0
LAST = RANKS - 1
LONG = 1000 if on_gpus() else 200
"""Tokens of an answer that takes longer than an `attach`."""


@contextlib.contextmanager
def asked(server: VllmServer, tokens: int = 40) -> Iterator[list[Future[list[int]]]]:
    """Ask each replica for an answer, and have it answered meanwhile."""
    with ThreadPoolExecutor(SHAPE[1]) as pool:
        yield [
            pool.submit(server.complete, PROMPTS[0], max_tokens=tokens, timeout=120)
            for _ in range(SHAPE[1])
        ]


def agreed(traced: TracedServer) -> dict[str, Any]:
    """Return the document of `diagnose`, which has nothing to report and misses nothing."""
    status, document = traced.diagnose()
    assert (status, document["status"]) == (0, "ok"), document["summary"]
    assert document["ranks"] == {"expected": RANKS, "read": RANKS, "missing": []}
    assert document["coverage"]["complete"], document["coverage"]
    return document


def named_as_gone(case: str, traced: TracedServer) -> None:
    """Check that the verdict names rank 1, whether or not its peers had come to wait for it."""
    found = ask(case, "killed-diagnose", "diagnose", traced.rings)
    verdict = answer_of(found)
    assert (verdict["kind"], verdict["ranks"]) == ("dead_rank", [1])


def attached(traced: TracedServer) -> None:
    """Check that `attach` finds nothing, whatever NCCL's counts and the stacks are."""
    status, document = traced.attach()
    assert (status, document["status"]) == (0, "ok"), document["summary"]
    assert document["coverage"]["complete"], document["coverage"]["unseen"]


@pytest.mark.parametrize("eager", [True, False], ids=["eager", "default"])
def test_bursts_are_no_alarm_and_a_stopped_and_a_killed_worker_are_named(
    tmp_path: Path, eager: bool
) -> None:
    environment = {
        "NCCLSCOPE_VLLM_ROUTED_EXPERTS": "1",
        "NCCL_RAS_ADDR": evidence(tmp_path)["NCCL_RAS_ADDR"],  # also beside other servers
    }
    traced = TracedServer(tmp_path, **options(eager=eager, memory=0.12, environment=environment))
    case = f"vllm_service_{'eager' if eager else 'default'}"

    def complete(prompt: list[int], tokens: int) -> None:
        wanted = {"return_routed_experts": True}
        choice = server.choice(prompt, tokens, 120.0, vllm_xargs=wanted)
        routed = decode_choice(choice)
        assert routed is not None
        assert routed.missing_count == 0
        assert len(choice["token_ids"]) == tokens

    with traced.watching("--stall", str(STALL)) as watch, traced.server as server:
        served = serve_in_bursts(complete, SERVED_SECONDS)
        pids = server.worker_pids()
        seen = documents(watch)
        assert alarms(seen) == []
        assert seen[-1]["status"] == "ok"
        document = agreed(traced)
        keep(case, "coverage.txt", f"{served} requests\n{document['coverage']}")
        assert [row["pid"] for row in document["table"]] == pids
        attached(traced)
        with asked(server, LONG):
            time.sleep(BUSY_SECONDS)
            attached(traced)

        with asked(server) as answers:
            os.kill(pids[LAST], signal.SIGSTOP)
            try:
                time.sleep(STOPPED_SECONDS)
                found = {
                    "attach": ask(case, "stopped-attach", "attach", *pids),
                    "diagnose": ask(case, "stopped-diagnose", "diagnose", traced.rings),
                }
            finally:
                os.kill(pids[LAST], signal.SIGCONT)
            assert all(len(one.result()) == 40 for one in answers)
        for verdict in map(answer_of, found.values()):
            assert (verdict["status"], verdict["ranks"]) == ("hung", [LAST])
        assert "signal" in found["attach"]["verdict"]["summary"]
        agreed(traced)

        with asked(server, LONG) as answers:
            time.sleep(BUSY_SECONDS)
            os.kill(pids[1], signal.SIGKILL)
            assert any(one.exception() is not None for one in answers)
        named_as_gone(case, traced)


def test_a_dispatcher_that_one_worker_lacks_is_agreed_away(tmp_path: Path) -> None:
    environment = {"NCCLSCOPE_VLLM_DISPATCH": "fixed", "NCCLSCOPE_TEST_LACKS": str(LAST)}
    traced = TracedServer(tmp_path, **options(eager=True, memory=0.12, environment=environment))
    with traced.server as server:
        with asked(server) as answers:
            assert all(len(one.result()) == 40 for one in answers)
        agreed(traced)
        log = server.log_path.read_text(errors="replace")

    (line,) = [line for line in log.splitlines() if "must be the same on all ranks" in line]
    keep("vllm_dispatch_lacks", "line.txt", line)
    assert "vLLM's own dispatcher stays on all ranks of this group" in line
    assert f"rank {LAST}: not set" in line
    assert "fixed" in line
