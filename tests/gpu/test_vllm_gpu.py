"""Real vLLM on four GPUs, TP=2 x DP=2 with expert parallelism: `pytest -m gpu tests/gpu`.

Needs a CUDA build of vLLM in the environment, and no network: the weights are dummies.
"""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.integration.traced_server import NCCLSCOPE, TracedServer
from tests.integration.vllm_server import TINY_QWEN3_MOE, VllmServer

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(420)]

CONFIG = TINY_QWEN3_MOE | {
    "hidden_size": 1024,
    "intermediate_size": 2048,
    "moe_intermediate_size": 512,
    "num_hidden_layers": 8,
    "num_attention_heads": 16,
    "num_key_value_heads": 4,
    "head_dim": 64,
    "num_experts": 32,
    "num_experts_per_tok": 4,
    "max_position_embeddings": 4096,
    "vocab_size": 32000,
    "torch_dtype": "bfloat16",
}
ENVIRONMENT = {
    "VLLM_USE_FLASHINFER_SAMPLER": "0",
    "VLLM_ALLREDUCE_USE_FLASHINFER": "0",
    "VLLM_ALLREDUCE_USE_SYMM_MEM": "0",
    "NCCL_NVLS_ENABLE": "0",
    "TORCH_SYMM_MEM_DISABLE_MULTICAST": "1",
}
ARGUMENTS = [
    *("--dtype", "bfloat16", "--max-model-len", "2048", "--gpu-memory-utilization", "0.3"),
    *("--data-parallel-size", "2", "--enable-expert-parallel"),
    *("--all2all-backend", "allgather_reducescatter"),
]
PROMPTS = [[1, 2, 3, 4, 5], [7, 300, 12], list(range(20, 90)), [9] * 17]


def _options(eager: bool) -> dict[str, Any]:
    return {
        "environment": ENVIRONMENT,
        "arguments": ARGUMENTS,
        "config": CONFIG,
        "eager": eager,
    }


def _answers(server: VllmServer) -> list[list[int]]:
    return [server.complete(prompt, max_tokens=16) for prompt in PROMPTS]


def _started(directory: Path) -> Path:
    directory.mkdir()
    return directory


@pytest.mark.parametrize("eager", [True, False], ids=["eager", "default"])
def test_traced_workers_answer_the_same_and_agree(tmp_path: Path, eager: bool) -> None:
    with VllmServer(_started(tmp_path / "untraced"), **_options(eager)) as untraced:
        expected = _answers(untraced)

    traced = TracedServer(_started(tmp_path / "traced"), **_options(eager))
    with traced.server as server:
        assert _answers(server) == expected
        status, document = traced.diagnose()
        pids = server.worker_pids()

    assert (status, document["status"]) == (0, "ok")
    assert document["ranks"] == {"expected": 4, "read": 4, "missing": []}
    assert sorted(row["pid"] for row in document["table"]) == sorted(pids)
    for row in document["table"]:
        assert row["comms"]["ep:0"]["calls"] > 0, row
        assert {"tp", "dp", "ep"} <= set(row["labels"])


def test_a_skipped_call_hangs_the_engine_and_is_named(tmp_path: Path) -> None:
    traced = TracedServer(tmp_path, **_options(eager=True))
    with traced.server as server:
        _answers(server)
        traced.plant("skip")
        # Requests go to one replica or the other, and both stand still with their experts.
        with pytest.raises(TimeoutError):
            [server.complete(prompt, max_tokens=16, timeout=15) for prompt in PROMPTS]
        traced.kill_workers()
        status, document = traced.diagnose()

    assert (status, document["status"]) == (1, "diverged")
    verdict = document["verdict"]
    assert verdict["kind"] == "missing_call"
    assert verdict["diverging_ranks"] == [1]
    assert verdict["comm"]["label"] == "ep:0"
    assert verdict["comm"]["backend"] == "nccl"


@pytest.mark.parametrize("fault", ["divergent_dispatch", "wrong_op", "order_swap", "none"])
def test_demo_on_nccl(fault: str) -> None:
    command = [*NCCLSCOPE, "demo", "--backend", "nccl", "--tp", "2", "--dp", "2"]
    done = subprocess.run(
        [*command, "--fault", fault, "--json"], capture_output=True, text=True, check=False
    )

    assert done.returncode == 0, done.stdout + done.stderr
    assert json.loads(done.stdout)["agrees"] is True
