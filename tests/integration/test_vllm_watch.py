"""`ncclscope watch` beside a real vLLM server on the CPU: `make test-vllm`."""

from __future__ import annotations

import contextlib
import json
import random
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.integration.traced_server import NCCLSCOPE, TracedServer

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(400)]

SERVED_SECONDS = 120.0
STALL = 5.0
PATIENCE = ("--stall", "60")
"""On a busy machine a worker may be late, and that is not what is looked for here."""
PROMPTS = ([1, 2, 3, 4, 5], [7, 300, 12], list(range(20, 90)))


@contextlib.contextmanager
def watching(traced: TracedServer, *options: str) -> Iterator[subprocess.Popen[str]]:
    command = [*NCCLSCOPE, "watch", str(traced.rings), "--json", "--stall", str(STALL), *options]
    watch = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=Path.cwd()
    )
    try:
        yield watch
    finally:
        watch.kill()
        watch.communicate()


def documents(watch: subprocess.Popen[str]) -> list[dict[str, Any]]:
    """Ends a watch and returns all that it printed."""
    watch.terminate()
    said, complained = watch.communicate(timeout=20)
    assert complained == ""
    return [json.loads(line) for line in said.splitlines()]


def test_two_minutes_of_bursts_and_pauses_are_no_alarm(tmp_path: Path) -> None:
    traced = TracedServer(tmp_path)
    chosen = random.Random(3)
    with watching(traced) as watch, traced.server:
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
            if time.monotonic() - began > SERVED_SECONDS:
                break
            time.sleep(pause)
        alive = traced.server.worker_pids()
        found = documents(watch)

    assert served > 50
    assert {document["status"] for document in found} <= {"ok", "incomplete"}
    assert found[-1]["status"] == "ok"
    assert [row["pid"] for row in found[-1]["table"]] == alive


def test_a_planted_divergence_is_seen_while_the_server_lives(tmp_path: Path) -> None:
    traced = TracedServer(tmp_path)
    with traced.server, watching(traced, "--until-divergence", *PATIENCE) as watch:
        traced.server.complete(PROMPTS[0], max_tokens=12)
        traced.plant("skip")
        with pytest.raises(TimeoutError):
            traced.server.complete(PROMPTS[0], max_tokens=12, timeout=8)
        said, _ = watch.communicate(timeout=20)
        assert watch.returncode == 1
        assert len(traced.server.worker_pids()) == 2

    first, *_, last = [json.loads(line) for line in said.splitlines()]
    assert first["status"] == "ok"
    assert last["status"] == "diverged"
    assert last["verdict"]["diverging_ranks"] == [1]
    assert last["verdict"]["comm"]["label"] == "tp:0"


def test_a_divergence_that_hangs_nothing_is_seen_while_it_serves(tmp_path: Path) -> None:
    """The shared-memory operators go on with wrong data: no time-out would ever say a word."""
    traced = TracedServer(tmp_path)
    with traced.server, watching(traced, "--until-divergence", *PATIENCE) as watch:
        traced.server.complete(PROMPTS[0], max_tokens=12)
        traced.plant("replace")
        traced.server.complete(PROMPTS[0], max_tokens=12)
        said, _ = watch.communicate(timeout=20)
        traced.server.complete(PROMPTS[1], max_tokens=4)

    assert watch.returncode == 1
    assert json.loads(said.splitlines()[-1])["verdict"]["kind"] == "op_mismatch"


def test_the_guard_raises_in_the_worker(tmp_path: Path) -> None:
    traced = TracedServer(tmp_path, environment={"NCCLSCOPE_GUARD": "raise"})
    with traced.server:
        traced.server.complete(PROMPTS[0], max_tokens=12)
        traced.plant("replace")
        with contextlib.suppress(TimeoutError, RuntimeError, OSError):
            traced.server.complete(PROMPTS[0], max_tokens=12, timeout=30)
        log = traced.server.log_path.read_text(errors="replace")

    assert "PartedError: the sequences on tp:0 have parted at call " in log
    assert "rank 1 posted all_gather" in log
    assert "rank 0 posted all_reduce" in log
