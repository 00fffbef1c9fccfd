"""`ncclscope watch` beside a real vLLM server on the CPU: `make test-vllm`."""

from __future__ import annotations

import contextlib
import json
import random
import subprocess
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from tests.integration.traced_server import TracedServer

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(400)]

SERVED_SECONDS = 45.0
STALL = 5.0
PROMPTS = ([1, 2, 3, 4, 5], [7, 300, 12], list(range(20, 90)))


def documents(watch: subprocess.Popen[str]) -> list[dict[str, Any]]:
    """End a watch and return all that it printed."""
    watch.terminate()
    output, complained = watch.communicate(timeout=20)
    assert complained == ""
    return [json.loads(line) for line in output.splitlines()]


def test_bursts_and_pauses_are_no_alarm(tmp_path: Path) -> None:
    traced = TracedServer(tmp_path)
    chosen = random.Random(3)
    with traced.watching("--stall", str(STALL)) as watch, traced.server:
        began = time.monotonic()
        served = 0
        # One pause is longer than the time after which a call counts as stuck.
        for pause in (0.5, 2 * STALL, 1.0, 0.0, 3.0, STALL + 1, *[0.3] * 1000):
            burst = [
                threading.Thread(
                    target=traced.server.complete,
                    args=(chosen.choice(PROMPTS), chosen.randint(1, 40)),
                )
                for _ in range(chosen.randint(1, 6))
            ]
            for request in burst:
                request.start()
            for request in burst:
                request.join()
            served += len(burst)
            # On a busy machine the pauses alone may take most of that time.
            if served > 20 and time.monotonic() - began > SERVED_SECONDS:
                break
            time.sleep(pause)
        alive = traced.server.worker_pids()
        found = documents(watch)

    assert served > 20
    assert {document["status"] for document in found} <= {"ok", "incomplete", "unknown"}
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
