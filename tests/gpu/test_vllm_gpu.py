"""Real vLLM with expert parallelism, on four GPUs TP=2 x DP=2, on two DP=2: `pytest -m gpu`.

Needs a CUDA build of vLLM in the environment, and no network: the weights are dummies.
"""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from ncclscope import open_run
from tests.gpu.deployment import SHAPE, on_gpus, options
from tests.gpu.hangs import TOOLS, Hang, evidence, examine, watching
from tests.integration.traced_server import NCCLSCOPE, TracedServer
from tests.integration.vllm_server import VllmServer

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(420)]

PROMPTS = [[1, 2, 3, 4, 5], [7, 300, 12], list(range(20, 90)), [9] * 17]


def _answers(server: VllmServer) -> list[list[int]]:
    return [server.complete(prompt, max_tokens=16) for prompt in PROMPTS]


def _started(directory: Path) -> Path:
    directory.mkdir()
    return directory


@pytest.mark.real_gpus(2)
@pytest.mark.parametrize("eager", [True, False], ids=["eager", "default"])
@pytest.mark.parametrize("shape", [SHAPE, (2, 1)], ids=lambda shape: f"TP{shape[0]}xDP{shape[1]}")
def test_traced_workers_answer_the_same_and_agree(
    tmp_path: Path, shape: tuple[int, int], eager: bool
) -> None:
    given = options(eager=eager, shape=shape, memory=0.12)
    with VllmServer(_started(tmp_path / "untraced"), **given) as untraced:
        expected = _answers(untraced)

    traced = TracedServer(_started(tmp_path / "traced"), **given)
    with traced.server as server:
        assert _answers(server) == expected
        status, document = traced.diagnose()
        pids = server.worker_pids()
    if not eager and on_gpus():
        replays = [
            call.replay.number
            for rank in open_run(traced.rings).ranks
            for log in rank.logs.values()
            for call in log.span(max(log.first, log.calls - 1000), log.calls + 1)
            if call.replay is not None
        ]
        assert max(replays, default=0) > 1

    assert (status, document["status"]) == (0, "ok")
    ranks = shape[0] * shape[1]
    assert document["ranks"] == {"expected": ranks, "read": ranks, "missing": []}
    assert sorted(row["pid"] for row in document["table"]) == sorted(pids)
    for row in document["table"]:
        assert row["comms"]["ep:0"]["calls"] > 0, row
        if shape[1] > 1:
            assert {"dp", "ep"} <= set(row["labels"])
        elif on_gpus():
            # Kernels of vLLM's own do the all-reduces of two GPUs.
            assert row["comms"]["tp:0/custom"]["calls"] > 0, row


PLANTED = {
    "skip": "worker 1 skips a reduce_scatter of the experts",
    "uneven": "worker 1 dispatches as if sizes differed, by all_gatherv where its peers all_gather",
    "skip_all_reduce": "worker 1 skips an all_reduce of tensor parallelism",
}


@pytest.mark.real_gpus(2)
@pytest.mark.parametrize(
    ("fault", "kind"),
    [("skip", "missing_call"), ("uneven", "split_mismatch"), ("skip_all_reduce", "")],
)
def test_a_planted_fault_hangs_the_engine_and_is_named(
    tmp_path: Path, fault: str, kind: str
) -> None:
    # A replica of one rank has no all_reduce to skip.
    shape = (2, 1) if SHAPE == (1, 2) and fault == "skip_all_reduce" else SHAPE
    environment = evidence(_started(tmp_path / "dumps"))
    given = options(eager=True, shape=shape, memory=0.12, environment=environment)
    traced = TracedServer(tmp_path, **given)
    with traced.server as server:
        _answers(server)
        with watching(traced.rings) as watch:
            traced.plant(fault)
            # Requests go to one replica or the other, and both hang with their experts.
            with pytest.raises(TimeoutError):
                [server.complete(prompt, max_tokens=16, timeout=15) for prompt in PROMPTS]
            text = f"vLLM, TP={shape[0]} x DP={shape[1]}: {PLANTED[fault]}"
            pids = server.worker_pids()
            end = traced.kill_workers
            hang = Hang(fault, text, kind, (1,), traced.rings, pids, environment, end)
            found = examine(hang, watch, tmp_path)

    for tool in TOOLS:
        verdict = found[tool]
        assert verdict["status"] in ("diverged", "hung")
        if shape == (2, 2):
            assert verdict["ranks"] == [1]
        else:
            # Of a pair the records need not single out one.
            assert 1 in verdict["ranks"] or verdict["candidates"] == [0, 1]
    if kind:
        # Without tensor parallelism the experts are shared by the ranks of data parallelism.
        label = "ep:0" if SHAPE == (2, 2) else "dp:0"
        backend = "nccl" if on_gpus() else "gloo"
        verdict = found["diagnose"]
        assert (verdict["kind"], verdict["comm"], verdict["backend"]) == (kind, label, backend)


@pytest.mark.parametrize("fault", ["divergent_dispatch", "wrong_op", "order_swap", "none"])
def test_demo_on_nccl(fault: str) -> None:
    command = [*NCCLSCOPE, "demo", "--backend", "nccl", "--tp", "2", "--dp", "2"]
    done = subprocess.run(
        [*command, "--fault", fault, "--json"], capture_output=True, text=True, check=False
    )

    assert done.returncode == 0, done.stdout + done.stderr
    assert json.loads(done.stdout)["agrees"] is True
