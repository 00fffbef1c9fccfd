"""Real vLLM workers on the CPU, traced with no change to vLLM: `make test-vllm`."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from ncclscope import open_run
from tests.integration.traced_server import TracedServer
from tests.integration.vllm_server import VOCABULARY_SIZE, VllmServer
from tests.support.shared_memory import BACKEND, needs_shared_memory

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(400)]

UNTIL = ("--until-divergence", "--stall", "60")
"""On a busy machine a worker may be late, and that is not what is tested here."""
STEP = {
    # The one that skipped a call waits in the last of the step, when it has made all of its own.
    "shm": r"rank 0 \(TP0\) in step (\d+) \(5 tokens\), in call \d+ on tp:0, .*; "
    r"rank 1 \(TP1\) idle in dequeue for \d+ s after step \1 \(5 tokens\)",
    # It waits in the next call already, whose size is another one.
    "gloo": r"ranks 0 1 in step \d+ \(5 tokens\)",
}[BACKEND]
"""What the evidence says of both workers' steps."""
PROMPTS = ([1, 2, 3, 4, 5], [7, 300, 12], list(range(20, 90)))


@pytest.fixture(scope="module")
def untraced_tokens(tmp_path_factory: pytest.TempPathFactory) -> list[list[int]]:
    """What the server answers when nothing is traced."""
    directory = tmp_path_factory.mktemp("untraced")
    with VllmServer(directory) as server:
        assert len(set(server.worker_pids())) == 2
        return [server.complete(prompt, max_tokens=12) for prompt in PROMPTS]


@pytest.fixture
def traced(tmp_path: Path) -> Iterator[TracedServer]:
    traced = TracedServer(tmp_path)
    with traced.server:
        yield traced
    shutil.rmtree(traced.rings)


def test_traced_server_answers_the_same_and_a_skipped_call_is_named(
    untraced_tokens: list[list[int]], traced: TracedServer
) -> None:
    # GIVEN a traced server that serves
    tokens = [traced.server.complete(prompt, max_tokens=12) for prompt in PROMPTS]

    # THEN it answers as an untraced one, each worker, the engine and the server has a ring, and
    # they agree
    assert tokens == untraced_tokens
    assert all(0 <= token < VOCABULARY_SIZE for answer in tokens for token in answer)
    assert len(list(traced.rings.glob("*.ring"))) == 4
    others = {one.details["role"]: one for one in open_run(traced.rings).others}
    assert others["frontend"].activities["requests"].until_ns is not None
    engine = others["engine"]
    assert (engine.pid, engine.labels) == (traced.server.engine_pid(), {"engine": "0"})
    assert engine.activities["enqueue"].detail in ("execute_model", "sample_tokens")
    status, document = traced.diagnose()
    assert (status, document["status"]) == (0, "ok")
    assert document["ranks"] == {"expected": 2, "read": 2, "missing": []}
    assert [row["pid"] for row in document["table"]] == traced.server.worker_pids()
    assert all(row["comms"]["tp:0"]["calls"] > 0 for row in document["table"])
    assert all(row["labels"]["tp"] == str(row["rank"]) for row in document["table"])

    # WHEN one worker skips one all_reduce, and the engine hangs
    with traced.watching(*UNTIL) as watch:
        assert watch.stdout is not None
        seen_first = watch.stdout.readline()
        traced.plant("skip")
        with pytest.raises(TimeoutError):
            traced.server.complete(PROMPTS[0], max_tokens=12, timeout=8)
        seen_last, _ = watch.communicate(timeout=20)

    # THEN it is named, while all live and after SIGKILL: its steps before show that it left it out
    assert json.loads(seen_first)["status"] == "ok"
    assert watch.returncode == 1
    seen = json.loads(seen_last.splitlines()[-1])
    assert seen["status"] == "diverged"
    assert seen["verdict"]["diverging_ranks"] == [1]
    assert seen["verdict"]["comm"]["label"] == "tp:0"
    _, alive = traced.diagnose()
    pids = traced.kill_workers()
    status, dead = traced.diagnose()
    assert status == 1
    for document in (alive, dead):
        verdict = document["verdict"]
        assert document["status"] == "diverged"
        assert verdict["kind"] in ("missing_call", "op_mismatch", "size_mismatch")
        assert (verdict["diverging_ranks"], verdict["confidence"]) == ([1], "likely")
        assert verdict["comm"]["label"] == "tp:0"
        assert verdict["comm"]["backend"] == BACKEND
        assert "all_reduce" in (verdict["odd"]["op"], verdict["peers"]["op"])
        (step,) = [fact for fact in verdict["evidence"] if " in step " in fact]
        assert re.fullmatch(STEP, step)
        waits = r"engine 0 \(pid \d+\) waits for \d+ s: ranks 0 1 have not answered execute_model"
        assert document is dead or re.fullmatch(waits, verdict["evidence"][-1])
    assert document["table"][1]["pid"] == pids[1]


@needs_shared_memory
def test_a_replaced_call_is_named_though_nothing_hangs(traced: TracedServer) -> None:
    """The shared-memory operators do not check what the other side is at: wrong data, no hang."""
    traced.server.complete(PROMPTS[0], max_tokens=12)
    assert traced.diagnose()[1]["status"] == "ok"

    traced.plant("replace")
    traced.server.complete(PROMPTS[0], max_tokens=12)
    traced.server.complete(PROMPTS[1], max_tokens=4)

    # The job survived it: it is named, and no cause of anything.
    _, document = traced.diagnose()
    assert document["verdict"] is None
    latent = [finding for finding in document["findings"] if finding["role"] == "latent"]
    assert "op_mismatch" in [finding["kind"] for finding in latent]
