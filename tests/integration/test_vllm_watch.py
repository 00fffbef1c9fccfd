"""`ncclscope watch` beside a real vLLM server on the CPU: `make test-vllm`."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest

from tests.integration.bursts import PROMPTS, STALL, alarms, documents, serve_in_bursts
from tests.integration.traced_server import TracedServer

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(400)]

SERVED_SECONDS = 45.0


def test_bursts_and_pauses_are_no_alarm(tmp_path: Path) -> None:
    traced = TracedServer(tmp_path)
    with traced.watching("--stall", str(STALL)) as watch, traced.server:
        served = serve_in_bursts(traced.server.complete, SERVED_SECONDS)
        alive = traced.server.worker_pids()
        found = documents(watch)

    assert served > 20
    assert alarms(found) == []
    assert found[-1]["status"] == "ok"
    assert [row["pid"] for row in found[-1]["table"]] == alive


def test_the_guard_raises_in_the_worker(tmp_path: Path) -> None:
    traced = TracedServer(tmp_path, environment={"NCCLSCOPE_GUARD": "raise"})
    with traced.server:
        traced.server.complete(PROMPTS[0], max_tokens=12)
        traced.plant("replace")
        with contextlib.suppress(TimeoutError, RuntimeError, OSError):
            traced.server.complete(PROMPTS[0], max_tokens=12, timeout=30)
        log = traced.server.log_path.read_text(errors="replace")

    assert "DivergenceError: the sequences on tp:0 diverge at call " in log
    assert "rank 1 posted all_gather" in log
    assert "rank 0 posted all_reduce" in log
